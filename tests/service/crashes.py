"""A real service under load that is killed again and again, and what must be true when all is over.

A seed decides which jobs are submitted, who is killed, and when. The jobs are witnesses (witness.py): they tell of
anything that ran twice, too often, or lost what it had saved.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import horae
from horae.backends.local.processes import environment_of, process_ids
from horae.backends.local.runner import start_time
from horae.backends.local.runner_order import ATTEMPT_VARIABLE
from horae.core import checkpoint
from horae.core.cluster import Span
from horae.core.commands import Decided, StopWhy
from horae.core.engine import Engine
from horae.core.events import JobFailed, JobFinished, JobStopped, LaunchFailed
from horae.service.initial_settings import InitialSettings
from horae.service.store.store import Store
from tests.backends.real import end_all, until
from tests.service.mortal import LOCAL_POINTS
from tests.service.witness import chain
from tests.simulation.trouble import difference, same

HERE = Path(__file__).parent
#: A machine that others use, too, and a service that has to load compiled code: nothing healthy takes so long.
START_S, FINISH_S = 90.0, 300.0
#: Steps of most jobs; of every third, which outlasts a restart of the daemon; and what each step takes.
SHORT, LONG, STEP_S = (8, 60), (150, 300), 0.04

Attempt = tuple[str, int]
_ENDS = (JobFinished, JobStopped, JobFailed, LaunchFailed)


# ------------------------------------------------------------------ the service


@dataclass(frozen=True)
class Cluster:
    """What a service runs its jobs on: by default this machine."""

    #: The folder with the folder `jobs`.
    attempts: Path
    #: Words for `horae serve`, and further variables.
    words: tuple[str, ...] = ("--gpus", "v100:4,k80:2")
    env: Mapping[str, str] = field(default_factory=dict)
    #: The points at which a service may die, of those in mortal.py.
    points: tuple[str, ...] = tuple(sorted(LOCAL_POINTS))
    #: Kinds of jobs, and GPU types.
    kinds: tuple[str, ...] = ("train", "train", "train", "plain", "shell", "pair")
    gpu_types: tuple[str, ...] = ("v100", "k80")
    #: Jobs that wait or run are kept at about so many: they want more GPUs than there are.
    backlog: int = 10
    #: Steps of most jobs: where launches take longer, jobs should, too.
    short: tuple[int, int] = SHORT
    #: Seconds in which the last jobs must end.
    finish_s: float = FINISH_S


class Service:
    """`horae serve` as a process of its own, on one port for all its lives."""

    def __init__(
        self,
        folder: Path,
        policy: str = "time-slice",
        settings: tuple[str, ...] = ("quantum=1",),
        cluster: Cluster | None = None,
    ) -> None:
        self.folder, self.state, self.cluster = folder, folder / "state", cluster or Cluster(folder / "state")
        self._words = [*self.cluster.words, "--policy", policy]
        self._words += [word for setting in settings for word in ("--set", setting)]
        self.port = quiet_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._began, self._answered = 0.0, False
        #: Seconds from each start that came so far to the first answer.
        self.recoveries_s: list[float] = []

    def start(self, dies_at: str = "::") -> None:
        """Begin to start; `ready` waits for it."""
        words = ["serve", "--state", str(self.state), "--port", str(self.port), *self._words]
        self._began, self._answered = time.monotonic(), False
        with (self.folder / "serve.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "mortal.py"), dies_at, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Reports of bugs would land here, too.
                env={**os.environ, "XDG_STATE_HOME": str(self.folder / "reports"), **self.cluster.env},
                cwd=self.folder,
            )

    def ready(self) -> bool:
        """Wait until the service answers; False if it died first."""
        while self.alive:
            with suppress(httpx.HTTPError):
                answer = httpx.get(f"{self.url}/healthz", timeout=5.0, trust_env=False, verify=False).json()
                if answer["ok"] or "cluster" in answer["error"]:  # which may be out of sight
                    if not self._answered:
                        self.recoveries_s.append(time.monotonic() - self._began)
                    self._answered = True
                    return True
            assert time.monotonic() - self._began < START_S, f"the service did not start: {self.said()}"
            time.sleep(0.02)
        return False

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill -9, if it has not died by itself."""
        assert self.process is not None
        self.process.kill()
        code = self.process.wait()
        assert code == -signal.SIGKILL, f"the service ended by itself ({code}): {self.said()}"

    def stop(self) -> None:
        """Have it leave in good order."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(30) == 0, self.said()

    def said(self) -> str:
        """The last of what it printed."""
        return (self.folder / "serve.txt").read_text()[-2000:]

    def client(self, token: str = "") -> httpx.Client:
        """Somebody with a token; by default the admin's."""
        token = token or (self.state / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=20.0, trust_env=False, verify=False)

    def states(self) -> dict[str, str]:
        """State of every job there ever was."""
        with self.client() as client:
            answer = client.get("/v1/jobs", params={"all": True, "limit": 0, "fields": "id,state"})
        assert answer.status_code == 200, answer.text
        return {job["id"]: job["state"] for job in answer.json()["jobs"]}


