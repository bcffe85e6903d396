"""What jobs print: through the runner into parts of a limited size. Tests backends/local/runner.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.backends.local import runner
from horae.backends.local.backend import LocalBackend
from horae.backends.protocol import Place
from horae.core.events import JobFinished, JobStopped
from horae.service.views.logs import FollowedLog, read_log
from tests.backends.real import bash, folder, lives, next_events, opened, pid_in, python, start, until, watched

#: Bytes that are kept here.
MOST = 80_000


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def backend(state: Path) -> Iterator[LocalBackend]:
    with opened(state, max_log_bytes=MOST) as made:
        yield made


def parts(state: Path) -> list[Path]:
    return sorted(folder(state).path.glob(f"{runner.LOG}*"), key=lambda path: int(path.suffix[1:].replace("txt", "0")))


def kept(state: Path) -> int:
    return sum(path.stat().st_size for path in parts(state))


COUNT = "import sys\nfor number in range(50_000): print('line', number)"


def test_of_much_output_the_beginning_and_the_end_are_kept(backend: LocalBackend, state: Path) -> None:
    backend.start(start(python(COUNT)))
    assert next_events(backend) == [JobFinished(7.0, "a-1", 1)]
    assert MOST * 3 / 4 <= kept(state) <= MOST
    text = read_log(backend.log("a-1", 1), None)
    lines = text.splitlines()
    assert (lines[0], lines[-1]) == ("line 0", "line 49999")
    (gap,) = [line for line in lines if "left out" in line]
    missing = int(gap.split()[1])
    assert len("".join(f"line {n}\n" for n in range(50_000))) == kept(state) + missing
    assert read_log(backend.log("a-1", 1), 2) == "line 49998\nline 49999\n"


def test_little_output_is_one_file_as_it_was(backend: LocalBackend, state: Path) -> None:
    backend.start(start(bash("echo out; echo err >&2")))
    next_events(backend)
    assert [path.name for path in parts(state)] == [runner.LOG]
    assert (backend.log("a-1", 1)).read_text() == "out\nerr\n"


def test_who_follows_gets_every_line_although_old_parts_are_dropped(backend: LocalBackend, state: Path) -> None:
    slow = "import time\nfor number in range(3000):\n    print('line', number, '.' * 60, flush=True); time.sleep(2e-4)"
    backend.start(start(python(slow)))
    log, lines = FollowedLog(backend.log("a-1", 1), None), list[str]()

    def follow() -> bool:
        lines.extend(log.lines(finished=False))
        return bool(watched(backend))

    until(follow, "for the end")
    until(lambda: lines.extend(log.lines(finished=True)) or log.at_end)  # type: ignore[func-returns-value]
    assert lines[-1] == f"line 2999 {'.' * 60}"
    numbers = [int(line.split()[1]) for line in lines if line.startswith("line")]
    assert kept(state) <= MOST < 3000 * 70
    assert numbers == sorted(set(numbers)), "no line twice, and none out of order"
    assert len(numbers) + sum("left out" in line for line in lines) >= 1000


def test_a_process_that_escapes_with_the_output_open_does_not_keep_the_attempt_from_ending(
    backend: LocalBackend, state: Path
) -> None:
    backend.start(start(bash("setsid bash -c 'echo $$ > left; sleep 62' & until [ -s left ]; do :; done")))
    assert isinstance(next_events(backend)[0], JobFinished)
    assert not lives(pid_in(folder(state).path / "work" / "left"))


def test_lines_of_several_processes_and_of_the_runner_stay_whole_and_in_order(backend: LocalBackend) -> None:
    script = "for n in 1 2 3 4 5 6 7 8 9; do echo $RANK $n ................................; done"
    setup = "echo preparing; echo more >&2"
    backend.start(start(bash(script), setup=setup, processes="gpu", places=(Place("v100", (0, 1, 2)),)))
    next_events(backend)
    lines = backend.log("a-1", 1).read_text().splitlines()
    assert lines[:2] == ["preparing", "more"]
    assert sorted(lines[2:]) == sorted(f"{rank} {n} {'.' * 32}" for rank in range(3) for n in range(1, 10))


def test_a_job_whose_log_cannot_be_written_goes_on(backend: LocalBackend, state: Path) -> None:
    """As on a full disk: its output is left out, and what comes later is kept again."""
    wait = "until [ -e go ]; do sleep .02; done"
    backend.start(start(bash(f"echo first; {wait}; ulimit -c 0; yes | head -c 300000; echo last; rm go; {wait}")))
    until(lambda: "first" in read_log(backend.log("a-1", 1), None))
    # No new part can be created while its folder has no room for names.
    path = folder(state).path
    away = path.rename(path.with_name("away"))
    (away / "work" / "go").touch()
    until(lambda: not (away / "work" / "go").exists(), "for the job to print all that")
    away.rename(path)
    (path / "work" / "go").touch()
    assert isinstance(next_events(backend)[0], JobFinished)
    text = read_log(backend.log("a-1", 1), None)
    assert text.startswith("first\ny\n")
    assert kept(state) <= MOST


def test_a_frozen_reader_of_nothing_holds_up_no_stop(backend: LocalBackend) -> None:
    backend.start(start(bash("trap 'echo saved; exit 75' USR1; echo up; while :; do echo x; done"), grace_s=20.0))
    until(lambda: "up" in read_log(backend.log("a-1", 1), None))
    backend.stop("a-1", 1)
    assert isinstance(next_events(backend)[0], JobStopped)
    assert read_log(backend.log("a-1", 1), 1) == "saved\n"
