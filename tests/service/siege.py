"""A service under siege: kills, floods, hostile files, a full disk and frozen parts at once, beside honest jobs.

Two people use the service: an honest one, whose jobs are witnesses (witness.py), and an attacker with a token of the
least role that may submit. A seed decides what the attacker does, and when.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.service.crashes import ENDED, Service, Storm, processes_of

#: Name of the attacker.
ATTACKER = "mallory"
#: What the attacker's jobs do, in bash. `$HERE` is the folder of the attempt's records where the job can reach it.
HOSTILE_JOBS: dict[str, str] = {
    "huge number": "printf '{\"step\": 1%0400d}' 0 > $HORAE_CHECKPOINT_DIR/saved.json; exit 75",
    "deep nesting": "head -c 200000 /dev/zero | tr '\\0' '[' > $HORAE_CHECKPOINT_DIR/saved.json; exit 75",
    "pipe": "rm -f $HORAE_CHECKPOINT_DIR/saved.json; mkfifo $HORAE_CHECKPOINT_DIR/saved.json; exit 75",
    "sparse file": "truncate -s 3G $HORAE_CHECKPOINT_DIR/saved.json; exit 75",
    "link": "ln -sf /dev/zero $HORAE_CHECKPOINT_DIR/saved.json; exit 75",
    "not a number": 'echo \'{"step": NaN, "total": "many"}\' > $HORAE_CHECKPOINT_DIR/saved.json; exit 75',
    "runner's name": "rm -f $HERE/runner.json; mkfifo $HERE/runner.json; sleep 2; exit 1",
    "bad runner": "echo '{\"pid\": 1}' > $HERE/runner.json; sleep 2; exit 1",
    "bad end": "echo '{\"a\": 1}' > $HERE/exit.json; sleep 2; exit 1",
    "end as a pipe": "mkfifo $HERE/exit.json; sleep 2; exit 1",
    "stray files": "touch $HERE/../../../attempts/.nfs00$RANDOM; mkdir $HERE/../../../attempts/x$RANDOM; exit 1",
    "frozen runner": "kill -STOP $PPID; sleep 600",
    "killed runner": "kill -KILL $PPID; sleep 600",
    "much output": "yes attack",
    "no line feeds": "head -c 200000000 /dev/zero | tr '\\0' x; sleep 5",
    "fork and leave": "for i in 1 2 3 4 5 6 7 8; do setsid sleep 600 & done; exit 0",
    "deaf": "trap '' TERM USR1 INT; while :; do sleep 1; done",
    "escape codes": "printf '\\033]0;owned\\007\\033[2J'; exit 1",
}


@dataclass
class Attacker:
    """Somebody with a token who wishes the service no good."""

    service: Service
    token: str
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(f"attack {self.seed}")
        self._enough = threading.Event()
        self._threads: list[threading.Thread] = []

    def client(self, timeout_s: float = 20.0) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.service.url, headers=headers, timeout=timeout_s, trust_env=False)

    def start(self) -> None:
        """Begin: each kind of attack has a thread of its own."""
        for act, pause_s in (
            (self._submit_hostile, 1.0),
            (self._read_logs, 3.0),
            (self._open_streams, 5.0),
            (self._send_nonsense, 0.5),
        ):
            thread = threading.Thread(target=self._repeat, args=(act, pause_s), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(30.0)

    def cancel_all(self) -> None:
        """Cancel what is left of the attacker's jobs, as an admin."""
        with self.service.client() as client:
            for job in client.get("/v1/jobs", params={"fields": "id,user,state", "limit": 0}).json()["jobs"]:
                if job["user"] == ATTACKER and job["state"] not in ENDED:
                    assert client.post(f"/v1/jobs/{job['id']}/cancel").status_code == 200

    def _repeat(self, act: Callable[[], None], pause_s: float) -> None:
        while not self._enough.wait(pause_s):
            with suppress(OSError, httpx.HTTPError):
                act()
                self.done[act.__name__.lstrip("_")] += 1

    def _submit_hostile(self) -> None:
        """Keep some hostile jobs going, and cancel those that are there for long."""
        with self.client() as client:
            mine = client.get("/v1/jobs", params={"fields": "id,state,user"}).json().get("jobs", [])
            mine = [job["id"] for job in mine if job["user"] == ATTACKER and job["state"] not in ENDED]
            if len(mine) >= 4:
                answer = client.post(f"/v1/jobs/{self._random.choice(mine)}/cancel")
                self.answers[answer.status_code] += 1
                return
            name = self._random.choice(sorted(HOSTILE_JOBS))
            here = "HERE=$(dirname $(readlink -f /proc/$PPID/fd/1) 2>/dev/null); "
            job = {
                "name": "attack",
                "run": f"{here}{HOSTILE_JOBS[name]}",
                "resources": {"gpus": 1},
                "checkpoint": {"grace": 2},
                "recovery": {"max_restarts": 2},
            }
            answer = client.post("/v1/jobs", json=job)
            self.answers[answer.status_code] += 1
            self.done[name] += answer.status_code == 200

    def _read_logs(self) -> None:
        """Ask for the end of a log 45 times at once."""
        with self.client() as client:
            jobs = client.get("/v1/jobs", params={"all": True, "fields": "id,user", "limit": 50}).json().get("jobs", [])
        mine = [job["id"] for job in jobs if job["user"] == ATTACKER]
        if mine:
            self._at_once(45, lambda client: client.get(f"/v1/jobs/{mine[-1]}/logs", params={"tail": 1}))

    def _open_streams(self) -> None:
        """Open 100 streams at once, and read nothing."""

        def listen(client: httpx.Client) -> httpx.Response:
            with client.stream("GET", "/v1/stream") as answer:
                self._enough.wait(2.0)
                return answer

        self._at_once(100, listen)

    def _send_nonsense(self) -> None:
        """Wrong tokens, long keys, and bodies that are no jobs."""
        with self.client() as client:
            client.get("/v1/jobs", headers={"Authorization": "Bearer hor_wrong"})
            client.post("/v1/jobs", json={"x" * 100_000: 1})
            client.post("/v1/jobs", json={"run": "true", "max_duration": "1s" * 100_000})
            client.post("/v1/jobs", content=b"[" * 100_000)

    def _at_once(self, times: int, ask: Callable[[httpx.Client], httpx.Response]) -> None:
        def one() -> None:
            with suppress(OSError, httpx.HTTPError), self.client(5.0) as client:
                self.answers[ask(client).status_code] += 1

        threads = [threading.Thread(target=one, daemon=True) for _ in range(times)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10.0)


