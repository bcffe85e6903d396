"""Every endpoint, asked over real HTTP by people of every role.

Tests service/api/admin.py, service/api/app.py, service/api/auth.py, service/api/errors.py, service/api/health.py,
service/api/jobs.py, service/api/limits.py, service/api/schemas.py, service/metrics.py, service/roles.py and
service/views/job_list.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from horae.backends.fake import FakeJob
from horae.core.codec import decode
from horae.core.events import JobSubmitted
from horae.service.api.limits import FAILURES
from horae.service.roles import Role
from horae.service.store.connection import StoreTrouble
from horae.service.views.views import ServiceViews
from tests.service.live import Live, eventually, in_state, live, submit


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Live]:
    """A service of the test's own."""
    with live(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def admin(service: Live) -> httpx.Client:
    return service.person("root", Role.ADMIN)


@pytest.fixture(scope="module")
def alice(service: Live) -> httpx.Client:
    return service.person("alice")


@pytest.fixture(scope="module")
def bob(service: Live) -> httpx.Client:
    return service.person("bob")


@pytest.fixture(scope="module")
def viewer(service: Live) -> httpx.Client:
    return service.person("eve", Role.VIEWER)


def error_of(answer: httpx.Response, status: int) -> str:
    """The one sentence of a refusal."""
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert list(said) == ["error"]
    assert "\n" not in said["error"]
    assert "Traceback" not in answer.text
    return str(said["error"])


# ------------------------------------------------------------------------- jobs


def test_a_job_is_taken_listed_and_told_of(alice: httpx.Client) -> None:
    (job,) = submit(alice, {"name": "train", "queue": "team/a", "resources": {"gpus": "v100:1"}})
    assert job.startswith("train-")
    listed = alice.get("/v1/jobs", params={"queue": "team"}).json()
    assert [one["id"] for one in listed["jobs"]] == [job]
    assert listed["total"] == 1
    record = in_state(alice, job, "running")
    assert (record["user"], record["queue"], record["gpu_types"]) == ("alice", "team/a", ["v100"])
    assert record["on"][0].startswith("v100[")
    assert record["why"]["reason"] == "None"
    (attempt,) = record["attempts"]
    assert (attempt["attempt"], attempt["on"], attempt["ended"]) == (1, record["on"], None)
    kinds = [one["kind"] for one in alice.get(f"/v1/jobs/{job}/events").json()["events"]]
    assert kinds == ["submitted", "launched", "started"]
    assert alice.post(f"/v1/jobs/{job}/cancel").json() == {"jobs": {job: "done"}}
    in_state(alice, job, "cancelled")
    told = alice.get(f"/v1/jobs/{job}/events").json()["events"]
    assert "Cancelled by alice." in [one["what"] for one in told]
    assert "cancelled already" in alice.post(f"/v1/jobs/{job}/cancel").json()["jobs"][job]


def test_values_of_variables_and_secrets_are_never_shown(alice: httpx.Client, admin: httpx.Client) -> None:
    (job,) = submit(alice, {"envs": {"DB": "hunter2"}, "secrets": ["WANDB_KEY"]})
    answers = [alice.get(f"/v1/jobs/{job}"), admin.get("/v1/journal", params={"limit": 10_000}), admin.get("/v1/audit")]
    assert all("hunter2" not in answer.text for answer in answers)
    assert answers[0].json()["task"]["envs"] == ["DB"]
    assert answers[0].json()["task"]["secrets"] == ["WANDB_KEY"]
    alice.post(f"/v1/jobs/{job}/cancel")


def test_an_argument_stays_an_argument(alice: httpx.Client) -> None:
    words = ["echo", "$(rm -rf /); `id` && true | cat > x", "--flag=a b", "'"]
    (job,) = submit(alice, {"run": words})
    assert alice.get(f"/v1/jobs/{job}").json()["task"]["run"] == words
    alice.post(f"/v1/jobs/{job}/cancel")


def test_a_dry_run_takes_nothing(alice: httpx.Client) -> None:
    before = alice.get("/v1/jobs", params={"all": True}).json()["total"]
    answer = alice.post("/v1/jobs", params={"dry_run": True}, json=[{"run": "true", "name": "dry"}])
    assert answer.json()["ids"][0].startswith("dry-")
    assert alice.get("/v1/jobs", params={"all": True}).json()["total"] == before
    assert "ask for fewer" in error_of(
        alice.post("/v1/jobs", params={"dry_run": True}, json=[{"run": "true", "resources": {"gpus": 5}}]), 400
    )


def test_jobs_submitted_at_once_are_all_there_under_names_of_their_own(alone: Live) -> None:
    alice = alone.person("alice")
    with ThreadPoolExecutor(16) as pool:
        ids = [one for found in pool.map(lambda _: submit(alice, {}, {}), range(40)) for one in found]
    assert len(set(ids)) == 80
    assert alice.get("/v1/jobs").json()["total"] == 80


def test_all_jobs_of_a_request_are_taken_or_none(alice: httpx.Client) -> None:
    before = alice.get("/v1/jobs", params={"all": True}).json()["total"]
    error = error_of(
        alice.post("/v1/jobs", json=[{"run": "true"}, {"run": "true", "resources": {"gpus": "h100:1"}}]), 400
    )
    assert "There are GPUs of the types v100, k80." in error
    assert alice.get("/v1/jobs", params={"all": True}).json()["total"] == before


def test_what_is_wrong_with_a_job_is_told_with_a_hint(alice: httpx.Client) -> None:
    answer = alice.post("/v1/jobs", json=[{"run": "true"}, {"run": "true", "resources": {"gpu": 1}}])
    assert error_of(answer, 422) == "Job 2: resources.gpu is not a key of a job. Did you mean 'gpus'?"
    assert "cannot be a name" in error_of(alice.post("/v1/jobs", json=[{"run": "true", "name": "../../etc"}]), 422)
    assert error_of(alice.post("/v1/jobs", json=[{"run": []}]), 422).startswith("Job 1: run: it must have at least 1")
    plain = alice.post("/v1/jobs", content='[{"run": "true"}]', headers={"Content-Type": "text/plain"})
    assert "`Content-Type: application/json`" in error_of(plain, 422)
    assert "it must be a list" in error_of(alice.post("/v1/jobs", json={"run": "true"}), 422)


def test_a_secret_that_nobody_keeps_is_refused_at_once(alone: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    alice = alone.person("alice")
    monkeypatch.setattr(
        alone.backend, "secrets", lambda names: {name: "x" for name in names if name == "users/alice/KEPT"}
    )
    submit(alice, {"secrets": ["KEPT"]})
    for params in ({}, {"dry_run": True}):
        answer = alice.post("/v1/jobs", json=[{"run": "x"}, {"run": "x", "secrets": ["KEPT", "LOST"]}], params=params)
        assert "has no secret 'LOST'" in error_of(answer, 400)
    assert alice.get("/v1/jobs").json()["total"] == 1


def test_lists_are_filtered_on_the_server(alone: Live) -> None:
    alice, admin = alone.person("alice"), alone.person("root", Role.ADMIN)
    running = submit(alice, {"app": "grid", "resources": {"gpus": 4}}, {"app": "grid", "resources": {"gpus": 4}})
    (waiting,) = submit(admin, {"queue": "team/b", "resources": {"gpus": 4}})
    for job in running:
        in_state(admin, job, "running")

    def ids(**wanted: Any) -> list[str]:
        return [one["id"] for one in admin.get("/v1/jobs", params=wanted).json()["jobs"]]

    assert ids(state="running") == running
    assert ids(state="waiting,held") == [waiting]
    assert ids(user="alice", app="grid") == running
    assert ids(queue="team") == [waiting]
    assert ids(queue="tea") == []
    assert ids(limit=1) == running[:1], "what runs matters most"
    assert ids(since="1h") == [*running, waiting]
    assert ids(since="0") == []
    (only,) = admin.get("/v1/jobs", params={"fields": "id,state", "state": "waiting"}).json()["jobs"]
    assert only == {"id": waiting, "state": "waiting"}
    alice.post("/v1/jobs/cancel", json={"ids": running})
    in_state(admin, running[0], "cancelled")
    assert running[0] not in ids()
    assert running[0] in ids(all=True)
    assert ids(state="cancelled") == running


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [({"state": "runing"}, "'running'"), ({"fields": "id,quue"}, "'queue'"), ({"since": "yesterday"}, "30m")],
)
def test_a_list_that_cannot_be_made_says_why(alice: httpx.Client, wanted: dict[str, str], hint: str) -> None:
    assert hint in error_of(alice.get("/v1/jobs", params=wanted), 400)


def test_why_gives_the_reason_and_its_numbers(alone: Live) -> None:
    alice = alone.person("alice")
    first, second = submit(alice, *[{"resources": {"gpus": "v100:3"}}] * 2)
    in_state(alice, first, "running")
    told = eventually(lambda: (w := alice.get(f"/v1/jobs/{second}/why").json())["reason"] == "NoFreeGpus" and w)
    assert (told["numbers"]["gpus"], told["numbers"]["free"]) == (3, 1)
    assert "needs 3 GPUs" in told["sentence"]


def test_jobs_are_held_and_released(alice: httpx.Client) -> None:
    (job,) = submit(alice)
    in_state(alice, job, "running")
    assert alice.post(f"/v1/jobs/{job}/hold").json() == {"jobs": {job: "done"}}
    assert in_state(alice, job, "held")["why"]["reason"] == "Held"
    alice.post(f"/v1/jobs/{job}/release")
    assert in_state(alice, job, "running")["attempt"] == 2
    alice.post(f"/v1/jobs/{job}/cancel")


def test_events_tell_who_preempted_whom_and_why(tmp_path: Path) -> None:
    with live(tmp_path, policy="srtf", script=FakeJob(lasts_s=100.0)) as running:
        alice, bob = running.person("alice"), running.person("bob")
        (victim,) = submit(alice, {"resources": {"gpus": "v100:4"}, "estimate": {"duration": "10h"}})
        in_state(alice, victim, "running")
        (taker,) = submit(bob, {"resources": {"gpus": "v100:4"}, "estimate": {"duration": "1m"}})
        in_state(bob, taker, "running")
        told = {one["kind"]: one["what"] for one in alice.get(f"/v1/jobs/{victim}/events").json()["events"]}
        assert told["preempted"] == (
            "Attempt 1 was told to stop: preempted by another user's job, which gets its GPUs. "
            "Jobs with less work left go first."
        ), "who may not see a job is not told its name"
        member = running.person("carol", Role.MEMBER)
        told = {one["kind"]: one["what"] for one in member.get(f"/v1/jobs/{victim}/events").json()["events"]}
        assert f"preempted by job {taker} of bob, which gets its GPUs." in told["preempted"]
        (attempt,) = alice.get(f"/v1/jobs/{victim}").json()["attempts"]
        assert (attempt["stopped_because"], attempt["end"]) == ("preempted", "stopped")


# ----------------------------------------------------------------- who may what


def test_anothers_job_is_as_good_as_none(alice: httpx.Client, bob: httpx.Client, service: Live) -> None:
    (job,) = submit(alice)
    (own,) = submit(bob)
    in_state(alice, job, "running")
    in_state(bob, own, "running")
    for path in ("", "/why", "/events", "/logs", "/logs?follow=true"):
        missing = error_of(bob.get(f"/v1/jobs/nobody-999{path}"), 404)
        assert error_of(bob.get(f"/v1/jobs/{job}{path}"), 404) == missing.replace("nobody-999", job)
    for what in ("cancel", "hold", "release"):
        error_of(bob.post(f"/v1/jobs/{job}/{what}"), 404)
    for what in ("cancel", "hold", "release"):
        error_of(bob.post(f"/v1/jobs/{what}", json={"ids": [own, job]}), 404)
    assert in_state(bob, own, "running"), "none of them is cancelled or held"
    assert job not in bob.get("/v1/jobs", params={"all": True}).text
    assert bob.get("/v1/jobs", params={"user": "alice"}).json()["jobs"] == []
    assert job not in bob.get("/v1/nodes").text
    assert own in bob.get("/v1/nodes").text
    assert bob.post("/v1/jobs/hold", json={"ids": [own]}).json() == {"jobs": {own: "done"}}
    assert bob.post("/v1/jobs/release", json={"ids": [own]}).json() == {"jobs": {own: "done"}}
    for client, gone in ((alice, job), (bob, own)):
        client.post(f"/v1/jobs/{gone}/cancel")


def test_a_viewer_sees_everything_and_changes_nothing(alice: httpx.Client, viewer: httpx.Client) -> None:
    (job,) = submit(alice)
    assert viewer.get(f"/v1/jobs/{job}").status_code == 200
    assert viewer.get("/v1/journal").status_code == 200
    error_of(viewer.post("/v1/jobs", json=[{"run": "true"}]), 403)
    error_of(viewer.post(f"/v1/jobs/{job}/cancel"), 403)
    error_of(viewer.get("/v1/audit"), 403)
    alice.post(f"/v1/jobs/{job}/cancel")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/tokens", None),
        ("POST", "/v1/tokens", {"user": "alice", "role": "admin"}),
        ("DELETE", "/v1/tokens/00000000", None),
        ("GET", "/v1/audit", None),
        ("PUT", "/v1/settings", {"policy": "fifo"}),
        ("POST", "/v1/nodes/v100/drain", {"evict": True}),
        ("POST", "/v1/nodes/v100/lost", {"sure": True}),
        ("POST", "/v1/nodes/v100/resume", None),
        ("GET", "/v1/journal", None),
        ("GET", "/v1/beginning", None),
    ],
)
def test_users_do_not_operate(alice: httpx.Client, method: str, path: str, body: Any) -> None:
    error_of(alice.request(method, path, json=body), 403)


