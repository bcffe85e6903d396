"""Who may do what, asked over real HTTP: every endpoint by every caller; queues, limits and secrets.

Tests service/rights.py, service/job_checks.py, service/roles.py and service/initial_rights.py.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from horae.core.limits import ALL_TOGETHER, EACH_USER
from horae.service.initial_rights import first_limits, secret_notes
from horae.service.rights import is_among, secret_files, without_others_names
from horae.service.roles import Role, Scope
from tests.service.live import Live, eventually, in_state, live, submit


@dataclass
class World:
    """A service with two jobs of ann's, in queue org/a and app grid, and callers of all sorts."""

    live: Live
    callers: dict[str, httpx.Client]
    job: str


def scoped(service: Live, user: str, role: Role, scope: str) -> httpx.Client:
    token, record = service.tokens.draft(user, role, None, Scope.read(scope))
    service.tokens.add(record)
    return service.client(token)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with live(tmp_path_factory.mktemp("rights"), policy="themis") as service:
        admin = service.person("root", Role.ADMIN)
        queues = [{"path": "org"}, {"path": "org/a", "admins": ["dean"]}, {"path": "org/b"}]
        assert admin.put("/v1/settings", json={"queues": queues, "unknown_queues": "refuse"}).status_code == 200
        ann = service.person("ann")
        (job,) = submit(ann, {"queue": "org/a", "app": "grid", "envs": {"KEY": "value"}})
        in_state(ann, job, "running")
        callers = {
            "none": service.client(None),
            "viewer": service.person("eve", Role.VIEWER),
            "owner": ann,
            "member": service.person("mia", Role.MEMBER),
            "user": service.person("bob"),
            "queue admin": service.person("dean"),
            "admin": admin,
            "its queue": scoped(service, "ann", Role.USER, "queue=org"),
            "other queue": scoped(service, "root", Role.ADMIN, "queue=org/b"),
            "its app": scoped(service, "ann", Role.USER, "app=grid"),
            "other app": scoped(service, "ann", Role.USER, "app=other"),
            "submit only": scoped(service, "ann", Role.USER, "submit-only"),
        }
        yield World(service, callers, job)


