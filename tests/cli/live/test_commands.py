"""What the other commands ask, print and return."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from horae.cli.live.exit_codes import worst
from horae.cli.live.relative_time import ago, short, until
from horae.cli.live.share_bars import bar
from horae.client.job_records import job_state
from horae.core.cluster import Node
from horae.core.reasons import Reason
from horae.workload.clusters import parse_cluster
from tests.cli.conftest import Horae
from tests.cli.live.conftest import FakeService, detail, job


def row_of(text: str, first: str) -> list[str]:
    """The cells of the line that begins with a word."""
    return next(line.split() for line in text.splitlines() if line.split()[:1] == [first])


# ------------------------------------------------------------------------ queue


def test_the_queue_shows_where_jobs_run_and_why_they_wait(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs"] = {"jobs": [job("a-1", "running"), job("b-2")], "total": 2}
    out = horae("queue").out
    assert row_of(out, "a-1")[1:6] == ["ana", "vision/ana", "running", "4", "v100[0,1,2,3]"]
    assert row_of(out, "a-1")[-3:] == ["25%", "ran", "1m"]
    assert row_of(out, "b-2")[1:6] == ["ana", "vision/ana", "waiting", "4", "2"]
    assert row_of(out, "b-2")[-1] == "NoFreeGpus"
    assert "1 running, 1 waiting" in out


def test_a_job_that_has_its_gpus_waits_no_more(fake: FakeService, horae: Horae) -> None:
    rises = job("a-1", "launching", on=["v100[0]"], ran_s=0.0)
    fake.answers["GET /v1/jobs"] = {"jobs": [rises], "total": 1}
    assert row_of(horae("queue").out, "a-1")[-1] == "starting"


def test_filters_are_the_services_business(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs"] = {"jobs": [], "total": 0}
    horae(
        "queue", "-a", "-u", "ana", "-s", "running", "-s", "Held", "--queue", "a/b", "--app", "x",
        "--since", "7d", "--limit", "5", "--fields", "id,state", "-o", "json",
    )  # fmt: skip
    assert fake.last.query == {
        "all": ["true"],
        "user": ["ana"],
        "state": ["running,held"],
        "queue": ["a/b"],
        "app": ["x"],
        "since": ["7d"],
        "limit": ["5"],
        "fields": ["id,state"],
    }


def test_how_long_jobs_ran_and_have_to_is_told_where_it_is_known(fake: FakeService, horae: Horae) -> None:
    jobs = [job("a-1", "running", left_s=90.0), job("b-2", "running"), job("c-3", "finished")]
    fake.answers["GET /v1/jobs"] = {"jobs": jobs, "total": 3}
    rows = {line.split()[0]: line for line in horae("queue").out.splitlines() if "ran" in line}
    assert "ran 1m, 1m 30s left" in rows["a-1"]
    assert all("left" not in rows[one] for one in ("b-2", "c-3"))
    fake.answers["GET /v1/jobs/a-1"] = detail("a-1", "running", left_s=90.0)
    assert "1m 30s, at its speed so far" in horae("status", "a-1").out


def test_a_narrow_terminal_gets_no_bars_and_nobody_a_column_in_which_nothing_stands(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers["GET /v1/jobs"] = {"jobs": [job("a-1", "running", progress=0.5)], "total": 1}
    wide = horae("queue").out
    assert "50%" in wide
    assert "████" in wide
    assert "ahead" not in wide
    assert "reason" not in wide
    monkeypatch.setattr("horae.cli.live.queue.is_wide", lambda columns: columns <= 80)
    narrow = horae("queue").out
    assert "50%" in narrow
    assert "█" not in narrow


def test_an_empty_queue_and_a_cut_one_say_so(fake: FakeService, horae: Horae) -> None:
    cut = {"jobs": [job()], "total": 1234, "states": {"running": 4, "waiting": 1230}}
    fake.answers["GET /v1/jobs"] = [{"jobs": [], "total": 0}, cut]
    assert "No jobs." in horae("queue").out
    assert "4 running, 1,230 waiting; 1,233 of them are not listed (--limit)" in horae("queue").out


def test_the_queue_for_programs(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs"] = {"jobs": [job("a-1", "running")], "total": 1}
    assert horae("queue", "-o", "json").json == {"jobs": [job("a-1", "running")], "total": 1}
    (record,) = csv.DictReader(io.StringIO(horae("queue", "-o", "csv").out))
    assert (record["id"], record["submitted"]) == ("a-1", "2024-01-01T00:00:00.000+00:00")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-s", "runing"], "No state is called 'runing'. Did you mean 'running'?"),
        (["--since", "yesterday"], "--since: 'yesterday' is not a duration"),
        (["-w", "-o", "json"], "--watch needs a terminal"),
        (["--fields", "id"], "--fields needs -o json or -o csv"),
    ],
)
def test_a_wrong_question_is_not_asked(fake: FakeService, horae: Horae, words: list[str], said: str) -> None:
    answer = horae("queue", *words)
    assert answer.code == 1
    assert said in answer.err
    assert fake.asked == []


def test_names_cannot_command_the_terminal(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs"] = {"jobs": [job(user="\x1b[2Jana\x9b")], "total": 1}
    assert "\\x1b[2Jana\\x9b" in horae("queue").out


def test_a_watched_queue_is_shown_anew_until_ctrl_c(fake: FakeService) -> None:
    fake.answers["GET /v1/jobs"] = [{"jobs": [job("a-1")], "total": 1}, {"jobs": [job("a-1", "running")], "total": 1}]
    screen, terminal = pty.openpty()
    words = [sys.executable, "-m", "horae", "queue", "--watch"]
    env = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen(words, stdout=terminal, stderr=terminal, stdin=terminal, env=env) as program:
        os.close(terminal)
        shown = b""
        end_s = time.monotonic() + 30
        while b"v100[0,1,2,3]" not in shown and time.monotonic() < end_s:
            shown += os.read(screen, 100_000)
        program.send_signal(signal.SIGINT)
        assert program.wait(timeout=60) == 0
    os.close(screen)
    assert b"NoFreeGpus" in shown
    assert b"v100[0,1,2,3]" in shown


# ------------------------------------------------------------------ status, why


def test_why_is_one_reason_and_one_next_step(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail()
    lines = horae("why", "train-1").out.splitlines()
    assert lines[0].startswith("train-1 waits: NoFreeGpus (decided ")
    assert lines[1] == "The sentence of NoFreeGpus."
    assert lines[3:] == ["Next:", "  horae nodes  how many GPUs are taken, and where"]


@pytest.mark.parametrize("reason", [one for one in Reason if one not in (Reason.NONE, Reason.GIVEN_UP)])
def test_every_reason_has_a_next_step(fake: FakeService, horae: Horae, reason: Reason) -> None:
    state = "held" if reason is Reason.HELD else "waiting"
    fake.answers["GET /v1/jobs/train-1"] = detail(state=state, reason=reason.code)
    out = horae("why", "train-1").out
    assert f"train-1 waits: {reason.code}" in out
    assert "Next:\n  horae " in out
    assert "{" not in out


def test_the_job_that_gpus_are_set_aside_for_is_named(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(reason="ReservedForLarger")
    fake.answers["GET /v1/jobs/big-9/why"] = [{"state": "waiting"}, (404, {"error": "There is no job 'big-9'."})]
    assert "horae why big-9" in horae("why", "train-1").out
    assert "horae why big-9" not in horae("why", "train-1").out, "nobody is sent to a job that is not theirs to see"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("running", "train-1 does not wait: it is running on v100[0,1,2,3], first started "),
        ("stopping", "train-1 does not wait: it is being stopped, and will run again later"),
        ("finished", "train-1 does not wait: it finished "),
        ("failed", "train-1 does not wait: it failed "),
        ("cancelled", "train-1 does not wait: it was cancelled "),
    ],
)
def test_a_job_that_does_not_wait_is_said_not_to(fake: FakeService, horae: Horae, state: str, said: str) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(state=state, reason="None")
    out = horae("why", "train-1").out
    assert out.startswith(said)
    assert "sentence" not in out


def test_a_trial_that_was_given_up_is_told_why(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(state="cancelled", reason="GivenUp")
    assert "The sentence of GivenUp." in horae("why", "train-1").out


def test_why_for_programs_is_what_the_service_said(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail()
    assert horae("why", "train-1", "-o", "json").json == detail()["why"]


def test_status_is_everything(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(state="running", loss=0.5)
    out = horae("status", "train-1").out
    for text in ("python train.py --note 'a; b'", "/home/ana", "v100[0,1,2,3]", "25%", "loss", "0.5", "v100[0,1]"):
        assert text in out
    assert horae("status", "train-1", "-o", "json").json == detail(state="running", loss=0.5)


@pytest.mark.parametrize("name", ["..", "../nodes", "a/b", "A", "a?x=1", "a#b", "%2e%2e", ""])
@pytest.mark.parametrize("command", ["status", "events", "cancel"])
def test_what_is_no_id_is_asked_of_nobody(fake: FakeService, horae: Horae, command: str, name: str) -> None:
    answer = horae(command, name)
    assert (answer.code, answer.out) == (1, "")
    assert "There is no job" in answer.err
    assert fake.asked == []


# --------------------------------------------------------------- logs and events


@pytest.mark.parametrize(
    ("state", "code"), [("finished", 0), ("failed", 100), ("running", 101), ("stopping", 101), ("cancelled", 103)]
)
def test_the_log_as_it_is_and_the_state_as_exit_code(fake: FakeService, horae: Horae, state: str, code: int) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(state=state)
    fake.answers["GET /v1/jobs/train-1/logs"] = "epoch 1\r\nlöss 2\n\tlast line".encode()
    answer = horae("logs", "train-1", "--tail", "3", "--attempt", "1")
    assert (answer.code, answer.err) == (code, "")
    assert answer.out.replace("\r", "") == "epoch 1\nlöss 2\n\tlast line"
    assert fake.last.query == {"tail": ["3"], "attempt": ["1"]}


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(("terminal", "raw"), [(True, False), (True, True), (False, False)])
def test_a_log_cannot_control_the_terminal(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch, follow: bool, terminal: bool, raw: bool
) -> None:
    line = "\x1b]0;title\x07 50 %\r\x9b2J\ttab"
    fake.answers["GET /v1/jobs/train-1"] = detail(state="finished")
    message = json.dumps({"line": line, "attempt": 1})
    ended = 'event: end\ndata: {"state": "finished"}\n\n'
    fake.answers["GET /v1/jobs/train-1/logs"] = (f"data: {message}\n\n{ended}" if follow else f"{line}\n").encode()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    answer = horae("logs", "train-1", *(["-f"] if follow else []), *(["--raw"] if raw else []))
    harmless = "\\x1b]0;title\\x07 50 %\r\\x9b2J\ttab\n"
    assert answer.out.replace("\r\n", "\n") == (harmless if terminal and not raw else f"{line}\n")


def test_the_log_of_a_job_that_is_not_there(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = (404, {"error": "There is no job 'train-1'."})
    assert horae("logs", "train-1").code == 102
    answer = horae("logs", "../x")
    assert (answer.code, answer.out) == (102, "")
    assert "There is no job '../x'" in answer.err


def test_the_log_of_a_job_that_never_started(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail()
    answer = horae("logs", "train-1")
    assert (answer.code, answer.out) == (101, "")
    assert "`horae why train-1`" in answer.err


def test_a_followed_log_ends_with_the_job(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(state="running")
    fake.answers["GET /v1/jobs/train-1/logs"] = (
        b': hello\n\ndata: {"line": "one", "attempt": 1}\n\ndata: {"line": "two: \\u00fc", "attempt": 2}\n\n'
        b'event: end\ndata: {"state": "failed"}\n\n'
    )
    answer = horae("logs", "-f", "train-1")
    assert (answer.code, answer.out, answer.err) == (100, "one\ntwo: ü\n", "(attempt 2)\n")
    assert fake.last.query == {"follow": ["true"]}


def test_a_log_for_programs(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(state="running", attempt=2)
    fake.answers["GET /v1/jobs/train-1/logs"] = b"one\ntwo\n"
    answer = horae("logs", "train-1", "-o", "json")
    assert (answer.code, answer.json) == (101, {"job": "train-1", "attempt": 2, "lines": ["one", "two"]})
    fake.answers["GET /v1/jobs/train-1/logs"] = (
        b'data: {"line": "one", "attempt": 1}\n\ndata: {"line": "two", "attempt": 2}\n\n'
        b'event: end\ndata: {"state": "finished"}\n\n'
    )
    answer = horae("logs", "-f", "train-1", "-o", "json")
    assert (answer.code, [json.loads(line) for line in answer.out.splitlines()]) == (
        0,
        [{"job": "train-1", "attempt": 1, "line": "one"}, {"job": "train-1", "attempt": 2, "line": "two"}],
    )
    assert horae("logs", "-f", "train-1", "-o", "csv").code == 2


def test_a_followed_log_that_breaks_off_is_no_success(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1"] = detail(state="running")
    fake.answers["GET /v1/jobs/train-1/logs"] = b'data: {"line": "one"}\n\n'
    answer = horae("logs", "-f", "train-1")
    assert (answer.code, answer.out) == (1, "one\n")
    assert "`horae logs -f train-1`" in answer.err


def event(seq: int, what: str) -> dict[str, Any]:
    return {"seq": seq, "at": "2024-01-01T00:00:00.000+00:00", "kind": "stopped", "job": "train-1", "what": what}


def test_events_say_who_preempted_whom(fake: FakeService, horae: Horae) -> None:
    fake.answers["GET /v1/jobs/train-1/events"] = {"events": [event(1, "preempted by job b-2 because x")]}
    assert "preempted by job b-2 because x" in horae("events", "train-1").out
    assert horae("events", "train-1", "-o", "json").json["events"] == [event(1, "preempted by job b-2 because x")]


def test_followed_events_are_told_once_until_the_job_ends(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horae.cli.live.events._POLL_S", 0.01)
    fake.answers["GET /v1/jobs/train-1/why"] = [{"state": "running"}, {"state": "running"}, {"state": "finished"}]
    # One record of the journal may tell two things.
    first, rest = [event(1, "one")], [event(1, "one"), event(1, "two"), event(2, "three")]
    fake.answers["GET /v1/jobs/train-1/events"] = [{"events": first}, {"events": rest}, {"events": rest}]
    answer = horae("events", "-f", "train-1")
    assert answer.code == 0
    assert [line.split()[-1] for line in answer.out.splitlines()] == ["one", "two", "three"]


# ----------------------------------------------------------------------- wait


def test_waiting_ends_with_the_worst_of_the_jobs(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horae.cli.live.wait._POLL_S", 0.01)
    fake.answers["GET /v1/jobs/a-1/why"] = [{"state": "running"}, {"state": "finished"}]
    fake.answers["GET /v1/jobs/b-2/why"] = {"state": "cancelled"}
    answer = horae("wait", "a-1", "b-2", "a-1", "-o", "json")
    assert answer.code == 103
    assert answer.json == {"jobs": [{"id": "a-1", "state": "finished"}, {"id": "b-2", "state": "cancelled"}]}
    answer = horae("wait", "a-1")
    assert (answer.code, answer.out, answer.err) == (0, "a-1: finished\n", "")
    assert horae("wait", "a-1", "gone-3").code == 102


def test_waiting_outlasts_a_service_that_is_started_anew(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch
) -> None:
    from horae.cli.live import wait
    from horae.client.address import NoService

    away = [NoService("away"), NoService("away")]

    def state(at: Any, job: str) -> str:
        if len(fake.asked) == 1 and away:
            raise away.pop()
        return job_state(at, job)

    monkeypatch.setattr(wait, "_POLL_S", 0.01)
    monkeypatch.setattr(wait, "job_state", state)
    fake.answers["GET /v1/jobs/a-1/why"] = [{"state": "running"}, {"state": "finished"}]
    assert horae("wait", "a-1").code == 0
    assert away == []


def test_waiting_does_not_begin_without_a_service(home: Path, horae: Horae) -> None:
    assert horae("wait", "a-1").code == 1


def test_ctrl_c_while_waiting_leaves_the_job_alone_and_says_so(
    fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("horae.cli.live.wait.time.sleep", interrupted)
    fake.answers["GET /v1/jobs/a-1/why"] = {"state": "running"}
    answer = horae("wait", "a-1")
    assert (answer.code, answer.out, answer.err) == (130, "", "interrupted; jobs that have not ended go on\n")


def test_waiting_has_an_end(fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    slept_s, sleep = [], time.sleep
    monkeypatch.setattr("horae.cli.live.wait.time.sleep", lambda seconds: slept_s.append(seconds) or sleep(seconds))
    fake.answers["GET /v1/jobs/a-1/why"] = {"state": "running"}
    assert horae("wait", "a-1", "--timeout", "0.2s").code == 101
    assert 0 < sum(slept_s) <= 0.2
    assert horae("wait", "a-1", "--timeout", "soon").code == 1
    assert horae("wait").code == 2


def test_of_several_exit_codes_the_worst_counts() -> None:
    assert worst([]) == worst([0, 0]) == 0
    assert worst([0, 101]) == 101
    assert worst([101, 103, 0]) == 103
    assert worst([100, 103, 101]) == 100
    assert worst([100, 102]) == 102


# ------------------------------------------------------- cancel, hold, release


@pytest.mark.parametrize(("command", "said"), [("cancel", "cancelled"), ("hold", "held"), ("release", "released")])
def test_a_request_says_what_became_of_each_job(fake: FakeService, horae: Horae, command: str, said: str) -> None:
    fake.answers[f"POST /v1/jobs/a-1/{command}"] = {"jobs": {"a-1": "done"}}
    answer = horae(command, "a-1")
    assert (answer.code, answer.out) == (0, f"a-1: {said}\n")
    assert horae(command, "a-1", "-o", "json").json == {"jobs": {"a-1": "done"}}


@pytest.mark.parametrize(("command", "said"), [("cancel", "cancelled"), ("hold", "held"), ("release", "released")])
def test_many_are_asked_for_at_once(fake: FakeService, horae: Horae, command: str, said: str) -> None:
    fake.answers[f"POST /v1/jobs/{command}"] = {"jobs": {"a-1": "done", "b-2": "is finished already"}}
    answer = horae(command, "a-1", "b-2", "a-1")
    assert [(asked.line, asked.body) for asked in fake.asked] == [
        (f"POST /v1/jobs/{command}", {"ids": ["a-1", "b-2"]})
    ], "all or none"
    assert (answer.code, answer.out) == (1, f"a-1: {said}\nb-2: is finished already\n")


def test_an_app_is_acted_on_after_a_yes(fake: FakeService, horae: Horae, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.answers["GET /v1/jobs"] = {"jobs": [{"id": "a-1"}, {"id": "a-2"}], "total": 2}
    fake.answers["POST /v1/jobs/cancel"] = {"jobs": {"a-1": "done", "a-2": "done"}}
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    answer = horae("cancel", "--app", "sweep")
    assert answer.code == 1
    assert "cancel 2 jobs of app sweep: add --yes" in answer.err
    assert horae("cancel", "--app", "sweep", "-y").code == 0
    assert fake.last.body == {"ids": ["a-1", "a-2"]}


@pytest.mark.parametrize("words", [[], ["a-1", "--app", "x"]])
def test_it_must_be_clear_which_jobs_are_meant(fake: FakeService, horae: Horae, words: list[str]) -> None:
    answer = horae("cancel", *words)
    assert answer.code != 0
    assert fake.asked == []


# --------------------------------------------------------------------- operators


def share(queue: str, entitled: float, used: float, normalised: float) -> dict[str, Any]:
    return {
        "queue": queue,
        "weight": 1.0,
        "gpus_min": 0,
        "gpus_max": 6 if queue == "b" else None,
        "running": 1,
        "waiting": 2,
        "entitled_gpus": entitled * 8,
        "used_gpus": used * 8,
        "entitled_share": entitled,
        "used_share": used,
        "used_share_normalised": normalised,
    }


def test_shares_are_a_tree(fake: FakeService, horae: Horae) -> None:
    records = [
        share("(all)", 1, 1, 1),
        share("b", 0.5, 0.75, 0.6),
        share("a", 0.5, 0.25, 0.4),
        share("a/x", 0.5, 0.25, 0.4),
    ]
    fake.answers["GET /v1/share"] = {"queues": records}
    lines = horae("share").out.splitlines()
    names = [line.split()[0] for line in lines if line.strip().startswith(("(all)", "a ", "x ", "b "))]
    assert names == ["(all)", "a", "x", "b"]
    (line,) = (line for line in lines if line.strip().startswith("b "))
    assert line.split()[1:] == ["1", "0", "to", "6", "1", "2", "4.0", "6", "75%", "60%", bar(0.75, 20, 0.5)]
    assert horae("share", "-o", "json").json == {"queues": records}


def test_nodes_are_written_as_a_cluster_file(fake: FakeService, horae: Horae, tmp_path: Path) -> None:
    node = {"node": "n1", "gpu_type": "v100", "gpus": 4, "rack": "row-1", "used": 0, "state": "up", "jobs": {}}
    closed = {**node, "node": "007", "gpu_type": "k80", "state": "draining"}
    down = {**node, "node": "n3", "state": "down"}
    fake.answers["GET /v1/nodes"] = {"nodes": [node, closed, down], "trouble": ""}
    text = horae("nodes", "-o", "yaml").out
    assert text.startswith("# Left out, since they are down: n3\n")
    assert text == horae("nodes", "list", "-o", "yaml").out == horae("nodes", "-o", "yaml", "list").out
    (tmp_path / "cluster.yaml").write_text(text)
    assert parse_cluster(str(tmp_path / "cluster.yaml")).nodes == (
        Node("n1", "v100", 4, "row-1"),
        Node("007", "k80", 4, "row-1"),
    )
    fake.answers["GET /v1/nodes"] = {"nodes": [down], "trouble": ""}
    assert "no nodes that are up" in horae("nodes", "-o", "yaml").err


def test_nodes_are_listed_drained_and_resumed(fake: FakeService, horae: Horae) -> None:
    node = {"node": "v100", "gpu_type": "v100", "gpus": 4, "used": 3, "state": "up", "jobs": {"a-1": 2, "b-2": 1}}
    fake.answers |= {
        "GET /v1/nodes": {"nodes": [node]},
        "POST /v1/nodes/v100/drain": {},
        "POST /v1/nodes/v100/resume": {},
        "POST /v1/nodes/a%2Fb/drain": {},
    }
    for words in (["nodes"], ["nodes", "list"]):
        out = horae(*words).out
        assert row_of(out, "v100")[1:5] == ["v100", "up", "4", "3"]
        assert "a-1 (2), b-2 (1)" in out
    for words in (["nodes", "-o", "json"], ["nodes", "list", "-o", "json"], ["nodes", "-o", "json", "list"]):
        assert horae(*words).json == {"nodes": [node]}
    (record,) = csv.DictReader(io.StringIO(horae("nodes", "-o", "csv").out))
    assert record == {"node": "v100", "gpu_type": "v100", "gpus": "4", "used": "3", "state": "up", "jobs": "a-1 b-2"}
    assert "takes no new jobs" in horae("nodes", "drain", "v100").out
    assert fake.last.body == {"evict": False}
    horae("nodes", "drain", "v100", "--evict")
    assert fake.last.body == {"evict": True}
    assert "takes jobs again" in horae("nodes", "resume", "v100").out
    fake.answers["POST /v1/nodes/v100/resume"] = {**node, "state": "draining"}
    assert "the cluster itself keeps it closed" in horae("nodes", "resume", "v100").out
    closed = [{**node, "node": name, "state": "draining", "why": "Duplicate jobid"} for name in ("v1", "v2")]
    fake.answers["GET /v1/nodes"] = {"nodes": [node, *closed], "trouble": "The cluster is out of sight."}
    assert "The cluster keeps v1, v2 closed: Duplicate jobid" in horae("nodes").out
    assert horae("nodes").out.splitlines()[-1] == "The cluster is out of sight."
    fake.answers["POST /v1/nodes/v100/lost"] = {**node, "state": "draining"}
    refused = horae("nodes", "lost", "v100")
    assert (refused.code, "horae nodes lost v100 --sure" in refused.err) == (1, True)
    assert "run elsewhere" in horae("nodes", "lost", "v100", "--sure").out
    assert fake.last.body == {"sure": True}
    assert horae("nodes", "drain", "a/b").code == 0
    assert horae("nodes", "drain", "..").code == 1


def test_a_token_is_shown_once_alone_on_stdout(fake: FakeService, horae: Horae) -> None:
    fake.answers |= {
        "POST /v1/tokens": {"token": "abc", "id": "t1"},
        "GET /v1/tokens": {
            "tokens": [{"id": "t1", "user": "ana", "role": "user", "scope": "", "created": None, "expires": None}]
        },
        "DELETE /v1/tokens/t1": (204, b""),
    }
    answer = horae("token", "create", "ana", "--expires", "30d")
    assert answer.out == "abc\n"
    assert "horae token revoke t1" in answer.err
    assert fake.last.body == {"user": "ana", "role": "member", "expires": "30d", "scope": ""}
    assert row_of(horae("token", "list").out, "t1")[1:3] == ["ana", "user"]
    assert horae("token", "revoke", "t1").out == "Token t1 is revoked.\n"
    assert horae("token", "create", "ana", "--role", "king").code == 2


def test_a_token_is_a_members_and_can_be_narrowed(fake: FakeService, horae: Horae) -> None:
    fake.answers = {"POST /v1/tokens": {"token": "abc", "id": "t1"}}
    assert horae("token", "create", "ana").code == 0
    assert fake.last.body == {"user": "ana", "role": "member", "expires": None, "scope": ""}
    assert horae("token", "create", "ana", "--scope", "queue=org/a", "--scope", "submit-only").code == 0
    assert fake.last.body["scope"] == "queue=org/a,submit-only"


def test_limits_are_shown_and_set(fake: FakeService, horae: Horae) -> None:
    """Tests cli/live/limits.py."""
    each, yours = {"whom": "each-user", "gpus": 8, "grace_s": None}, {"whom": "user:ana", "gpus": 8, "grace_s": None}
    fake.answers = {key: {"limits": [each], "yours": yours} for key in ("GET /v1/limits", "PUT /v1/limits")}
    assert row_of(horae("limits").out, "each-user") == ["each-user", "8"]
    assert row_of(horae("limits", "show").out, "yours") == ["yours", "8"]
    assert horae("limits", "-o", "json").json["yours"]["gpus"] == 8
    assert horae("limits", "set", "--gpus", "8", "--grace", "10m", "--requests", "2.5").code == 0
    assert fake.last.body == {"whom": "each-user", "gpus": 8, "grace_s": 600.0, "requests_per_s": 2.5}
    for words, whom in ((["--user", "ana"], "user:ana"), (["--queue", "a/b"], "queue:a/b"), (["--all"], "all")):
        assert horae("limits", "set", *words, "--queued-jobs", "none").code == 0
        assert fake.last.body == {"whom": whom, "queued_jobs": None}
    assert "nothing to set" in horae("limits", "set", "--user", "ana").err
    assert "give one of" in horae("limits", "set", "--user", "ana", "--all", "--gpus", "1").err
    assert "--log-reads: 'many' is not a number" in horae("limits", "set", "--log-reads", "many").err
    fake.answers["GET /v1/limits"] = {"limits": [], "yours": {"whom": "user:ana"}}
    assert "There are no limits" in horae("limits").out


def test_settings_are_shown_and_changed(fake: FakeService, horae: Horae, tmp_path: Any) -> None:
    queue = {"path": "a", "weight": 2.0, "rule": "fairness", "gpus_min": 0, "gpus_max": 4}
    fake.answers |= {
        "GET /v1/settings": {"policy": "themis", "settings": {"lease": "60"}, "queues": [queue]},
        "PUT /v1/settings": {},
    }
    for words in (["settings"], ["settings", "show"]):
        out = horae(*words).out
        assert row_of(out, "policy")[1] == "themis"
        assert row_of(out, "lease")[1] == "60"
    file = tmp_path / "queues.yaml"
    file.write_text("queues: {a: {weight: 2, gpus_max: 4}}\n")
    assert horae("settings", "set", "themis", "--set", "lease=60", "--queues", file).code == 0
    whole = {**queue, "members": [], "admins": []}
    assert fake.asked[-2].body == {"policy": "themis", "settings": {"lease": "60"}, "queues": [whole]}
    assert horae("settings", "set", "--unknown-queues", "users").code == 0
    assert fake.asked[-2].body["unknown_queues"] == "users"
    assert horae("settings", "set", "-o", "json", "--set", "f=0.5").json["policy"] == "themis"
    assert fake.asked[-2].body == {"policy": None, "settings": {"f": "0.5"}, "queues": []}
    assert "nothing to change" in horae("settings", "set").err
    fake.answers["PUT /v1/settings"] = {"note": "themis treats GPU types as alike."}
    told = horae("settings", "set", "themis", "-o", "json")
    assert (told.json["policy"], told.err) == ("themis", "themis treats GPU types as alike.\n")


# ---------------------------------------------------------------------- letters


def test_times_are_short() -> None:
    assert [short(s) for s in (0, 59.9, 60, 200, 3600, 90_000, 86_400 * 3)] == [
        "0s", "59s", "1m", "3m 20s", "1h", "1d 1h", "3d",
    ]  # fmt: skip
    now = datetime(2024, 1, 1, 0, 3, 20, tzinfo=UTC)
    assert ago("2024-01-01T00:00:00.000+00:00", now) == "3m 20s ago"
    assert ago("2024-01-01T00:04:00.000+00:00", now) == "0s ago"
    assert ago(None) == ago("never") == until(None) == "–"
    assert until("2024-01-01T00:04:00.000+00:00", now) == "in 40s"
    assert until("2024-01-01T00:03:00.000+00:00", now) == "20s ago"


def test_bars_have_letters_that_the_terminal_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert bar(0.5, 4) == "##.."
    assert bar(0.5, 4, mark=0.75) == "##.|."
    assert bar(7, 2) == "##"
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert bar(0.5, 4, mark=0.75) == "██·┃·"