def quiet_port(first: int = 0) -> int:
    """A free port below those that the system gives to clients, so that it stays free while nobody listens."""
    for port in range(first or 21000 + os.getpid() % 9000, 32000):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@contextmanager
def service(folder: Path, *policy: Any) -> Iterator[Service]:
    """A service that is not there any more afterwards, nor anything that it started."""
    made = Service(folder, *policy)
    try:
        yield made
    finally:
        if made.alive:
            assert made.process is not None
            made.process.kill()
            made.process.wait()
        end_all(made.cluster.attempts)


# --------------------------------------------------------------------- the load


class Submitter:
    """Submits jobs as long as it may, and remembers which were acknowledged."""

    def __init__(self, service: Service, seed: int, long: tuple[int, int]) -> None:
        self._service, self._random, self._long = service, random.Random(f"jobs {seed}"), long
        #: Token of the person who submits; empty for the admin's.
        self.token = ""
        #: Jobs in all; None for as many as there is time for.
        self.most: int | None = None
        #: Seconds that each acknowledged submission took, and whether the service could not have answered meanwhile.
        self.taken_s: list[tuple[float, bool]] = []
        self._away = 0
        self.marks = service.folder / "marks"
        for name in ("locks", "twice", "results"):
            (self.marks / name).mkdir(parents=True)
        #: Number of steps, and processes, of jobs that were acknowledged.
        self.acknowledged: dict[str, tuple[int, int]] = {}
        #: Answers that were neither yes nor "not now", which there must not be.
        self.odd: list[str] = []
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._enough.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._enough.wait(0.05) and len(self.acknowledged) < (self.most or sys.maxsize):
            if len(self.acknowledged) - self.finished < self._service.cluster.backlog:
                self.submit([self.job() for _ in range(self._random.choice((1, 1, 2, 4)))])

    @property
    def all_acknowledged(self) -> bool:
        return len(self.acknowledged) >= (self.most or 0)

    @contextmanager
    def away(self) -> Iterator[None]:
        """While the service is stopped or cannot write: what is submitted now takes as long as that takes."""
        self._away += 1
        try:
            yield
        finally:
            self._away += 1

    @property
    def finished(self) -> int:
        return len({path.stem for path in (self.marks / "results").iterdir()})

    def submit(self, jobs: list[dict[str, Any]]) -> httpx.Response | None:
        """Submit jobs; None if nobody answered."""
        begun_s, away = time.monotonic(), self._away
        try:
            with self._service.client(self.token) as client:
                answer = client.post("/v1/jobs", json=jobs)
        except (OSError, httpx.HTTPError):
            return None
        if answer.status_code == 200:
            self.taken_s.append((time.monotonic() - begun_s, self._away != away or away % 2 == 1))
            for name, job in zip(answer.json()["ids"], jobs, strict=True):
                self.acknowledged[name] = (int(job["estimate"]["steps"]), _processes(job))
        elif answer.status_code != 503:
            self.odd.append(f"{answer.status_code} {answer.text}")
        return answer

    def job(self, steps: int = 0, kind: str = "") -> dict[str, Any]:
        """A job of a random kind: a plain or a training script, a script in a shell, two processes, or a gang.

        A gang of 8 GPUs fills two nodes of four; an uneven one of 6 has a process for each GPU.
        """
        kind = kind or self._random.choice(self._service.cluster.kinds)
        short = self._service.cluster.short
        steps = steps or self._random.randint(*self._random.choice((short, short, self._long)))
        how = "train" if kind == "train" else "plain"
        words = [sys.executable, "-S" if kind != "train" else "-u", str(HERE / "witness.py")]
        words += [str(self.marks), how, str(steps), str(STEP_S)]
        return {
            "name": kind,
            # The shell stays between runner and script, and dies of the notice at once.
            "run": f"{' '.join(words)}; exit $?" if kind == "shell" else words,
            "processes": "gpu" if kind in ("pair", "uneven") else "node",
            "resources": {"gpus": {"pair": 2, "uneven": 6, "gang": 8}.get(kind) or self._random.choice((1, 1, 2))},
            "envs": {"PYTHONPATH": str(Path(horae.__file__).parents[1])},
            "checkpoint": {"grace": 20},
            "recovery": {"max_restarts": 1000},
            "estimate": {"steps": steps, "throughput": dict.fromkeys(self._service.cluster.gpu_types, 1 / STEP_S)},
        }


