"""Journal compaction: which progress reports can be dropped without changing what the journal tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horae.core.events import JobProgressed

#: Most reports of an attempt that stay; an attempt with fewer reports is not compacted.
MAX_KEPT_REPORTS = 4


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