#: Opens so many connections to a port, sends half a request on each, and opens new ones for those that are closed.
_HALF_OPEN = """
import resource, socket, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
while True:
    for _ in range(50):
        if len(held) < count:
            try:
                one = socket.create_connection(("127.0.0.1", port), timeout=1)
                one.sendall(b"POST /v1/jobs HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nContent-")
                one.setblocking(False)
                held.append(one)
            except OSError:
                pass
    time.sleep(0.25)
    kept = []
    for one in held:
        try:
            alive = one.recv(1) != b""
        except BlockingIOError:
            alive = True
        except OSError:
            alive = False
        (kept.append if alive else lambda gone: gone.close())(one)
    held = kept
"""


@contextmanager
def half_open(port: int, count: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds many half-open connections to a port."""
    process = subprocess.Popen([sys.executable, "-c", _HALF_OPEN, str(port), str(count)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass
class Siege:
    """The honest person's jobs, the attacker, and the trouble of a machine."""

    storm: Storm
    attacker: Attacker
    #: A folder on the disk of the journal.
    disk: Path
    trouble: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(f"trouble {self.storm.seed}")

    @classmethod
    def of(cls, service: Service, seed: int, disk: Path, jobs: int) -> Siege:
        """Start a service with two people, and the load of the honest one."""
        storm = Storm(service, seed)
        storm.submitter.most = jobs
        service.start()
        assert service.ready(), service.said()
        with service.client() as client:
            tokens = [
                client.post("/v1/tokens", json={"user": user, "role": "user"}).json()["token"]
                for user in ("alice", ATTACKER)
            ]
        storm.submitter.token = tokens[0]
        siege = cls(storm, Attacker(service, tokens[1], seed), disk)
        storm.submitter.start()
        siege.attacker.start()
        return siege

    def go_on(self, lasts_s: float) -> None:
        """Have trouble of every kind for so long, and until all honest jobs were acknowledged."""
        end_s = time.monotonic() + lasts_s
        kinds = (self._kill, self._freeze_service, self._fill_disk, self._freeze_runner, self._kill_runner)
        while time.monotonic() < end_s or not self.storm.submitter.all_acknowledged:
            assert self.storm.come_up(), self.storm.service.said()
            time.sleep(self._random.uniform(2.0, 10.0))
            kind = self._random.choice(kinds)
            kind()
            self.trouble[kind.__name__.lstrip("_")] += 1

    def end(self) -> None:
        """Have the attacker leave, cancel what is left of it, and wait for the honest jobs."""
        self.attacker.stop()
        assert self.storm.come_up(), self.storm.service.said()
        self.attacker.cancel_all()
        self.storm.end()

    def answered_within_s(self, part: float) -> float:
        """Seconds in which this part of the honest submissions was answered, while the service could answer."""
        taken_s = sorted(seconds for seconds, away in self.storm.submitter.taken_s if not away)
        return taken_s[min(int(part * len(taken_s)), len(taken_s) - 1)]

    def figures(self) -> dict[str, Any]:
        """What happened."""
        return {
            "trouble": dict(self.trouble),
            "attacks": dict(self.attacker.done),
            "answers": dict(self.attacker.answers),
            "submit_s": {part: round(self.answered_within_s(part), 3) for part in (0.5, 0.9, 0.99)},
        }

    # --- trouble

    def _kill(self) -> None:
        with self.storm.submitter.away():
            self.storm.kill_daemons(1)
            assert self.storm.come_up(), self.storm.service.said()

    def _freeze_service(self) -> None:
        """Stop the service for seconds, as a machine does that swaps."""
        process = self.storm.service.process
        assert process is not None
        with self.storm.submitter.away():
            process.send_signal(signal.SIGSTOP)
            time.sleep(self._random.uniform(1.0, 5.0))
            process.send_signal(signal.SIGCONT)

    def _fill_disk(self) -> None:
        """Fill the disk of the journal, and free it again."""
        ballast = self.disk / "ballast"
        with self.storm.submitter.away():
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
            time.sleep(self._random.uniform(1.0, 5.0))
            ballast.unlink()

    def _freeze_runner(self) -> None:
        """Stop a runner for seconds; its job goes on."""
        if pid := self._runner():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self._random.uniform(0.5, 3.0))
                os.kill(pid, signal.SIGCONT)

    def _kill_runner(self) -> None:
        if pid := self._runner():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _runner(self) -> int:
        found = [pid for pid, what in processes_of(self.storm.service.cluster.attempts).items() if what == "runner"]
        return self._random.choice(found) if found else 0
