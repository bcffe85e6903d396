"""How fast an engine comes back from its journal: 100,000 records, with a checkpoint and without."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench import Bench, note
from benchmarks.part import Part, Row
from benchmarks.serving import GPUS, jobs
from horae.backends.local.gpu_detection import parse_virtual
from horae.backends.task import Task
from horae.core import checkpoint
from horae.core.commands import Decided
from horae.core.engine import Engine
from horae.core.events import Event, JobFinished, JobProgressed, JobStarted, JobStopped, JobSubmitted
from horae.service.initial_settings import InitialSettings
from horae.service.job_file import read_job, spec_of, task_of
from horae.service.recovery import recover
from horae.service.store.store import Store

RECORDS, LIMIT_S = 100_000, 10.0
_POLICIES = ("fifo-backfill", "tiresias")
#: Jobs in the queue, and reports of every running job between two decisions.
_QUEUED, _REPORTS = 10_000, 4
_PAGE = 1_000

_Record = Event | Decided


def measure_recovery(bench: Bench) -> Part:
    """Records as a busy day leaves them: submissions, reports, ends, decisions."""
    rows: list[Row] = []
    missed: list[str] = []
    for policy in _POLICIES:
        note(f"recovery, {bench.sizes.records:,} records, {policy}")
        beginning = InitialSettings(parse_virtual(GPUS), policy)
        path = bench.folder / f"{policy}.db"
        store = Store(f"sqlite:///{path}", own=True)
        engine = _write(store, beginning, bench.sizes.records)
        read_s = _read_s(path)
        for way in ("journal alone", "checkpoint"):
            found, wall_s, cpu_s = _recover(store, beginning)
            if found.contents()["jobs"]["state"].tolist() != engine.contents()["jobs"]["state"].tolist():
                missed.append(f"{policy}, {way}: the engine that came back is another.")
            if bench.sizes.records >= RECORDS and cpu_s > LIMIT_S:
                missed.append(f"{policy}, {way}: {cpu_s:.1f} s; at most {LIMIT_S:g} are allowed.")
            rows.append({"policy": policy, "from": way, "wall_s": round(wall_s, 2), "cpu_s": round(cpu_s, 2)})
            rows[-1] |= {"plain_s": round(read_s, 2), "ratio": round(cpu_s / read_s, 2)}
            rows[-1] |= {"MB": round(path.stat().st_size / 1e6, 1), "holds": _holds(cpu_s, wall_s)}
            store.save_checkpoint(store.last_seq(), checkpoint.save(engine))
        store.close()
    notes = [
        f"{bench.sizes.records:,} records, {_QUEUED:,} jobs queued all the time, 16 GPUs that report their progress.",
        "plain_s: CPU time to read all rows and parse their JSON, and no more.",
    ]
    return Part(f"Recovery (limit: {LIMIT_S:g} CPU s for {RECORDS:,} records)", rows, notes, missed)


def _holds(cpu_s: float, wall_s: float) -> str:
    return "NO" if cpu_s > LIMIT_S else "yes" if wall_s <= LIMIT_S else "CPU only"


def _recover(store: Store, beginning: InitialSettings) -> tuple[Engine, float, float]:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    engine, _ = recover(store, beginning)
    return engine, time.perf_counter() - began_s, time.process_time() - cpu_s


def _read_s(path: Path) -> float:
    """CPU seconds of a plain reader."""
    began_s = time.process_time()
    connection = sqlite3.connect(path)
    for (body,) in connection.execute("SELECT body FROM journal ORDER BY seq"):
        json.loads(body)
    connection.close()
    return time.process_time() - began_s


def _write(store: Store, beginning: InitialSettings, count: int) -> Engine:
    """A journal of so many records, and the engine that they lead to."""
    engine, tasks = beginning.engine(), list[Task]()
    page: list[_Record] = []
    written = 0
    for record in busy_day(engine, tasks, _QUEUED):
        page.append(record)
        if len(page) == min(_PAGE, count - written):
            written += len(page)
            store.append(page, tasks)
            page.clear()
            tasks.clear()
        if written == count:
            break
    return engine


def busy_day(engine: Engine, tasks: list[Task], queued: int) -> Iterator[_Record]:
    """What happens, without end; each record has been folded when it is given."""
    coming = submissions(engine, tasks)
    for _ in range(queued):
        yield _folded(engine, next(coming))
    now_s = 0.0
    while True:
        now_s += 10.0
        record = engine.with_evidence(engine.decide(now_s))
        yield record
        for stop in record.stops:
            yield _folded(engine, JobStopped(now_s, stop.job, stop.attempt, work_done=0.0))
        for launch in record.launches:
            yield _folded(engine, JobStarted(now_s, launch.job, launch.attempt))
        for _ in range(_REPORTS):
            now_s += 10.0
            yield from (_folded(engine, event) for event in _reports(engine, now_s))
        row = next(iter(engine.gpus.occupied))
        yield _folded(engine, JobFinished(now_s, engine.jobs.specs[row].id, int(engine.jobs.attempt[row])))
        yield _folded(engine, next(coming))


def _folded(engine: Engine, event: Event) -> Event:
    engine.apply(event)
    return event


def _reports(engine: Engine, now_s: float) -> list[Event]:
    """Every job that runs tells how far it is; none is as fast as it was."""
    table = engine.jobs
    return [
        JobProgressed(now_s, table.specs[row].id, int(table.attempt[row]), (now_s - table.launched_s[row]) * 0.01, 0.5)
        for row in engine.gpus.occupied
    ]


def submissions(engine: Engine, tasks: list[Task]) -> Iterator[JobSubmitted]:
    """Jobs without end that come now, and what they run."""
    for number, said in enumerate(jobs(1.0)):
        job = read_job(dict(said))
        spec = spec_of(job, f"{job.name}-{number}", "somebody", engine.now_s, engine.gpus.cluster)
        tasks.append(task_of(job, spec.id, "somebody", spec.work))
        yield JobSubmitted(engine.now_s, spec)