def _processes(job: dict[str, Any]) -> int:
    if job["processes"] == "gpu":
        return int(job["resources"]["gpus"])
    return 2 if job["name"] == "gang" else 1


# ------------------------------------------------------------- who is to be killed


def processes_of(state: Path) -> dict[int, str]:
    """Living processes that have to do with a state folder: "runner", "job", or another's command line."""
    jobs = f"{state.resolve()}/jobs/"
    found: dict[int, str] = {}
    for pid in process_ids():
        words = _command(pid)
        if not start_time(pid):
            continue
        if "-S" in words and any(word.startswith(jobs) for word in words):
            found[pid] = "runner"
        elif any(one.startswith(f"{ATTEMPT_VARIABLE}={jobs}") for one in environment_of(pid)):
            found[pid] = "job"
        elif any(word.startswith(str(state)) for word in words):
            found[pid] = " ".join(words)
    return found


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def attempts_alive(state: Path) -> set[Attempt]:
    """Attempts whose runners live."""
    jobs = f"{state.resolve()}/jobs/"
    runners = [pid for pid, kind in processes_of(state).items() if kind == "runner"]
    folders = (word.removeprefix(jobs) for pid in runners for word in _command(pid) if word.startswith(jobs))
    return {(job, int(number)) for job, number, *_ in (folder.split("/") for folder in folders)}


# --------------------------------------------------------------------- the storm