ENDPOINTS = [
    ("GET", "/v1/jobs"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs/a-1"),
    ("POST", "/v1/jobs/a-1/cancel"),
    ("POST", "/v1/jobs/cancel"),
    ("POST", "/v1/jobs/hold"),
    ("GET", "/v1/jobs/a-1/logs"),
    ("GET", "/v1/jobs/a-1/events"),
    ("GET", "/v1/stream"),
    ("GET", "/v1/share"),
    ("GET", "/v1/nodes"),
    ("POST", "/v1/nodes/v100/drain"),
    ("POST", "/v1/nodes/v100/lost"),
    ("GET", "/v1/settings"),
    ("PUT", "/v1/settings"),
    ("GET", "/v1/tokens"),
    ("GET", "/v1/audit"),
    ("GET", "/v1/journal"),
    ("GET", "/v1/beginning"),
    ("POST", "/v1/attempts/a-1/1/progress"),
    ("GET", "/metrics"),
]


def test_nothing_is_open_but_health_and_the_description(alone: Live) -> None:
    nobody, wrong = alone.client(None), alone.client("hor_wrong")
    asked = {path for path in alone.app.openapi()["paths"] if path != "/healthz"}
    assert {path for _, path in ENDPOINTS} <= {path.replace("{job}", "a-1") for path in asked} | {
        path for _, path in ENDPOINTS if "v100" in path or "a-1" in path
    }
    for method, path in ENDPOINTS:
        error_of(nobody.request(method, path, json={}), 401)
    for method, path in ENDPOINTS[:FAILURES]:
        error_of(wrong.request(method, path, json={}), 401)
    assert nobody.get("/healthz").json() == {"ok": True, "error": ""}
    assert nobody.get("/openapi.json").json()["info"]["title"] == "Horae"


def test_every_endpoint_of_the_description_is_asked_without_a_token(alone: Live) -> None:
    """Whatever is added later must not be open by mistake."""
    nobody = alone.client(None)
    for path, methods in alone.app.openapi()["paths"].items():
        real = re.sub(r"\{\w+\}", "1", path)
        for method in methods:
            answer = nobody.request(method, real)
            assert answer.status_code == ({"/healthz": 200, "/v1/proof": 422}.get(path, 401)), f"{method} {path}"


# ----------------------------------------------------------------------- tokens


def test_a_token_is_made_used_and_revoked(alone: Live) -> None:
    admin = alone.person("root", Role.ADMIN)
    made = admin.post("/v1/tokens", json={"user": "carol", "role": "user", "expires": "30d"}).json()
    assert made["token"].startswith("hor_")
    carol = alone.client(made["token"])
    (job,) = submit(carol)
    assert carol.get(f"/v1/jobs/{job}").json()["user"] == "carol"
    listed = admin.get("/v1/tokens")
    assert made["token"] not in listed.text
    assert [one["user"] for one in listed.json()["tokens"]] == ["root", "carol"]
    files = b"".join(path.read_bytes() for path in alone.folder.glob("journal.db*"))
    assert made["token"].encode() not in files, "only its hash is kept"
    assert admin.delete(f"/v1/tokens/{made['id']}").json()["tokens"][1]["revoked"] is True
    assert "revoked" in error_of(carol.get("/v1/jobs"), 401)
    error_of(admin.delete("/v1/tokens/../../x"), 404)
    acts = [(act["actor"], act["action"]) for act in admin.get("/v1/audit").json()["acts"]]
    assert acts == [("root", "make token"), ("carol", "submit"), ("root", "revoke token")]


def test_a_token_expires(alone: Live) -> None:
    token = alone.token("dave", lasts_s=0.2)
    dave = alone.client(token)
    eventually(lambda: dave.get("/v1/jobs").status_code == 401)


@pytest.mark.parametrize(
    "body",
    [
        {"user": "a/../b"},
        {"user": ""},
        {"user": "x" * 100},
        {"user": "a", "role": "god"},
        {"user": "a", "expires": "0"},
    ],
)
def test_a_token_that_makes_no_sense_is_refused(admin: httpx.Client, body: dict[str, Any]) -> None:
    assert admin.post("/v1/tokens", json=body).status_code in (400, 422)


def test_guessing_is_slowed_down_but_a_good_token_is_always_heard(alone: Live) -> None:
    good, wrong = alone.person("alice"), alone.client("hor_guess")
    codes = [wrong.get("/v1/jobs").status_code for _ in range(FAILURES + 3)]
    assert codes == [401] * FAILURES + [429] * 3
    assert int(wrong.get("/v1/jobs").headers["Retry-After"]) > 0
    assert good.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize("header", ["Bearer", "Basic YTpi", "bearer x", "Bearer ünïcode"])
def test_strange_logins_are_just_wrong(service: Live, header: str) -> None:
    answer = httpx.get(
        f"{service.url}/v1/jobs", headers={"Authorization": header.encode()}, trust_env=False, verify=False
    )
    assert answer.status_code in (400, 401, 429)


# ---------------------------------------------------------------- tricks, limits


@pytest.mark.parametrize(
    "name",
    ["..", "../../etc/passwd", "%2e%2e%2fetc", "a%00b", "a%2fb", "%ff%fe", "a;id", "$(id)", "a" * 500, "%0d%0aX:1"],
)
def test_tricks_in_names_lead_nowhere(admin: httpx.Client, name: str) -> None:
    for path in (f"/v1/jobs/{name}", f"/v1/jobs/{name}/logs", f"/v1/jobs/{name}/events"):
        assert admin.get(path).status_code in (400, 404, 405, 422)
    for path in (f"/v1/jobs/{name}/cancel", f"/v1/nodes/{name}/drain", f"/v1/attempts/{name}/1/progress"):
        assert admin.post(path, json={}).status_code in (400, 401, 404, 405, 422, 429)


@pytest.mark.parametrize("name", ["..", "a/b", "a\x00", "A", "-a", "a" * 41, "a..b", "", "ä", "a\n"])
def test_a_job_of_a_dangerous_name_is_refused(alice: httpx.Client, name: str) -> None:
    error_of(alice.post("/v1/jobs", json=[{"run": "true", "name": name}]), 422)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'[{"run": "\\ud800"}]',
        b'[{"run": "x", "\\ud800": 1}]',
        b'[{"run": "x", "weight": 1e999}]',
        b'[{"run": "x", "weight": NaN}]',
        b'[{"run": "x", "resources": {"gpus": ' + b"9" * 5000 + b"}}]",
        b"\xff\xfe",
        b"{",
        b"",
        b"null",
    ],
)
def test_bodies_that_are_no_jobs_are_refused(alice: httpx.Client, body: bytes) -> None:
    answer = alice.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert list(answer.json()) == ["error"]
    assert len(answer.text) < 2000


