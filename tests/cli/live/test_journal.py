"""`horae report` and `horae replay` over the journal of a service that ran something."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from horae.backends.fake import FakeJob
from horae.core.cluster import Node
from horae.service.roles import Role
from tests.cli.conftest import Horae
from tests.service.live import Live, eventually, in_state, live, submit

#: Each job works for 0.4 s on 4 V100s and 4 K80s; ann's take all GPUs of a type, bob's half.
JOBS = {
    "ann": [{"name": "big", "queue": "vision", "resources": {"gpus": 4}}] * 3,
    "bob": [{"name": "small", "queue": "speech", "resources": {"gpus": 2}}] * 4,
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A service under which seven jobs of two people have ended, and one was cancelled."""
    with live(tmp_path_factory.mktemp("past"), "fifo-backfill", script=FakeJob(lasts_s=0.4, ready_s=0.05)) as service:
        people: dict[str, httpx.Client] = {name: service.person(name) for name in JOBS}
        for name, jobs in JOBS.items():
            submit(people[name], *({**job, "estimate": {"steps": 40, "duration": 1}} for job in jobs))
        service.backend.world.jobs["endless-8"] = FakeJob(lasts_s=1000.0)
        (endless,) = submit(people["ann"], {"name": "endless", "queue": "vision", "estimate": {"duration": 1000}})
        in_state(people["ann"], endless, "running")
        people["ann"].post(f"/v1/jobs/{endless}/cancel")
        admin = service.person("root", Role.ADMIN)
        ended = ("finished", "cancelled")
        eventually(lambda: all(job["state"] in ended for job in admin.get("/v1/jobs?all=true").json()["jobs"]))
        yield service


@pytest.fixture
def cli(ran: Live, horae: Horae, monkeypatch: pytest.MonkeyPatch) -> Horae:
    monkeypatch.setenv("HORAE_URL", ran.url)
    monkeypatch.setenv("HORAE_TOKEN", ran.token("root", Role.ADMIN))
    return horae


def test_usage_adds_up_by_queue_and_user(cli: Horae) -> None:
    records = cli("report", "usage", "-o", "json").json["usage"]
    assert {(one["queue"], one["user"], one["jobs"], one["finished"]) for one in records} == {
        ("vision", "ann", 4, 3),
        ("speech", "bob", 4, 4),
    }
    # What the service itself counts as it goes along.
    jobs = cli("queue", "--all", "-o", "json").json["jobs"]
    for user, queue in (("ann", "vision"), ("bob", "speech")):
        counted = sum(job["gpu_seconds"] for job in jobs if job["queue"] == queue)
        hours = next(one["gpu_hours"] for one in records if one["user"] == user)
        assert hours * 3600 == pytest.approx(counted, rel=0.01)
        assert counted > 3
    assert sum(one["share"] for one in records) == pytest.approx(1.0)
    table = cli("report", "usage").out
    assert "vision" in table
    assert "GPU-hours" in table


def test_fairness_is_told_by_queue_and_as_a_page(cli: Horae, tmp_path: Path) -> None:
    page, viewer = tmp_path / "page.html", tmp_path / "trace.json"
    answer = cli("report", "fairness", "--html", page, "--perfetto", viewer, "-o", "json")
    assert answer.code == 0, answer.err
    told = answer.json
    assert (told["jobs"], told["finished"]) == (8, 7)
    assert {name: figures["jobs"] for name, figures in told["by_queue"].items()} == {"vision": 4, "speech": 4}
    assert "<svg" in page.read_text()
    assert json.loads(viewer.read_text())["traceEvents"]
    text = cli("report", "fairness")
    assert (text.code, "speech" in text.out) == (0, True)


def test_a_replay_compares_policies_with_what_happened(cli: Horae, tmp_path: Path) -> None:
    page = tmp_path / "replay.html"
    answer = cli("replay", "--policy", "fifo", "--policy", "themis", "--html", page, "-o", "json")
    assert answer.code == 0, answer.err
    runs: list[dict[str, Any]] = answer.json["runs"]
    assert [run["run"] for run in runs] == ["as it was (fifo-backfill)", "fifo", "themis"]
    assert [(run["jobs"], run["finished"], run["cancelled"]) for run in runs] == [(8, 7, 1)] * 3
    jct = {run["run"]: run["avg_jct_s"] for run in runs}
    assert jct["fifo"] == pytest.approx(jct["as it was (fifo-backfill)"], rel=0.5)
    assert "themis" in page.read_text()
    text = cli("replay", "--policy", "fifo")
    assert "as it was" in text.out


