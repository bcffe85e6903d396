"""The commands against a real service with virtual GPUs and real processes."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from horae.cli.live.exit_codes import NOT_FINISHED
from tests.cli.conftest import Answer, Horae

#: Prints its words, then a line every tenth of a second, until it is told to stop or has printed enough.
PROGRAM = """\
import json, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
print(json.dumps(sys.argv[2:]), flush=True)
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.1)
"""


#: States of a job whose processes live and are to live on.
UP = ("launching", "running")


@dataclass(frozen=True)
class Real:
    """A service that runs, and the folder that jobs are submitted from."""

    url: str
    token_file: str
    folder: Path


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A service with four GPUs, two of each type."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "program.py").write_text(PROGRAM)
    words = ["serve", "--gpus", "v100:2,k80:2", "--port", "0", "--state", str(folder / "state"), "-o", "json"]
    words += ["--isolation", "none"]  # several people submit jobs
    with subprocess.Popen(
        [sys.executable, "-m", "horae", *words], stdout=subprocess.PIPE, text=True, cwd=folder
    ) as server:
        assert server.stdout is not None
        ready, _, _ = select.select([server.stdout], [], [], 180)
        assert ready, "the service did not start"
        said = json.loads(server.stdout.readline())
        yield Real(said["url"], said["token_file"], folder)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=30) == 0


@pytest.fixture
def live(real: Real, horae: Horae, monkeypatch: pytest.MonkeyPatch) -> Iterator[Horae]:
    """The command line of somebody who stands in the folder; what they leave behind is cancelled."""
    monkeypatch.setenv("HORAE_URL", real.url)
    monkeypatch.setenv("HORAE_TOKEN_FILE", real.token_file)
    monkeypatch.delenv("HORAE_TOKEN", raising=False)
    monkeypatch.chdir(real.folder)
    yield horae
    jobs = [job["id"] for job in horae("queue", "-o", "json").json["jobs"]]
    if jobs:
        horae("cancel", *jobs)
        assert horae("wait", *jobs, "--timeout", "60").code != NOT_FINISHED


def submitted(live: Horae, *words: object) -> list[str]:
    answer = live("submit", "-o", "json", *words)
    assert answer.code == 0, answer.err
    ids: list[str] = answer.json["ids"]
    return ids


def program(lines: int, *words: str) -> list[str]:
    return ["--", sys.executable, "program.py", str(lines), *words]


def until(live: Horae, job: str, *states: str) -> dict[str, Any]:
    """The job, once it is in one of these states."""
    end_s = time.monotonic() + 60
    while (record := live("status", job, "-o", "json").json)["state"] not in states:
        assert time.monotonic() < end_s, f"{job} is still {record['state']}"
        time.sleep(0.1)
    assert isinstance(record, dict)
    return record


def test_words_reach_the_program_as_they_were_typed(live: Horae, real: Real) -> None:
    words = ["a; touch broken", "$(touch broken)", "`touch broken`", "> broken", "*", "", "it's", "{x}", "--", "ü"]
    (job,) = submitted(live, "-n", "words", "--gpus", "v100:1", *program(3, *words))
    answer = live("logs", "-f", job)
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out.splitlines()[0]) == words
    assert answer.out.splitlines()[1:] == ["line 0", "line 1", "line 2"]
    assert not (real.folder / "broken").exists()
    assert live("wait", job).out == f"{job}: finished\n"
    assert live("logs", job, "--tail", "1").out == "line 2\n"


def test_a_trial_has_its_values_and_an_end_each(live: Horae) -> None:
    jobs = submitted(live, "--grid", "lr=0.1,0.01", "--env", "LR={lr}", *program(1, "--lr", "{lr}"))
    assert live("wait", *jobs, "--timeout", "60").code == 0
    assert [json.loads(live("logs", job).out.splitlines()[0]) for job in jobs] == [["--lr", "0.1"], ["--lr", "0.01"]]


@pytest.mark.parametrize(
    ("words", "code"),
    [(["true"], 0), (["false"], 100), (["sh", "-c", "exit 3"], 100), (["no-such-program"], 100)],
)
def test_the_end_of_a_job_is_an_exit_code(live: Horae, words: list[str], code: int) -> None:
    assert live("submit", "--wait", "--", *words).code == code


def test_one_that_waits_is_told_why_and_runs_when_there_is_room(live: Horae) -> None:
    (first,) = submitted(live, "-n", "first", "--gpus", "v100:2", *program(600))
    (second,) = submitted(live, "-n", "second", "--gpus", "v100:2", *program(1))
    until(live, first, *UP)
    end_s = time.monotonic() + 30
    while "NotYetConsidered" in (told := live("why", second)).out and time.monotonic() < end_s:
        time.sleep(0.1)
    assert told.out.startswith(f"{second} waits: NoFreeGpus (decided ")
    assert "It needs 2 GPUs of one type, and of a type it accepts none is free" in told.out
    assert live("logs", second).code == 101
    assert live("wait", second, "--timeout", "0.1s").code == 101
    lines = {line.split()[0]: line for line in live("queue").out.splitlines() if line.split()}
    assert "v100[0,1]" in lines[first]
    assert "NoFreeGpus" in lines[second]
    assert live("cancel", first).out == f"{first}: cancelled\n"
    assert live("wait", first, "--timeout", "60").code == 103
    assert live("wait", second, "--timeout", "60").code == 0
    assert live("logs", first).code == 103
    assert f"{first} does not wait: it was cancelled" in live("why", first).out
    assert live("cancel", first).code == 1
    events = live("events", second, "-o", "json").json["events"]
    assert (events[0]["kind"], events[-1]["kind"]) == ("submitted", "finished")


def reason_told(live: Horae, name: str, code: str) -> str:
    """What the command says once it gives this code."""
    until_s = time.monotonic() + 30
    while f"{name} waits: {code} (" not in (said := live("why", name)).out and time.monotonic() < until_s:
        time.sleep(0.1)
    assert said.out.startswith(f"{name} waits: {code} ("), said
    return said.out


def test_the_command_tells_what_is_in_the_way_and_it_was(live: Horae, tmp_path: Path) -> None:
    assert live("settings", "set", "fifo").code == 0
    (first,) = submitted(live, "-n", "first", "--gpus", "v100:1", *program(600))
    (wide,) = submitted(live, "-n", "wide", "--gpus", "v100:2", *program(1))
    (small,) = submitted(live, "-n", "small", "--gpus", "v100:1", *program(1))
    until(live, first, *UP)
    assert "does not wait: it is" in live("why", first).out
    assert "It needs 2 GPUs of one type, and of a type it accepts 1 is free" in reason_told(live, wide, "NoFreeGpus")
    assert "1 job waits before it, and 1 job has the 1 GPU" in reason_told(live, small, "BehindEarlier")
    assert live("hold", small).code == 0
    assert f"`horae release {small}`" in reason_told(live, small, "Held")
    queues = tmp_path / "queues.yaml"
    queues.write_text("queues: {default: {gpus_max: 2}}\n")
    assert live("settings", "set", "fifo-backfill", "--queues", queues).code == 0
    assert "Queue default has 1 of at most 2 GPUs and the job needs 2" in reason_told(live, wide, "OverQuota")
    queues.write_text("queues: {default: {gpus_max: 100}}\n")
    assert live("settings", "set", "fifo-backfill", "--queues", queues).code == 0
    assert live("nodes", "drain", "v100").code == 0
    assert "the cluster now has 0; return a node" in reason_told(live, wide, "ClusterTooSmall")
    assert live("nodes", "resume", "v100").code == 0
    assert live("cancel", first).code == 0
    assert live("wait", wide, "--timeout", "60").code == 0
    assert live("release", small).code == 0
    assert live("wait", small, "--timeout", "60").code == 0
    assert f"{small} does not wait: it finished" in live("why", small).out


def test_a_held_job_stays_until_it_is_released(live: Horae) -> None:
    (job,) = submitted(live, "--gpus", "k80:1", *program(600))
    until(live, job, *UP)
    assert live("hold", job).code == 0
    until(live, job, "held")
    assert f"Next:\n  horae release {job}  let it run" in live("why", job).out
    assert live("release", job).code == 0
    assert until(live, job, *UP)["attempt"] == 2


def test_a_drained_node_takes_nothing_until_it_is_resumed(live: Horae) -> None:
    assert live("nodes", "drain", "v100").code == 0
    try:
        (job,) = submitted(live, "--gpus", "v100:1", "--", "true")
        states = {node["node"]: node["state"] for node in live("nodes", "-o", "json").json["nodes"]}
        assert states == {"v100": "draining", "k80": "up"}
        assert live("wait", job, "--timeout", "1s").code == 101
    finally:
        assert live("nodes", "resume", "v100").code == 0
    assert live("wait", job, "--timeout", "60").code == 0


def test_an_evicted_job_runs_elsewhere(live: Horae) -> None:
    (job,) = submitted(live, "--gpus", "v100:1,k80:1", *program(600))
    (place,) = until(live, job, *UP)["on"]
    node = place.partition("[")[0]
    assert live("nodes", "drain", node, "--evict").code == 0
    try:
        end_s = time.monotonic() + 60
        while not (on := until(live, job, *UP)["on"]) or on[0].startswith(node):
            assert time.monotonic() < end_s
            time.sleep(0.1)
    finally:
        assert live("nodes", "resume", node).code == 0


def test_a_user_sees_only_what_is_theirs(live: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = submitted(live, "--", "true")
    token = live("token", "create", "ana", "--role", "user", "--expires", "1h", "-o", "json").json
    with monkeypatch.context() as as_ana:
        as_ana.setenv("HORAE_TOKEN", token["token"])
        assert live("queue", "--all", "-o", "json").json == {"jobs": [], "total": 0, "states": {}}
        for command in ("status", "why", "events", "cancel"):
            assert "There is no job" in live(command, job).err
        assert live("logs", job).code == live("wait", job).code == 102
        assert "Only an admin" in live("nodes", "drain", "v100").err
        assert "Only an admin" in live("settings", "set", "las").err
    assert live("token", "revoke", token["id"]).code == 0
    monkeypatch.setenv("HORAE_TOKEN", token["token"])
    refused: Answer = live("queue")
    monkeypatch.delenv("HORAE_TOKEN")
    assert refused.code == 1
    assert "token" in refused.err


def test_policies_and_queues_change_while_it_runs(live: Horae, tmp_path: Path) -> None:
    before = live("settings", "-o", "json").json["policy"]
    file = tmp_path / "queues.yaml"
    file.write_text("queues: {small: {gpus_max: 1}}\n")
    said = live("settings", "set", "las", "--set", "quantum=30", "--queues", file, "-o", "json").json
    assert (said["policy"], said["settings"]) == ("las", {"quantum": "30"})
    assert (
        "Queue small may use at most 1 GPU and" in live("submit", "--queue", "small", "--gpus", "2", "--", "true").err
    )
    shares = {one["queue"]: one for one in live("share", "-o", "json").json["queues"]}
    assert shares["small"]["gpus_max"] == 1
    assert live("settings", "set", before).code == 0


def test_a_dry_run_leaves_nothing_behind(live: Horae) -> None:
    total = live("queue", "--all", "-o", "json").json["total"]
    assert live("submit", "--dry-run", "--", "true").code == 0
    assert "There is no GPU of type h100" in live("submit", "--dry-run", "--gpus", "h100:1", "--", "true").err
    assert live("queue", "--all", "-o", "json").json["total"] == total


def test_ctrl_c_leaves_the_job_alone(live: Horae) -> None:
    (job,) = submitted(live, *program(600))
    until(live, job, *UP)
    with subprocess.Popen(
        [sys.executable, "-m", "horae", "logs", "-f", job], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "[]\n"
        os.kill(following.pid, signal.SIGINT)
        _, err = following.communicate(timeout=30)
    assert following.returncode == 130
    assert err == f"interrupted; the job goes on; `horae logs -f {job}` follows it again\n"
    assert live("status", job, "-o", "json").json["state"] in UP