def test_a_request_has_limits(alice: httpx.Client) -> None:
    assert "at most 1000" in error_of(alice.post("/v1/jobs", json=[{"run": "true"}] * 1001), 422)
    large = b" " * (5 * 2**20)
    assert "4 MiB" in error_of(alice.post("/v1/jobs", content=large), 413)
    assert "4 MiB" in error_of(alice.post("/v1/jobs", content=iter([large[: 2**20]] * 5)), 413)
    error_of(alice.get("/v1/jobs", params={"limit": 10**9}), 422)


def test_what_is_not_there_is_told(admin: httpx.Client) -> None:
    assert "/openapi.json" in error_of(admin.get("/v2/jobs"), 404)
    answer = admin.delete("/v1/jobs")
    error_of(answer, 405)
    assert "GET" in answer.headers["Allow"]


# -------------------------------------------------------------------- operators


def test_a_node_is_drained_and_comes_back(alone: Live) -> None:
    admin = alone.person("root", Role.ADMIN)
    (job,) = submit(admin, {"resources": {"gpus": "v100:1"}})
    in_state(admin, job, "running")
    assert admin.post("/v1/nodes/v100/drain", json={"evict": True}).json()["state"] == "draining"
    assert in_state(admin, job, "waiting")["attempts"][0]["stopped_because"] == "drained"
    assert admin.post("/v1/nodes/v100/resume").json()["state"] == "up"
    in_state(admin, job, "running")
    nodes = {one["node"]: one for one in admin.get("/v1/nodes").json()["nodes"]}
    assert nodes["v100"] == {
        "node": "v100",
        "gpu_type": "v100",
        "gpus": 4,
        "rack": "rack-0",
        "used": 1,
        "state": "up",
        "why": "",
        "jobs": {job: 1},
        **dict.fromkeys(("cpus", "memory_mb", "used_cpus", "used_memory_mb"), 0),
    }
    assert "Did you mean 'v100'" in error_of(admin.post("/v1/nodes/v10/drain", json={}), 404)