def test_a_replay_under_policies_that_ignore_speeds_says_so_once(
    horae: Horae, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with live(tmp_path, script=FakeJob(lasts_s=0.2)) as service:
        ann = service.person("ann")
        (job,) = submit(ann, {"estimate": {"steps": 40, "throughput": {"v100": 40.0, "k80": 10.0}}})
        in_state(ann, job, "finished")
        monkeypatch.setenv("HORAE_URL", service.url)
        monkeypatch.setenv("HORAE_TOKEN", service.token("root", Role.ADMIN))
        answer = horae("replay", "--policy", "fifo", "--policy", "srtf", "--policy", "max-min", "-o", "json")
    assert answer.code == 0, answer.err
    assert answer.err.count("fifo and srtf treat GPU types as alike") == 1
    assert "max-min treat" not in answer.err


def test_settings_of_the_service_that_a_replay_does_not_have_are_told(ran: Live, cli: Horae) -> None:
    assert "by default" not in cli("replay", "--policy", "fifo-backfill").err
    admin = ran.person("root", Role.ADMIN)
    assert admin.put("/v1/settings", json={"settings": {"reserve": "50"}}).status_code == 200
    assert "as the service had it last: --set reserve=50" in cli("replay", "--policy", "fifo-backfill").err
    assert "by default" not in cli("replay", "--policy", "fifo-backfill", "--set", "reserve=50").err
    assert "by default" not in cli("replay", "--policy", "fifo").err


def test_a_replay_on_other_machines(cli: Horae) -> None:
    few, many = (
        cli("replay", "--policy", "fifo", "--cluster", spec, "-o", "json").json["runs"][1]["makespan_s"]
        for spec in ("v100:1x4", "v100:8x4,k80:8x4")
    )
    assert few > 1.5 * many


def test_a_replay_has_the_nodes_that_were_there(horae: Horae, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cluster begins empty; its one host comes, goes, and comes back larger."""
    with live(tmp_path, "fifo", script=FakeJob(lasts_s=0.3), nodes=()) as service:
        ann = service.person("ann")
        small, large = submit(ann, *({"resources": {"gpus": n}, "estimate": {"duration": 1}} for n in (2, 4)))
        service.backend.join(Node("v1", "v100", 2))
        in_state(ann, small, "finished")
        service.backend.lose("v1")
        service.backend.join(Node("v1", "v100", 4))
        in_state(ann, large, "finished")
        monkeypatch.setenv("HORAE_URL", service.url)
        monkeypatch.setenv("HORAE_TOKEN", service.token("root", Role.ADMIN))
        answer = horae("replay", "--policy", "srtf", "-o", "json")
    assert answer.code == 0, answer.err
    assert [(run["gpus"], run["finished"]) for run in answer.json["runs"]] == [(4, 2), (4, 2)]
    was, again = ((run["makespan_s"], run["utilization"]) for run in answer.json["runs"])
    assert again == pytest.approx(was, rel=0.3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--policy", "fivo"), "Did you mean 'fifo'?"),
        (("--policy", "fifo", "--policy", "srtf", "--set", "reserve=1"), "--set is for one policy"),
        (("--policy", "fifo", "--cluster", "v100:1x4,p100:1x4"), "fast they are on p100: name machines with k80, v100"),
        (("--policy", "fifo", "--placement", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_replayed_is_told(cli: Horae, words: tuple[str, ...], sentence: str) -> None:
    answer = cli("replay", *words)
    assert answer.code in (1, 2)
    assert sentence in answer.err
    assert "Traceback" not in answer.err


def test_jobs_of_long_ago_are_left_out(cli: Horae) -> None:
    assert sum(one["jobs"] for one in cli("report", "usage", "--since", "1h", "-o", "json").json["usage"]) == 8
    none = cli("report", "usage", "--since", "0s")
    assert none.code != 0
    assert "--since" in none.err
    assert cli("report", "fairness", "--since", "soon").code == 2


def test_who_may_not_see_all_hears_it(ran: Live, cli: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORAE_TOKEN", ran.token("ann"))
    answer = cli("replay", "--policy", "fifo")
    assert answer.code != 0
    assert "journal" in answer.err


def test_a_service_without_jobs_says_so(tmp_path: Path, horae: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    with live(tmp_path) as service:
        monkeypatch.setenv("HORAE_URL", service.url)
        monkeypatch.setenv("HORAE_TOKEN", service.token("root", Role.ADMIN))
        for words in (("report", "usage"), ("report", "fairness"), ("replay", "--policy", "fifo")):
            answer = horae(*words)
            assert answer.code != 0
            assert "no jobs yet" in answer.err
