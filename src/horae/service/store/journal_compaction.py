"""Journal compaction: records, and progress reports, that can be dropped without changing what the journal tells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, select

from horae.core.events import JobProgressed, NodeDraining, NodeJoined, NodeLost, NumbersRaised, SettingsChanged
from horae.service.store import schema
from horae.service.store.record_rows import record_of
from horae.service.store.rows import chunks, last_number

#: Most reports of an attempt that stay; an attempt with fewer reports is not compacted.
MAX_KEPT_REPORTS = 4
#: Record kinds that are never dropped, since later records depend on them: GPU numbering, which nodes there are and
#: take jobs, policy settings, and which numbers were used.
_ALWAYS_KEPT = tuple(record.__name__ for record in (NodeJoined, NodeLost, NodeDraining, SettingsChanged, NumbersRaised))


def compact(
    connection: Connection, before_seq: int, keep_since_s: float, jobs: Iterable[str], compacted: int
) -> tuple[int, int]:
    """Drop records before `before_seq`; returns how many, and the number up to which reports are compacted now.

    1. Records after the older of the two checkpoints always stay: recovery may start there.
    2. Records older than `keep_since_s` go, except nodes and settings (`_ALWAYS_KEPT`) and records that name one
       of `jobs`.
    3. Progress reports that later reports supersede go, whatever their age. Those before `compacted` are done.
    """
    journal = schema.journal
    covered = connection.scalar(select(func.min(schema.checkpoints.c.seq))) or 0
    # The last record always stays: its time is where the clock goes on.
    end = min(before_seq, covered + 1, last_number(connection, journal.c.seq))
    first_kept = select(journal.c.seq).where(journal.c.at_s >= keep_since_s).order_by(journal.c.seq).limit(1)
    old = journal.c.seq < min(end, connection.scalar(first_kept) or end)
    spared = _records_naming(connection, jobs)
    old_seqs = connection.scalars(select(journal.c.seq).where(old & journal.c.kind.not_in(_ALWAYS_KEPT))).all()
    dropped = 0
    for numbers in chunks([seq for seq in old_seqs if seq not in spared]):
        dropped += _drop(connection, journal.c.seq.in_(numbers))
    reports = _progress_reports(connection, compacted, end)
    for numbers in chunks([seq for seq in superseded_reports(reports) if seq < end]):
        dropped += _drop(connection, journal.c.seq.in_(numbers))
    return dropped, end


def superseded_reports(reports: Iterable[tuple[int, JobProgressed]]) -> list[int]:
    """Record numbers of the reports that can be dropped. `reports` must hold all reports of each attempt.

    The speed of an attempt is measured from its second report (during the first the process still loads) to the
    last report before all work is done. Its newest report gives its progress. These stay.
    """
    by_attempt: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for seq, report in reports:
        by_attempt.setdefault((report.job, report.attempt), []).append((seq, report.work_done))
    return sorted(seq for points in by_attempt.values() for seq in _dispensable(points))


def _dispensable(points: Sequence[tuple[int, float]]) -> list[int]:
    most_done = max(done for _, done in points)
    last_before_most = [seq for seq, done in points if done < most_done][-1:]
    kept = {*(seq for seq, _ in points[:2]), *last_before_most, points[-1][0]}
    return [seq for seq, _ in points if seq not in kept]


def _drop(connection: Connection, which: ColumnElement[bool]) -> int:
    """Delete records and their names; returns the number of records."""
    journal, named = schema.journal, schema.journal_jobs
    connection.execute(delete(named).where(named.c.seq.in_(select(journal.c.seq).where(which))))
    return connection.execute(delete(journal).where(which)).rowcount


def _records_naming(connection: Connection, jobs: Iterable[str]) -> set[int]:
    """Numbers of the records that name one of these jobs."""
    named = schema.journal_jobs
    return {
        seq
        for names in chunks(sorted(set(jobs)))
        for seq in connection.scalars(select(named.c.seq).where(named.c.job.in_(names)))
    }


def _progress_reports(connection: Connection, since: int, end: int) -> Iterator[tuple[int, JobProgressed]]:
    """All progress reports of jobs with more than `MAX_KEPT_REPORTS`, one of them in [since, end)."""
    journal, named = schema.journal, schema.journal_jobs
    is_report = journal.c.kind == JobProgressed.__name__
    joined = named.join(journal, journal.c.seq == named.c.seq)
    new = select(named.c.job).select_from(joined).where(is_report, journal.c.seq >= since, journal.c.seq < end)
    query = select(journal.c.seq, journal.c.body).select_from(joined).where(is_report)
    for jobs in chunks(list(connection.scalars(new.distinct()))):
        counted = select(named.c.job).select_from(joined).where(is_report, named.c.job.in_(jobs), journal.c.seq < end)
        many = counted.group_by(named.c.job).having(func.count() > MAX_KEPT_REPORTS)
        for seq, body in connection.execute(query.where(named.c.job.in_(many)).order_by(journal.c.seq)):
            record = record_of(seq, body)
            assert isinstance(record, JobProgressed)
            yield seq, record