def test_a_node_is_lost_only_for_those_who_are_sure(alone: Live) -> None:
    admin = alone.person("root", Role.ADMIN)
    (job,) = submit(admin, {"resources": {"gpus": "v100:1"}})
    in_state(admin, job, "running")
    error_of(admin.post("/v1/nodes/v100/lost", json={}), 422)
    error_of(admin.post("/v1/nodes/v100/lost", json={"sure": False}), 422)
    assert admin.get("/v1/nodes").json()["nodes"][0]["state"] == "up"
    assert admin.post("/v1/nodes/v100/lost", json={"sure": True}).json()["state"] == "draining"
    in_state(admin, job, "waiting")
    assert admin.get("/v1/audit").json()["acts"][-1]["action"] == "lose"
    admin.post("/v1/nodes/v100/resume")


def test_a_new_policy_that_ignores_speeds_of_the_jobs_is_told(alone: Live) -> None:
    admin = alone.person("root", Role.ADMIN)
    assert "note" not in admin.put("/v1/settings", json={"policy": "srsf"}).json(), "no job, no speeds"
    (job,) = submit(admin, {"estimate": {"steps": 1000, "throughput": {"v100": 4.0, "k80": 1.0}}})
    told = admin.put("/v1/settings", json={"policy": "las"}).json()["note"]
    assert told.startswith(
        f"las treats GPU types as alike, and jobs are not equally fast on them (job {job} is 4 times as "
    )
    assert "note" not in admin.put("/v1/settings", json={"policy": "max-min"}).json()
    blind = admin.put("/v1/settings", json={"settings": {"aware": "false"}}).json()
    assert (blind["policy"], "leave aware=false out" in blind["note"]) == ("max-min", True)


