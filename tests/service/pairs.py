"""An active service and its standby as processes of their own, one of which is killed or frozen again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from horae.backends.local.runner import stat_of
from horae.core import checkpoint
from horae.service.store.store import Store
from tests.backends.real import end_all, until
from tests.service.crashes import (
    ENDED,
    HERE,
    START_S,
    Service,
    Submitter,
    attempts_alive,
    beginning,
    check_witnesses,
    fold,
    processes_of,
    quiet_port,
)
from tests.simulation.trouble import difference, same

#: Seconds between two probes, each of which submits a job that does nothing.
PROBE_S = 0.4


class Pair(Service):
    """Two services on one database and one state folder, each on a port of its own. For clients they are one."""

    def __init__(self, folder: Path, database: str) -> None:
        super().__init__(folder)
        self.database = database
        self.ports = [self.port, quiet_port(self.port + 1)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None, None]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in filter(None, self.processes):
            process.kill()
            process.wait()
        end_all(self.cluster.attempts)

    def start(self, number: int | str = 0, dies_at: str = "::") -> None:  # type: ignore[override]
        """Begin to start one of them: active if none is, else as a standby."""
        assert isinstance(number, int)
        words = ["serve", "--state", str(self.state), "--port", str(self.ports[number]), *self._words]
        with (self.folder / "serve.txt").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                [sys.executable, str(HERE / "mortal.py"), dies_at, *words, "--standby", "--database", self.database],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "XDG_STATE_HOME": str(self.folder / "reports")},
                cwd=self.folder,
            )

    def process_of(self, number: int) -> subprocess.Popen[bytes]:
        process = self.processes[number]
        assert process is not None
        return process

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def roles(self) -> list[str]:
        """What each says it is: "active", "standby", or nothing."""
        return [self._role(url) for url in self.urls()]

    def _role(self, url: str) -> str:
        try:
            answer = httpx.get(f"{url}/healthz", timeout=2.0, trust_env=False, verify=False).json()
        except httpx.HTTPError:
            return ""
        return ("standby" if answer.get("standby") else "active") if answer["ok"] else ""

    def active(self) -> int | None:
        roles = self.roles()
        return roles.index("active") if "active" in roles else None

    def await_active(self) -> int:
        until(lambda: self.active() is not None, f"for an active service: {self.said()}", START_S)
        found = self.active()
        assert found is not None
        return found

    def await_standby(self) -> None:
        until(lambda: "standby" in self.roles(), f"for a standby: {self.said()}", START_S)

    @property
    def url(self) -> str:
        number = self.active()
        if number is None:
            raise httpx.ConnectError("nobody is active")
        return self.urls()[number]

    def await_frozen(self, number: int) -> None:
        pid = self.process_of(number).pid
        until(lambda: stat_of(pid)[0] == "T", "for the point at which it is frozen", START_S)

    def thaw(self, number: int) -> None:
        self.process_of(number).send_signal(signal.SIGCONT)

    def end_of(self, number: int) -> int:
        return self.process_of(number).wait(30)

    def kill_one(self, number: int) -> None:
        process = self.process_of(number)
        process.kill()
        code = process.wait()
        assert code == -signal.SIGKILL, f"the service ended by itself ({code}): {self.said()}"

    def stop_all(self) -> None:
        """Have both leave in good order, the standby first."""
        for number in sorted((0, 1), key=lambda number: number == self.active()):
            process = self.processes[number]
            if process and process.poll() is None:
                process.terminate()
                assert process.wait(30) == 0, self.said()


class Probe:
    """Submits a job that does nothing, again and again, and notes when that was acknowledged."""

    def __init__(self, pair: Pair) -> None:
        self._pair, self._enough = pair, threading.Event()
        self.acknowledged_s: list[float] = []
        self.jobs: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        headers = {"Authorization": f"Bearer {(self._pair.state / 'token').read_text().strip()}"}
        with httpx.Client(headers=headers, timeout=5.0, trust_env=False, verify=False) as client:
            while not self._enough.wait(PROBE_S):
                for url in self._pair.urls():
                    with suppress(httpx.HTTPError):
                        answer = client.post(f"{url}/v1/jobs", json=[{"run": ["true"], "name": "probe"}])
                        if answer.status_code == 200:
                            self.jobs += answer.json()["ids"]
                            self.acknowledged_s.append(time.monotonic())

    @property
    def longest_gap_s(self) -> float:
        """Longest time in which no service took a job."""
        times = self.acknowledged_s
        return max((later - sooner for sooner, later in pairwise(times)), default=0.0)

    def gaps_s(self, moments: list[float]) -> list[float]:
        """Seconds from each of these moments to the next job that was taken."""
        return [next(time_s for time_s in self.acknowledged_s if time_s > moment) - moment for moment in moments]


@dataclass(frozen=True)
class TakeOverFigures:
    """What a storm of kills came to."""

    kills: int
    jobs: int
    probes: int
    #: Attempts that were alive at a kill.
    orphaned: int
    longest_gap_s: float
    #: Seconds from each kill to the next job that was taken, sorted.
    gaps_s: list[float]


class TakeOvers:
    """Kills of the active service under load, and what must be true when all is over."""

    def __init__(self, pair: Pair, seed: int) -> None:
        self.pair, self._random = pair, random.Random(f"take-overs {seed}")
        self.submitter = Submitter(pair, seed, (150, 300))
        self.probe = Probe(pair)
        self.kills_s: list[float] = []
        self.orphaned = 0

    def begin(self) -> None:
        """Start both services, and the load."""
        self.pair.start(0)
        self.pair.await_active()
        self.pair.start(1)
        self.pair.await_standby()
        self.submitter.start()
        self.probe.start()

    def kill(self, times: int) -> None:
        """Kill -9 the active service so many times, each time when there is a standby."""
        for _ in range(times):
            active = self.pair.await_active()
            self.pair.await_standby()
            end_s = time.monotonic() + self._random.uniform(0.5, 3.0)
            until(lambda end_s=end_s: time.monotonic() >= end_s, "for some work")  # type: ignore[misc]
            self.orphaned += len(attempts_alive(self.pair.state))
            self.kills_s.append(time.monotonic())
            self.pair.kill_one(active)
            taken = len(self.probe.acknowledged_s)
            until(lambda taken=taken: len(self.probe.acknowledged_s) > taken + 1, "for a job to be taken", START_S)  # type: ignore[misc]
            self.pair.start(active)

    def finish(self) -> None:
        """Let the load end, and wait until the last job has ended."""
        self.submitter.stop()
        self.probe.stop()
        self.pair.await_active()
        until(
            lambda: all(state in ENDED for state in self.pair.states().values()),
            f"for the last job: {self.pair.said()}",
            self.pair.cluster.finish_s,
        )

    def examine(self) -> TakeOverFigures:
        """Check that each job was done exactly once, and that the journal tells what the service knew."""
        submitter, states = self.submitter, self.pair.states()
        assert not submitter.odd, submitter.odd
        lost = [job for job in (*submitter.acknowledged, *self.probe.jobs) if states.get(job) != "finished"]
        assert not lost, f"acknowledged and not finished: {[(job, states.get(job)) for job in lost]}"
        check_witnesses(submitter, "take-overs")
        mine = {process.pid for process in self.pair.processes if process}
        left = {pid: kind for pid, kind in processes_of(self.pair.state).items() if pid not in mine}
        assert not left, f"left behind: {left}"
        reports = [path.read_text() for path in (self.pair.folder / "reports").rglob("crash-*")]
        assert not reports, reports[0]
        self.pair.stop_all()
        self._check_journal()
        gaps = sorted(self.probe.gaps_s(self.kills_s)) if self.kills_s else []
        return TakeOverFigures(
            len(self.kills_s),
            len(submitter.acknowledged),
            len(self.probe.jobs),
            self.orphaned,
            round(self.probe.longest_gap_s, 2),
            [round(gap_s, 2) for gap_s in gaps],
        )

    def _check_journal(self) -> None:
        """The engine that the last service saved is that of the records before."""
        with closing(Store(self.pair.database)) as store:
            newest = store.newest_checkpoint()
            assert newest is not None
            live = beginning(store).engine()
            checkpoint.load(live, newest[1])
            folded, seq = fold(store)
        assert seq == newest[0]
        assert same(live.contents(), folded.contents()), difference(live.contents(), folded.contents())