@dataclass
class Storm:
    """Kills, and what they did."""

    service: Service
    seed: int
    long: tuple[int, int] = LONG
    submitter: Submitter = field(init=False)
    daemon_kills: int = 0
    process_kills: Counter[str] = field(default_factory=Counter)
    #: Attempts that were alive when the daemon was killed, once for each kill; those of the last kill.
    orphaned: list[Attempt] = field(default_factory=list)
    waiting: set[Attempt] = field(default_factory=set)
    #: How many of them were alive still when a daemon answered again.
    readopted: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(f"kills {self.seed}")
        self.submitter = Submitter(self.service, self.seed, self.long)

    def begin(self) -> None:
        """Start the service, and the load."""
        self.service.start()
        assert self.service.ready(), self.service.said()
        with self.service.client() as client:
            until(lambda: client.get("/v1/nodes").json()["nodes"], "for nodes")
        self.submitter.start()

    def kill_daemons(self, kills: int, inside: float = 0.0) -> None:
        """Kill -9 the daemon so many times; a part of the deaths at points where something is half done."""
        for _ in range(kills):
            if self._random.random() < inside:
                self._die_inside()
            else:
                self._await_moment()
            self._kill_daemon()

    def _await_moment(self) -> None:
        """A random moment of a daemon's life: its first milliseconds, its start, or its work."""
        if not self.service.alive:
            self.service.start()
        usual_s = max(self.service.recoveries_s[-3:])
        draw = self._random.random()
        if draw < 0.1:
            time.sleep(self._random.uniform(0.0, 0.05))
        elif draw < 0.45:
            time.sleep(self._random.uniform(0.3, 1.2) * usual_s)
        elif self.come_up():
            time.sleep(self._random.uniform(0.0, 2.5))

    def come_up(self) -> bool:
        """Have a service that answers, and still knows all that it has acknowledged."""
        if not self.service.alive:
            self.service.start()
        known = set(self.submitter.acknowledged)
        if not self.service.ready():
            return False
        self.readopted += len(self.waiting & attempts_alive(self.service.cluster.attempts))
        self.waiting.clear()
        with suppress(httpx.TransportError):
            lost = known - set(self.service.states())
            assert not lost, f"seed {self.seed}: acknowledged, and unknown after a restart: {lost}"
        return True

    def _die_inside(self) -> None:
        if self.service.alive:
            self._kill_daemon()
        point, when = self._random.choice(self.service.cluster.points), self._random.choice(("before", "after"))
        self.service.start(f"{point}:{self._random.randint(1, 8)}:{when}")
        if self.come_up():
            limit_s = time.monotonic() + 3.0
            while self.service.alive and time.monotonic() < limit_s:
                time.sleep(0.02)

    def _kill_daemon(self) -> None:
        self.waiting |= attempts_alive(self.service.cluster.attempts)
        self.orphaned += sorted(self.waiting)
        self.service.kill()
        self.daemon_kills += 1

    def kill_processes(self, kills: int, with_daemon: float = 0.0) -> None:
        """Kill -9 runners and processes of jobs, now and then the daemon in the same moment."""
        while self.process_kills.total() < kills:
            if not self.service.alive:
                assert self.come_up(), self.service.said()
            time.sleep(self._random.uniform(0.0, 0.6))
            if self._random.random() < with_daemon:
                self._kill_daemon()
            self._kill_process()

    def _kill_process(self) -> None:
        wanted = self._random.choice(("runner", "job", "job"))
        victims = [pid for pid, kind in processes_of(self.service.cluster.attempts).items() if kind == wanted]
        if victims:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(victims), signal.SIGKILL)
                self.process_kills[wanted] += 1

    def end(self) -> None:
        """Let the load end, have a service, and wait until the last job has ended."""
        self.submitter.stop()
        assert self.come_up(), self.service.said()
        self.finish()

    def finish(self) -> None:
        """Wait until the last job has ended."""
        limit_s = time.monotonic() + self.service.cluster.finish_s
        while left := {job: state for job, state in self.service.states().items() if state not in ENDED}:
            assert time.monotonic() < limit_s, f"seed {self.seed}: never ended: {left}; {self._about(min(left))}"
            time.sleep(0.2)

    def _about(self, job: str) -> str:
        """What the service says of a job that does not end."""
        with self.service.client() as client:
            return "; ".join(client.get(path).text for path in (f"/v1/jobs/{job}/why", "/v1/nodes", "/healthz"))


ENDED = ("finished", "failed", "cancelled")


# ------------------------------------------------------------------- the findings


@dataclass(frozen=True)
class Findings:
    """What a storm came to."""

    daemon_kills: int
    process_kills: dict[str, int]
    acknowledged: int
    jobs: int
    attempts: int
    #: Attempts alive at a kill of the daemon that the next one took up alive; those that ended before it came, or
    #: under it; and those that failed and were run again.
    readopted: int
    went_on: int
    restarted: int
    failed_attempts: int
    failed_launches: int
    preemptions: int
    #: Launches on more than one node.
    over_nodes: int
    #: Why attempts were stopped, and how often.
    stops: dict[str, int]
    records: int
    recovery_s: dict[str, float]


def examine(storm: Storm, strangers: bool = False) -> Findings:
    """Check all that must be true, then stop the service and check the journal; gives the figures.

    Jobs of `strangers`, if there are any, may end in any way.
    """
    where = f"seed {storm.seed}"
    submitter, service = storm.submitter, storm.service
    assert not submitter.odd, f"{where}: {submitter.odd}"
    states = service.states()
    lost = {job: states.get(job) for job in submitter.acknowledged if states.get(job) != "finished"}
    assert not lost, f"{where}: acknowledged and not finished: {lost}"
    assert strangers or set(states.values()) <= {"finished"}, f"{where}: {Counter(states.values())}"
    check_witnesses(submitter, where)
    assert service.process is not None
    left = {pid: kind for pid, kind in processes_of(service.cluster.attempts).items() if pid != service.process.pid}
    assert not left, f"{where}: left behind: {left}"
    reports = [path.read_text() for path in (service.folder / "reports").rglob("crash-*")]
    assert not reports, f"{where}: {reports[0]}"
    return _figures(storm, check_journal(service, where))