def test_the_policy_and_the_queues_are_changed(alone: Live) -> None:
    admin = alone.person("root", Role.ADMIN)
    queue: dict[str, Any] = {"path": "team/a", "weight": 2.0, "rule": "fairness", "gpus_min": 0, "gpus_max": 2}
    queue |= {"members": [], "admins": []}
    changed = admin.put("/v1/settings", json={"policy": "las", "queues": [queue]})
    assert changed.json() == {"policy": "las", "settings": {}, "queues": [queue], "unknown_queues": "open"}
    assert admin.get("/v1/settings").json() == changed.json()
    assert "Did you mean" in error_of(admin.put("/v1/settings", json={"policy": "fifa"}), 400)
    error_of(admin.put("/v1/settings", json={"settings": {"nonsense": "1"}}), 400)
    unreadable = {"policy": "tiresias-gittins", "settings": {"samples": "a\0b"}}
    error_of(admin.put("/v1/settings", json=unreadable), 422)
    error_of(admin.put("/v1/settings", json={"queues": [{**queue, "gpus_min": 3}]}), 400)
    for path in ("..", "../a", "a//b", "a b"):
        assert "cannot be a queue" in error_of(
            admin.put("/v1/settings", json={"queues": [{**queue, "path": path}]}), 422
        )
    assert admin.get("/v1/settings").json() == changed.json()
    assert "quota" in error_of(
        admin.post("/v1/jobs", json=[{"run": "x", "queue": "team/a", "resources": {"gpus": 3}}]), 400
    )
    shares = {one["queue"]: one for one in admin.get("/v1/share").json()["queues"]}
    assert (shares["team/a"]["weight"], shares["team/a"]["gpus_max"]) == (2.0, 2)