CALLERS = "none,viewer,owner,member,user,queue admin,admin,its queue,other queue,its app,other app,submit only"
BID = {"auction": 0, "table": []}
#: Method, path and body, and the status for each caller, in the order of CALLERS. Paths name the job of ann's.
MATRIX: list[tuple[str, str, Any, str]] = [
    ("GET", "/v1/jobs", None, "401 200 200 200 200 200 200 200 200 200 200 403"),
    ("GET", "/v1/jobs/JOB", None, "401 200 200 200 404 200 200 200 404 200 404 403"),
    ("GET", "/v1/jobs/JOB/why", None, "401 200 200 200 404 200 200 200 404 200 404 403"),
    ("GET", "/v1/jobs/JOB/events", None, "401 200 200 200 404 200 200 200 404 200 404 403"),
    ("GET", "/v1/jobs/JOB/logs", None, "401 200 200 403 404 200 200 200 404 200 404 403"),
    ("POST", "/v1/jobs/JOB/release", None, "401 403 200 403 404 200 200 200 404 200 404 403"),
    ("POST", "/v1/jobs/release", {"ids": ["JOB"]}, "401 403 200 403 404 200 200 200 404 200 404 403"),
    ("POST", "/v1/jobs/hold", {"ids": ["nobody-9"]}, "401 403 404 404 404 404 404 404 404 404 404 403"),
    ("POST", "/v1/jobs/cancel", {"ids": ["nobody-9"]}, "401 403 404 404 404 404 404 404 404 404 404 403"),
    ("POST", "/v1/jobs?dry_run=true", [{"run": "x"}], "401 403 200 200 200 200 200 200 200 403 403 200"),
    ("GET", "/v1/apps/grid/offer", None, "401 200 200 200 404 404 200 404 404 200 404 403"),
    ("PUT", "/v1/apps/grid/agent", None, "401 403 200 404 404 404 200 404 404 200 404 403"),
    ("DELETE", "/v1/apps/grid/agent", None, "401 403 200 404 404 404 200 404 404 200 404 403"),
    ("POST", "/v1/apps/grid/bids", BID, "401 403 409 404 404 404 409 404 404 409 404 403"),
    ("GET", "/v1/nodes", None, "401 200 200 200 200 200 200 200 200 200 200 403"),
    ("GET", "/v1/share", None, "401 200 200 200 200 200 200 200 200 200 200 403"),
    ("GET", "/v1/settings", None, "401 200 200 200 200 200 200 200 200 200 200 403"),
    ("GET", "/v1/limits", None, "401 200 200 200 200 200 200 200 200 200 200 403"),
    ("GET", "/metrics", None, "401 200 200 200 200 200 200 200 200 200 200 403"),
    ("PUT", "/v1/settings", {"settings": {}}, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("PUT", "/v1/limits", {"whom": "each-user", "streams": 50}, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("PUT", "/v1/limits", {"whom": "queue:org/a", "grace_s": 60}, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("PUT", "/v1/limits", {"whom": "queue:org/a/x", "grace_s": 60}, "401 403 403 403 403 200 200 403 403 403 403 403"),
    ("GET", "/v1/journal", None, "401 200 403 403 403 403 200 403 403 403 403 403"),
    ("GET", "/v1/beginning", None, "401 200 403 403 403 403 200 403 403 403 403 403"),
    ("GET", "/v1/audit", None, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("GET", "/v1/tokens", None, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("POST", "/v1/tokens", {"user": "x"}, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("DELETE", "/v1/tokens/0", None, "401 403 403 403 403 403 404 403 403 403 403 403"),
    ("POST", "/v1/nodes/k80/drain", {}, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("POST", "/v1/nodes/k80/resume", None, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("GET", "/v1/orphans", None, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("POST", "/v1/orphans/end", None, "401 403 403 403 403 403 200 403 403 403 403 403"),
    ("POST", "/v1/nodes/none/lost", {"sure": True}, "401 403 403 403 403 403 404 403 403 403 403 403"),
]


@pytest.mark.parametrize(("method", "path", "body", "expected"), MATRIX, ids=[f"{row[0]} {row[1]}" for row in MATRIX])
def test_every_endpoint_answers_every_caller_as_documented(
    world: World, method: str, path: str, body: Any, expected: str
) -> None:
    text = path.replace("JOB", world.job)
    json = {"ids": [world.job]} if body == {"ids": ["JOB"]} else body
    got = {}
    for caller in CALLERS.split(","):
        asked = {"queue": "org/b"} if caller == "other queue" and text.startswith("/v1/jobs?") else {}
        form = [{**json[0], **asked}] if asked else json
        got[caller] = world.callers[caller].request(method, text, json=form).status_code
    assert got == dict(zip(CALLERS.split(","), map(int, expected.split()), strict=True))


def test_no_endpoint_is_missing_from_the_table(world: World) -> None:
    named = {(method.lower(), path.split("?")[0]) for method, path, *_ in MATRIX}
    names = {"JOB": "{job}", "grid": "{app}", "k80": "{node}", "none": "{node}", "0": "{number}"}
    named = {(method, "/".join(names.get(part, part) for part in path.split("/"))) for method, path in named}
    there = {(method, path) for path, methods in world.live.app.openapi()["paths"].items() for method in methods}
    streams_and_attempts = {
        ("get", "/v1/stream"),
        ("post", "/v1/attempts/{job}/{attempt}/progress"),
        ("get", "/healthz"),
        ("get", "/v1/proof"),
    }
    assert {(m, p.replace("/release", "/{what}")) if p == "/v1/jobs/{job}/release" else (m, p) for m, p in named} == (
        there - streams_and_attempts
    )


def test_a_member_sees_who_runs_what_size_and_not_what(world: World) -> None:
    mia = world.callers["member"]
    (listed,) = (one for one in mia.get("/v1/jobs").json()["jobs"] if one["id"] == world.job)
    assert (listed["user"], listed["queue"], listed["state"], listed["gpus"]) == ("ann", "org/a", "running", 1)
    assert mia.get(f"/v1/jobs/{world.job}").json()["task"] is None
    assert world.job in mia.get("/v1/nodes").text
    refused = mia.post(f"/v1/jobs/{world.job}/cancel")
    assert refused.status_code == 403
    assert "only ann, an admin of queue org/a or an admin may cancel it" in refused.json()["error"]
    (own,) = submit(mia)
    assert mia.get(f"/v1/jobs/{own}").json()["task"]["run"] == ["true"]
    assert mia.post(f"/v1/jobs/{own}/cancel").json() == {"jobs": {own: "done"}}


def test_lists_of_a_scoped_token_hold_only_what_is_in_its_scope(world: World) -> None:
    (elsewhere,) = submit(world.callers["owner"], {"queue": "org/b"})

    def ids(caller: str) -> list[str]:
        return [one["id"] for one in world.callers[caller].get("/v1/jobs").json()["jobs"]]

    assert ids("its app") == [world.job]
    assert ids("other app") == []
    assert ids("other queue") == [elsewhere], "an admin's, narrowed to org/b"
    assert set(ids("its queue")) == {world.job, elsewhere}
    assert elsewhere not in ids("queue admin")
    world.callers["owner"].post(f"/v1/jobs/{elsewhere}/cancel")


def test_a_token_for_a_queue_submits_there_and_nowhere_else(world: World) -> None:
    client = world.callers["its queue"]
    (job,) = submit(client, {})
    assert client.get(f"/v1/jobs/{job}").json()["queue"] == "org", "the scope is the default"
    refused = client.post("/v1/jobs", json=[{"run": "x", "queue": "default"}])
    assert (refused.status_code, "for queue org only" in refused.text) == (403, True)
    client.post(f"/v1/jobs/{job}/cancel")


# ---------------------------------------------------------------------- queues


def test_only_members_submit_to_a_queue_and_below_it(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        admin, ann, bob = service.person("root", Role.ADMIN), service.person("ann"), service.person("bob", Role.MEMBER)
        queues = [{"path": "lab", "members": ["ann"], "admins": ["dean"]}, {"path": "lab/x"}, {"path": "open"}]
        assert admin.put("/v1/settings", json={"queues": queues}).status_code == 200
        for path in ("lab", "lab/x"):
            (job,) = submit(ann, {"queue": path})
            refused = bob.post("/v1/jobs", json=[{"run": "x", "queue": path}])
            assert refused.status_code == 403
            assert "for the members of queue lab" in refused.json()["error"]
            dean = service.person("dean")
            assert dean.post(f"/v1/jobs/{job}/hold").json() == {"jobs": {job: "done"}}
            submit(dean, {"queue": path})
        submit(bob, {"queue": "open"}, {})
        submit(admin, {"queue": "lab"})


@pytest.mark.parametrize(("unknown", "goes_to"), [("open", "lba/x"), ("users", "users/ann/lba/x"), ("refuse", "")])
def test_what_becomes_of_an_unknown_queue_is_a_setting(tmp_path: Path, unknown: str, goes_to: str) -> None:
    with live(tmp_path) as service:
        admin, ann = service.person("root", Role.ADMIN), service.person("ann")
        settings = {"queues": [{"path": "lab/x"}], "unknown_queues": unknown}
        assert admin.put("/v1/settings", json=settings).json()["unknown_queues"] == unknown
        submit(ann, {"queue": "lab"}, {"queue": "lab/x"}, {})
        answer = ann.post("/v1/jobs", json=[{"run": "x", "queue": "lba/x"}])
        if goes_to:
            assert ann.get(f"/v1/jobs/{answer.json()['ids'][0]}").json()["queue"] == goes_to
        else:
            assert answer.status_code == 404
            assert "There is no queue 'lba/x'. Did you mean 'lab/x'?" in answer.json()["error"]


def test_groups_of_the_machine_may_be_members() -> None:
    me = pwd.getpwuid(os.getuid())
    group = grp.getgrgid(me.pw_gid).gr_name
    assert is_among(me.pw_name, [f"@{group}"])
    assert not is_among("nobody-there", [f"@{group}", "@no-such-group"])


# ---------------------------------------------------------------------- limits


def limit(service: Live, whom: str, **limits: Any) -> None:
    answer = service.person("root", Role.ADMIN).put("/v1/limits", json={"whom": whom, **limits})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("limits", "job", "sentence"),
    [
        ({"gpus": 2}, {"resources": {"gpus": 3}}, "GPUs of 3 and user ann may have at most 2"),
        ({"grace_s": "10m"}, {"checkpoint": {"grace": "1h"}}, "checkpoint.grace of 3600 s"),
        ({"min_runtime_s": 60}, {"min_runtime": "2h"}, "min_runtime of 7200 s"),
        ({"max_duration_s": "1h"}, {"max_duration": "2h"}, "max_duration of 7200 s"),
        ({"non_preemptible_gpus": 1}, {"preemptible": False, "resources": {"gpus": 2}}, "non-preemptible GPUs of 2"),
        ({"queued_jobs": 0}, {}, "User ann may have at most 0 jobs that wait or run"),
    ],
)
def test_a_job_beyond_a_limit_is_refused_in_a_sentence(
    tmp_path: Path, limits: dict[str, Any], job: dict[str, Any], sentence: str
) -> None:
    with live(tmp_path) as service:
        ann, admin = service.person("ann"), service.person("root", Role.ADMIN)
        limit(service, "each-user", **limits)
        for dry_run in (True, False):
            refused = ann.post("/v1/jobs", json=[{"run": "x", **job}], params={"dry_run": dry_run})
            assert (refused.status_code, sentence in refused.json()["error"]) == (400, True), refused.text
        submit(admin, job)
        limit(service, "each-user", **dict.fromkeys(limits))
        submit(ann, job)


def test_limits_on_queued_jobs_count_users_and_queues_and_what_has_ended_no_more(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        ann, bob = service.person("ann"), service.person("bob")
        limit(service, "user:ann", queued_jobs=2)
        limit(service, "queue:default", queued_jobs=3)
        first, _ = submit(ann, {}, {})
        assert "User ann may have at most 2 jobs" in ann.post("/v1/jobs", json=[{"run": "x"}]).json()["error"]
        submit(bob, {})
        assert "Queue default may have at most 3 jobs" in bob.post("/v1/jobs", json=[{"run": "x"}]).json()["error"]
        in_state(ann, first, "running")
        ann.post(f"/v1/jobs/{first}/cancel")
        in_state(ann, first, "cancelled")
        submit(ann, {})


def test_a_job_without_a_duration_gets_the_default_one(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        ann = service.person("ann")
        limit(service, "each-user", default_duration_s="2h", max_duration_s="1d")
        plain, own = submit(ann, {}, {"max_duration": "3h"})
        assert ann.get(f"/v1/jobs/{plain}").json()["task"]["max_duration_s"] == 7200
        assert ann.get(f"/v1/jobs/{own}").json()["task"]["max_duration_s"] == 3 * 3600
        limit(service, "each-user", default_duration_s=None)
        (longest,) = submit(ann, {})
        assert ann.get(f"/v1/jobs/{longest}").json()["task"]["max_duration_s"] == 86400, "the longest that there is"


@pytest.mark.parametrize(
    "policy",
    [
        "fifo-backfill",
        "themis",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("las", "max-min", "tiresias")),
    ],
)
def test_a_users_gpus_are_limited_over_all_queues_and_why_tells(tmp_path: Path, policy: str) -> None:
    with live(tmp_path, policy=policy) as service:
        ann, bob = service.person("ann"), service.person("bob")
        limit(service, "each-user", gpus=2)
        jobs = submit(ann, *({"queue": f"q{number}"} for number in range(4)))
        assert in_state(bob, submit(bob)[0], "running"), "others are not held up"
        told = eventually(
            lambda: [w for job in jobs if (w := ann.get(f"/v1/jobs/{job}/why").json())["reason"] == "OverQuota"] or None
        )
        assert "User ann has 2 of at most 2 GPUs and the job needs 1" in told[0]["sentence"]
        states = [ann.get(f"/v1/jobs/{job}").json()["state"] for job in jobs]
        assert sorted(states) == ["running", "running", "waiting", "waiting"]
        limit(service, "user:ann", gpus=4)
        for job in jobs:
            in_state(ann, job, "running")


@pytest.mark.parametrize(
    "policy", ["las", *(pytest.param(name, marks=pytest.mark.long) for name in ("themis", "max-min"))]
)
def test_jobs_that_are_never_preempted_leave_room_for_others(tmp_path: Path, policy: str) -> None:
    with live(tmp_path, policy=policy) as service:
        ann = service.person("ann")
        limit(service, "each-user", non_preemptible_gpus=2)
        limit(service, "all", non_preemptible_gpus=3)
        kept = submit(ann, *[{"preemptible": False}] * 3)
        other = submit(service.person("bob"), *[{"preemptible": False}] * 2)
        free = submit(ann, *[{}] * 4)
        for job in free:
            in_state(ann, job, "running")
        why = eventually(
            lambda: next(
                (w for job in kept if (w := ann.get(f"/v1/jobs/{job}/why").json())["reason"] == "OverQuota"), None
            )
        )
        assert "The non-preemptible jobs of user ann have 2 of at most 2 GPUs" in why["sentence"]
        viewer = service.person("eve", Role.VIEWER)
        both = [viewer.get(f"/v1/jobs/{job}").json()["state"] for job in (*kept, *other)]
        assert (both.count("running"), both.count("waiting")) == (3, 2)


def test_limits_outlive_the_service_and_are_in_the_audit_trail(tmp_path: Path) -> None:
    with live(tmp_path) as service:
        admin, ann = service.person("root", Role.ADMIN), service.person("ann")
        limit(service, "each-user", gpus=2, streams=1)
        limit(service, "user:bob", gpus=1)
        assert admin.get("/v1/audit").json()["acts"][-1]["detail"] == "gpus=1"
        shown = ann.get("/v1/limits").json()
        assert [one["whom"] for one in shown["limits"]] == ["each-user"], "another user's limits are not hers to see"
        assert (shown["yours"]["whom"], shown["yours"]["gpus"]) == ("user:ann", 2)
        refused = admin.put("/v1/limits", json={"whom": "queue:a", "gpus": 2})
        assert "its gpus_max" in refused.json()["error"]
    with live(tmp_path) as service:
        assert service.person("root", Role.ADMIN).get("/v1/limits").json()["limits"][1]["gpus"] == 1
        ann = service.person("ann")
        with ann.stream("GET", "/v1/stream"):
            assert "You have 1 streams open" in eventually(
                lambda: (answer := ann.get("/v1/stream", timeout=5.0)).status_code == 429 and answer.text
            )


def test_a_new_service_leaves_half_of_its_gpus_to_jobs_that_share() -> None:
    eight = first_limits(8)
    assert eight[EACH_USER].non_preemptible_gpus == 2
    assert eight[ALL_TOGETHER].non_preemptible_gpus == 4
    assert first_limits(1)[EACH_USER].non_preemptible_gpus == 1


# --------------------------------------------------------------------- secrets


def test_secrets_belong_to_users_and_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"users/ann/KEY": "a", "queues/org/TEAM": "t", "all/PUBLIC": "p", "PLAIN": "x"}
    with live(tmp_path) as service:
        monkeypatch.setattr(service.backend, "secrets", lambda names: {n: there[n] for n in names if n in there})
        ann, bob, admin = service.person("ann"), service.person("bob"), service.person("root", Role.ADMIN)

        def refusal(client: httpx.Client, secret: str, **job: Any) -> str:
            answers = [
                client.post("/v1/jobs", json=[{"run": "x", "secrets": [secret], **job}], params={"dry_run": dry_run})
                for dry_run in (True, False)
            ]
            assert {answer.status_code for answer in answers} == {400}
            assert answers[0].text == answers[1].text
            return str(answers[0].json()["error"])

        (job,) = submit(ann, {"secrets": ["KEY", "TEAM", "PUBLIC"], "queue": "org/a"})
        assert service.daemon.tasks[job].secret_file("TEAM") == "queues/org/TEAM"
        assert refusal(bob, "KEY") == refusal(bob, "NONE").replace("NONE", "KEY"), "another's is as good as none"
        assert refusal(ann, "TEAM") == refusal(ann, "NONE").replace("NONE", "TEAM"), "only in the queue"
        assert refusal(ann, "PLAIN") == refusal(ann, "NONE").replace("NONE", "PLAIN")
        submit(admin, {"secrets": ["PLAIN"]})


def test_where_a_secret_may_be() -> None:
    assert secret_files("K", "ann", "org/a", by_admin=True) == [
        "users/ann/K",
        "queues/org/a/K",
        "queues/org/K",
        "all/K",
        "K",
    ]


def test_the_operator_is_told_of_secrets_that_only_admins_may_have(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    assert secret_notes(tmp_path) == []
    (tmp_path / "WANDB_KEY").write_text("x")
    assert "(WANDB_KEY) are for jobs of admins" in secret_notes(tmp_path)[0]


def test_names_of_jobs_that_may_not_be_seen_are_left_out_of_sentences() -> None:
    tasks: Any = {"secret-6": None, "mine-1": None}
    text = "Job secret-6 keeps its own; preempted by job secret-6 of bob, not job mine-1 of ann or job other-9."
    assert without_others_names(text, tasks, lambda job: job == "mine-1") == (
        "Another user's job keeps its own; preempted by another user's job, not job mine-1 of ann or job other-9."
    )
