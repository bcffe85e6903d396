"""The API against its own description: whatever schemathesis thinks of, nothing breaks, and all is as described."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from horae.backends.fake import FakeJob
from horae.service.api import make_app
from horae.service.daemon import Daemon
from horae.service.roles import Role
from horae.service.tokens import Tokens
from tests.service.live import Live, in_state, live, submit

#: The description needs no service behind it. Streams of what happens never end.
SCHEMA = schemathesis.openapi.from_dict(make_app(cast(Daemon, None), cast(Tokens, None)).openapi()).exclude(
    path="/v1/stream"
)
OPERATIONS = {f"{found.ok().method.upper()} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}
CHECKS = [checks.not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
#: What is really there, to be asked for by half of all requests.
REAL = {"job": "ended-1", "node": "v100"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("live"), script=FakeJob(lasts_s=0.05)) as running:
        admin = running.person("root", Role.ADMIN)
        assert submit(admin, {"name": "ended"}) == ["ended-1"]
        in_state(admin, "ended-1", "finished")
        yield running


def token_for(service: Live, case: Any) -> str:
    """A token that opens what is asked for; made anew each time, as a request may revoke it."""
    if "/attempts/" in case.path:
        return service.tokens.of_job(case.path_parameters["job"], case.path_parameters["attempt"])
    return service.token("root", Role.ADMIN)


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_breaks(service: Live, name: str) -> None:
    @settings(
        max_examples=20,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[name].as_strategy(), real=st.booleans())
    def ask(case: Any, real: bool) -> None:
        if real:
            case.path_parameters = {key: REAL.get(key, value) for key, value in (case.path_parameters or {}).items()}
        headers = {"Authorization": f"Bearer {token_for(service, case)}"}
        answer = case.call(base_url=service.url, headers=headers, timeout=30)
        case.validate_response(answer, checks=CHECKS)
        assert service.daemon.crashed is None

    ask()