def test_the_journal_can_be_read_page_by_page(alone: Live) -> None:
    admin = alone.person("root", Role.ADMIN)
    (job,) = submit(admin)
    in_state(admin, job, "running")
    records, after = [], 0
    while page := admin.get("/v1/journal", params={"after": after, "limit": 2}).json()["records"]:
        assert len(page) <= 2
        records += page
        after = page[-1]["seq"]
    assert [one["seq"] for one in records] == list(range(1, len(records) + 1))
    decoded = [decode({key: value for key, value in one.items() if key != "seq"}) for one in records]
    assert [one.spec.id for one in decoded if isinstance(one, JobSubmitted)] == [job]
    beginning = admin.get("/v1/beginning").json()
    assert (beginning["policy"], len(beginning["nodes"])) == ("fifo-backfill", 2)
    assert 0 <= beginning["now_s"] - records[-1]["at_s"] < 60, "whoever reads may have another clock"


# --------------------------------------------------------------------- attempts


def test_an_attempt_reports_with_its_own_token_alone(alone: Live) -> None:
    alice = alone.person("alice")
    (job,) = submit(alice, {"estimate": {"steps": 100}})
    in_state(alice, job, "running")
    path = f"/v1/attempts/{job}/1/progress"
    own = alone.client(alone.tokens.of_job(job, 1))
    assert own.post(path, json={"step": 25, "total": 100, "loss": 0.5, "ready": True}).json() == {"stop": False}
    record = alice.get(f"/v1/jobs/{job}").json()
    assert record["progress"] == pytest.approx(0.25, abs=0.05)
    assert record["loss"] == 0.5
    error_of(alice.post(path, json={"step": 30}), 401)
    error_of(alone.client(alone.tokens.of_job(job, 2)).post(path, json={"step": 30}), 401)
    error_of(own.post(f"/v1/attempts/{job}/2/progress", json={"step": 30}), 401)
    error_of(own.get("/v1/jobs"), 401)
    error_of(own.post(path, content=b'{"step": NaN}'), 422)
    alice.post(f"/v1/jobs/{job}/cancel")
    in_state(alice, job, "cancelled")
    error_of(own.post(path, json={"step": 50}), 401)