def check_witnesses(submitter: Submitter, where: str) -> None:
    """Nothing ran twice at once, no attempt twice at all; every job did each of its steps, and lost none it saved."""
    marks = submitter.marks
    twice = [path.read_text() for path in (marks / "twice").iterdir()]
    assert not twice, f"{where}: {twice}"
    lines = [json.loads(line) for line in (marks / "lines").read_text().splitlines()]
    begun = Counter((line["job"], line["attempt"], line["rank"]) for line in lines if line["what"] == "begin")
    again = [one for one, times in begun.items() if times > 1]
    assert not again, f"{where}: attempts that began twice: {again}"
    resumed: dict[tuple[str, int], list[int]] = defaultdict(list)
    for line in lines:
        if line["what"] == "resume":
            resumed[line["job"], line["rank"]].append(line["done"])
    back = {one: steps for one, steps in resumed.items() if steps != sorted(steps)}
    assert not back, f"{where}: saved steps were lost: {back}"
    for job, (steps, processes) in submitter.acknowledged.items():
        for rank in range(processes):
            result = json.loads((marks / "results" / f"{job}.{rank}").read_text())
            assert (result["step"], result["made"]) == (steps, _whole_chain(steps)), f"{where}: {job} {result}"


def _whole_chain(steps: int) -> str:
    made = ""
    for step in range(steps):
        made = chain(made, step)
    return made


def check_journal(service: Service, where: str) -> Store:
    """Folding the journal again gives the very engine that the service had in memory; gives the journal."""
    journal, copy = service.state / "journal.db", service.folder / "copy.db"
    with closing(sqlite3.connect(journal)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        assert target.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    service.stop()
    # On its way out the service writes what it has in memory; the copy is from before it compacted.
    store = Store(f"sqlite:///{journal}")
    newest = store.newest_checkpoint()
    assert newest is not None
    live = beginning(store).engine()
    checkpoint.load(live, newest[1])
    with closing(Store(f"sqlite:///{copy}")) as before:
        folded, seq = fold(before)
    for _, record in store.tail(seq, whole=True):
        folded.apply(record)
    assert same(live.contents(), folded.contents()), f"{where}: {difference(live.contents(), folded.contents())}"
    return store


def beginning(store: Store) -> InitialSettings:
    said = store.initial_settings()
    assert said is not None
    return InitialSettings.from_dict(said)


def fold(store: Store) -> tuple[Engine, int]:
    """The engine from the oldest checkpoint there is, or from the first record if there is none."""
    engine, seq = beginning(store).engine(), 0
    newest = store.newest_checkpoint()
    base = (store.newest_checkpoint(before=newest[0]) or newest) if newest else None
    if base:
        seq, body = base
        checkpoint.load(engine, body)
    for number, record in store.tail(seq, whole=True):
        engine.apply(record)
        seq = number
    return engine, seq


def _figures(storm: Storm, store: Store) -> Findings:
    """Count what happened, from the journal."""
    with closing(store):
        records = [record for _, record in store.tail()]
        last = store.last_seq()
    ends = {(one.job, one.attempt): type(one) for one in records if isinstance(one, _ENDS)}
    stops = [stop for one in records if isinstance(one, Decided) for stop in one.stops]
    launches = [launch for one in records if isinstance(one, Decided) for launch in one.launches]
    orphaned = set(storm.orphaned)
    taken = sorted(storm.service.recoveries_s)
    return Findings(
        daemon_kills=storm.daemon_kills,
        process_kills=dict(storm.process_kills),
        acknowledged=len(storm.submitter.acknowledged),
        jobs=len({launch.job for launch in launches}),
        attempts=len(launches),
        readopted=storm.readopted,
        went_on=sum(ends[one] in (JobFinished, JobStopped) for one in orphaned),
        restarted=sum(ends[one] in (JobFailed, LaunchFailed) for one in orphaned),
        failed_attempts=sum(end is JobFailed for end in ends.values()),
        failed_launches=sum(end is LaunchFailed for end in ends.values()),
        preemptions=sum(stop.why in (StopWhy.PREEMPTED, StopWhy.MOVED) for stop in stops),
        over_nodes=sum(launch.span > Span.NODE for launch in launches),
        stops=dict(Counter(stop.why.value for stop in stops)),
        records=last,
        recovery_s={
            name: round(taken[int(part * (len(taken) - 1))], 2)
            for name, part in (("least", 0.0), ("median", 0.5), ("p90", 0.9), ("most", 1.0))
        },
    )
