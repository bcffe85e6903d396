"""Reports on progress that nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horae.core.events import JobProgressed

#: Of an attempt so many reports stay at most: fewer need no looking at.
MOST_KEPT = 4


def superseded(reports: Iterable[tuple[int, JobProgressed]]) -> list[int]:
    """Numbers of the reports without which a journal tells the same speeds, of attempts whose reports are all here.

    An attempt's speed is measured from its second report (the first comes from a process that still
    loads) to the last one that comes before all is done; and its newest says where it is.
    """
    ways: dict[tuple[str, int], list[tuple[int, float]]] = {}
    for seq, report in reports:
        ways.setdefault((report.job, report.attempt), []).append((seq, report.work_done))
    return sorted(seq for way in ways.values() for seq in _between(way))


def _between(way: Sequence[tuple[int, float]]) -> list[int]:
    most = max(done for _, done in way)
    before_most = [seq for seq, done in way if done < most][-1:]
    kept = {*(seq for seq, _ in way[:2]), *before_most, way[-1][0]}
    return [seq for seq, _ in way if seq not in kept]