def test_an_attempt_that_is_to_stop_is_told_so(tmp_path: Path) -> None:
    with live(tmp_path, script=FakeJob(stop_s=60.0)) as running:
        alice = running.person("alice")
        (job,) = submit(alice)
        in_state(alice, job, "running")
        own = running.client(running.tokens.of_job(job, 1))
        alice.post(f"/v1/jobs/{job}/hold")
        in_state(alice, job, "holding")
        assert own.post(f"/v1/attempts/{job}/1/progress", json={"step": 1}).json() == {"stop": True}


def test_a_report_that_it_is_ready_starts_the_attempt(tmp_path: Path) -> None:
    with live(tmp_path, script=FakeJob(ready_s=60.0)) as running:
        alice = running.person("alice")
        (job,) = submit(alice)
        in_state(alice, job, "launching")
        own = running.client(running.tokens.of_job(job, 1))
        own.post(f"/v1/attempts/{job}/1/progress", json={"step": 0, "ready": True})
        in_state(alice, job, "running")


# ------------------------------------------------------------------------ health


def test_metrics_are_those_of_this_moment(tmp_path: Path) -> None:
    with live(tmp_path, script=FakeJob(lasts_s=0.2)) as running:
        alice = running.person("alice")
        (job,) = submit(alice, {"queue": "team/a"})
        in_state(alice, job, "finished")
        running.backend.world.default = FakeJob()
        submit(alice, {"queue": "team/a", "resources": {"gpus": "k80:4"}})
        text = alice.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['horae_gpus{type="k80"}'] == "4.0"
    assert float(values["horae_decision_seconds_count"]) >= 1
    assert float(values["horae_launches_total"]) >= 1
    assert float(values["horae_loop_age_seconds"]) < 10
    assert float(values["horae_journal_sequence"]) >= 5
    assert values['horae_stops_total{why="preempted"}'] == "0.0"
    assert values["horae_preemptions_total"] == "0.0"
    jobs = [float(value) for name, value in values.items() if name.startswith('horae_jobs{queue="team/a"')]
    assert sum(jobs) == 1
    assert 0 < float(values['horae_rho_mean{queue="team/a"}']) < 10


def test_trouble_with_the_journal_is_told_and_passes(alone: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, admin = alone.person("alice"), alone.person("root", Role.ADMIN)

    def full(*_: Any) -> int:
        raise StoreTrouble("No space is left at /secret/place: free some space.")

    with monkeypatch.context() as broken:
        broken.setattr(alone.store, "append", full)
        said = error_of(alice.post("/v1/jobs", json=[{"run": "true"}]), 503)
        assert said.startswith("The journal cannot be used now")
        assert "/secret/place" not in said, "only admins may know where the journal is"
        assert "/secret/place" in error_of(admin.post("/v1/jobs", json=[{"run": "true"}]), 503)
        assert alice.get("/healthz").status_code == 503
        assert alice.get("/v1/jobs").json()["total"] == 0
    submit(alice)
    eventually(lambda: alice.get("/healthz").status_code == 200)


def test_a_bug_is_one_line_and_a_report(alone: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(ServiceViews, "shares", lambda _: 1 / 0)
    alice = alone.person("alice")
    error = error_of(alice.get("/v1/share"), 500)
    assert "bug in horae (ZeroDivisionError)" in error
    (report,) = (tmp_path / "state" / "horae").iterdir()
    assert report.name in error
    assert "ZeroDivisionError" in report.read_text()
    assert alice.get("/v1/jobs").status_code == 200


def test_the_description_is_whole(service: Live) -> None:
    described = service.app.openapi()
    for path, methods in described["paths"].items():
        for method, about in methods.items():
            assert about["summary"], f"{method} {path}"
            assert about["description"], f"{method} {path}"
            assert any(code.startswith("2") for code in about["responses"])
    assert "resources" in json.dumps(described["components"]["schemas"]["JobFile"])
