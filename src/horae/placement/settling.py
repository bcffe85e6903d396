"""Jobs that load, or have not yet worked as long as they loaded, keep their GPUs; who would take these waits for them.

If the taker preempted another job instead, that one would stand before the job that loads in line. It would take its
place back as soon as it may, and both would have loaded once more than needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from horae.core.arrays import Bytes, Ints
from horae.core.gpu_moves import NOBODY
from horae.core.node_room import room_of, taken_room
from horae.core.plan import Kept, Placement, Plan
from horae.core.quotas import QuotaUse
from horae.core.reasons import RULES, Reason
from horae.core.snapshot import Snapshot
from horae.placement.kernel_args import FREE

_LEASED, _KEPT_FOR_OTHERS = int(Reason.LEASED), int(Reason.KEPT_FOR_OTHERS)
_OVER_QUOTA = int(Reason.OVER_QUOTA)
#: By reason, whether it says that there are no GPUs, or no quota, for a job.
_LACK = np.zeros(256, np.bool_)
_LACK[[int(reason) for reason in (Reason.NO_FREE_GPUS, Reason.OVER_QUOTA, *RULES)]] = True


def settling_losers(now: Snapshot, plan: Plan) -> list[int]:
    """Settling jobs that would lose their GPUs by a plan."""
    until_s = now.table.protected_until_s
    return [row for row, _ in plan.stopped if until_s[row] > now.now_s]


class RestOfPlan:
    """What remains of a plan when settling jobs keep GPUs that they would lose by it.

    All that a job would get which has to wait stays as it is: running jobs keep it, and what is free stays free for it.
    """

    def __init__(self, now: Snapshot, plan: Plan, settling: list[int]) -> None:
        self._now, self._plan, self._settling = now, _first_served_first(now, plan, settling), settling
        self._held = now.gpu_ledger.held
        self._losers = {row for row, _ in plan.stopped}
        self._room = room_of(now.table, now.gpu_ledger, pairs=True)
        #: Rows that keep the GPUs they would lose; placements that go on; rows that wait for the GPUs they would get.
        self.kept: set[int] = set()
        self.going = list(self._plan.placed)
        self.waiting: set[int] = set()
        self._keep(settling)
        self.impatient = self._impatient()

    @property
    def plan(self) -> Plan:
        """The plan, as far as it goes on."""
        rows, codes = self._reasons()
        stopped = tuple((row, self._taker(row, by)) for row, by in self._plan.stopped if row not in self.kept)
        rest = self._plan._replace(stopped=stopped, placed=tuple(self.going), reason_rows=rows, reason_codes=codes)
        return self._kept_in(rest)

    def _impatient(self) -> set[int]:
        """Of the rows that wait, those that have waited for a settling job before and would now wait for a later one.

        Else a job could wait for ever, for one job that loads after the other.
        """
        table = self._now.table
        again = {row for row in self.waiting if table.reason[row] == _LEASED}
        impatient: set[int] = set()
        for new in self._plan.placed:
            if new.row in again:
                later = [row for row in self._settling if table.launched_s[row] > table.reason_since_s[new.row]]
                if not {gpu for row in later for gpu in self._held[row]}.isdisjoint(new.gpu_ids):
                    impatient.add(new.row)
        return impatient

    def told(self, plan: Plan) -> Plan:
        """Another plan, without the patient ones of those who wait, with what these are told."""
        before = self._now.table.reason
        codes = before.copy()
        codes[plan.reason_rows] = plan.reason_codes
        codes[list(self.waiting - self.impatient)] = _LEASED
        changed = np.flatnonzero(codes != before)
        return self._kept_in(plan._replace(reason_rows=changed, reason_codes=codes[changed]))

    def _kept_in(self, plan: Plan) -> Plan:
        """A plan with who keeps GPUs by it, and until when."""
        until_s = self._now.table.protected_until_s[self._settling]
        kept = Kept(np.array(self._settling), until_s)
        return plan._replace(unprotected_s=min(plan.unprotected_s, float(until_s.min())), kept=kept)

    def _keep(self, rows: Iterable[int]) -> None:
        """These jobs keep their GPUs; and so does every job that would only lose them to one that now waits."""
        self.kept.update(rows)
        while back := self._in_the_way() or self._over_quota() or self._without_room():
            self.going = [new for new in self.going if new not in back]
            given_up, taken = _gpus(back), _gpus(self.going)
            if self._room is not None:
                # A job may have lost its GPUs for their CPUs or memory alone: all GPUs of the nodes count.
                given_up = self._on_same_nodes(given_up)
            self.waiting.update(new.row for new in back if new.row not in self._losers)
            self.kept.update(new.row for new in back if new.row in self._losers)
            for row in self._losers - self.kept:
                if given_up.isdisjoint(self._held[row]) or not taken.isdisjoint(self._held[row]):
                    continue
                if self._room is None or self._leaves_room(row):
                    self.kept.add(row)

    def _taker(self, row: int, by: int) -> int:
        """The job that gets GPUs of one that still loses them, or -1."""
        if by not in self.waiting and by not in self.kept:
            return by
        return next((new.row for new in self.going if not set(self._held[row]).isdisjoint(new.gpu_ids)), -1)

    def _reasons(self) -> tuple[Ints, Bytes]:
        """The rows whose reason changes, and the new reasons."""
        before, free = self._now.table.reason, self._free_by_type()
        codes = before.copy()
        codes[self._plan.reason_rows] = self._plan.reason_codes
        kept = list(self.kept)
        codes[kept] = before[kept]
        codes[list(self.waiting)] = _LEASED
        if self._now.queues.has_maximum or free.any():
            codes[self._could_have(codes, free)] = _KEPT_FOR_OTHERS
        changed = np.flatnonzero(codes != before)
        return changed, codes[changed]

    def _could_have(self, codes: Bytes, free: Ints) -> Ints:
        """Rows of jobs whose GPUs, or whose quota, would be there if they were not for those who wait."""
        table, rows = self._now.table, self._now.rows
        rows = rows[_LACK[codes[rows]]]
        gpus, fits = table.gpus_min[rows], np.zeros(len(rows), np.bool_)
        for gpu_type, count in enumerate(free.tolist()):
            if count > 0:
                fits |= (gpus <= count) & (table.types[rows] >> gpu_type & 1 > 0)
        rows = rows[fits | (codes[rows] == _OVER_QUOTA)]
        if self._now.queues.has_maximum:
            use = self._use()
            allowed = [use.allows(int(table.quota[row]), int(table.gpus_min[row])) for row in rows]
            rows = rows[np.array(allowed, np.bool_)]
        return rows

    def _use(self) -> QuotaUse:
        """GPUs of the queues by what goes on."""
        use, quota = self._use_by_holders(), self._now.table.quota
        for new in self.going:
            use.add(int(quota[new.row]), len(new.gpu_ids))
        return use

    def _free_by_type(self) -> Ints:
        """Free GPUs of each type by what goes on."""
        ledger, leaving = self._now.gpu_ledger, self._losers - self.kept
        free, gpu_type = ledger.by_type[FREE].copy(), ledger.cluster.gpu_type
        if not leaving and not self.going:
            return free
        both = {gpu: {*ledger.holders[:, gpu].tolist()} - {NOBODY} for row in leaving for gpu in self._held[row]}
        left = {gpu for gpu, holders in both.items() if holders <= leaving and ledger.gpu_open[gpu]}
        taken = [gpu for gpu in _gpus(self.going) if gpu in left or ledger.holders[0, gpu] == NOBODY]
        np.add.at(free, gpu_type[list(left)], 1)
        np.subtract.at(free, gpu_type[taken], 1)
        return free

    def _in_the_way(self) -> list[Placement]:
        """Placements on GPUs that others keep, or of jobs that stay where they are."""
        gpus = {gpu for row in self.kept for gpu in self._held[row]}
        return [new for new in self.going if new.row in self.kept or not gpus.isdisjoint(new.gpu_ids)]

    def _over_quota(self) -> list[Placement]:
        """The first placement that exceeds a maximum of its queue beside those who keep their GPUs; none if all fit."""
        if not self._now.queues.has_maximum:
            return []
        use, quota = self._use_by_holders(), self._now.table.quota
        for new in self.going:
            if not use.allows(int(quota[new.row]), len(new.gpu_ids)):
                return [new]
            use.add(int(quota[new.row]), len(new.gpu_ids))
        return []

    def _without_room(self) -> list[Placement]:
        """The first placement that lacks CPUs or memory beside those who keep theirs; none if all fit."""
        if self._room is None:
            return []
        seats = self._seats(self._losers - self.kept, ())
        for new in self.going:
            _seat(new.row, new.gpu_ids, seats)
            if self._exceeds(seats, new.gpu_ids):
                return [new]
        return []

    def _leaves_room(self, row: int) -> bool:
        """Whether a job that would lose its GPUs could keep them beside all who keep theirs and all that goes on."""
        return not self._exceeds(self._seats(self._losers - self.kept - {row}, self.going), self._held[row])

    def _exceeds(self, seats: Ints, gpu_ids: tuple[int, ...]) -> bool:
        """Whether jobs on some seats take more CPUs or memory than there is on the nodes of some GPUs."""
        assert self._room is not None
        cluster = self._now.cluster
        nodes = np.unique(cluster.gpu_node[list(gpu_ids)])
        return bool((taken_room(self._room.asks, seats, cluster) > cluster.room)[:, nodes].any())

    def _seats(self, leaving: set[int], going: Iterable[Placement]) -> Ints:
        """The seats of the ledger without some jobs and with some placements."""
        seats = np.where(np.isin(self._now.gpu_ledger.holders, list(leaving)), NOBODY, self._now.gpu_ledger.holders)
        alone = seats[0] == NOBODY
        seats[0, alone], seats[1, alone] = seats[1, alone], NOBODY
        for new in going:
            _seat(new.row, new.gpu_ids, seats)
        return seats

    def _on_same_nodes(self, gpu_ids: set[int]) -> set[int]:
        """All GPUs of the nodes on which some GPUs are."""
        gpu_node = self._now.cluster.gpu_node
        return set(np.flatnonzero(np.isin(gpu_node, gpu_node[list(gpu_ids)])).tolist())

    def _use_by_holders(self) -> QuotaUse:
        """GPUs of the queues by those who keep theirs."""
        use, quota = QuotaUse(self._now.queues), self._now.table.quota
        for row, gpu_ids in self._held.items():
            if row not in self._losers or row in self.kept:
                use.add(int(quota[row]), len(gpu_ids))
        return use


def _seat(row: int, gpu_ids: tuple[int, ...], seats: Ints) -> None:
    """Put a job onto GPUs that are empty or have one job."""
    ids = list(gpu_ids)
    seats[0 if seats[0, ids[0]] == NOBODY else 1, ids] = row


def _first_served_first(now: Snapshot, plan: Plan, settling: list[int]) -> Plan:
    """The plan in which, of jobs that would get alike GPUs, the last ones get those of settling jobs, and so wait."""
    if len(plan.placed) == 1:
        return plan
    late = {gpu for row in settling for gpu in now.gpu_ledger.held[row]}
    alike: dict[tuple[int, ...], list[int]] = {}
    gpu_type, table = now.cluster.gpu_type, now.table
    asked = (table.nodes, table.cpus_per_gpu, table.memory_mb_per_gpu)
    for at, new in enumerate(plan.placed):
        what = [int(column[new.row]) for column in asked]
        alike.setdefault((len(new.gpu_ids), int(gpu_type[new.gpu_ids[0]]), int(new.span), *what), []).append(at)
    placed, taker = list(plan.placed), {}
    for places in alike.values():
        is_late = [not late.isdisjoint(placed[at].gpu_ids) for at in places]
        if is_late == sorted(is_late):
            continue
        places = _exchangeable(now, plan, places)
        # In order of the jobs: first what can be had now.
        got = sorted((placed[at] for at in places), key=lambda new: not late.isdisjoint(new.gpu_ids))
        for at, row, new in zip(places, [placed[at].row for at in places], got, strict=True):
            placed[at], taker[new.row] = new._replace(row=row), row
    if not taker:
        return plan
    stopped = tuple((row, taker.get(by, by)) for row, by in plan.stopped)
    return plan._replace(stopped=stopped, placed=tuple(placed))


def _exchangeable(now: Snapshot, plan: Plan, places: list[int]) -> list[int]:
    """Those positions of placements at which jobs without GPUs get some that they share with no other job."""
    losers, sharers = {row for row, _ in plan.stopped}, Counter(new.gpu_ids[0] for new in plan.placed)
    leaving, holders = {*losers, NOBODY}, now.gpu_ledger.holders
    return [
        at
        for at in places
        if plan.placed[at].row not in losers
        and sharers[plan.placed[at].gpu_ids[0]] == 1
        and leaving.issuperset(holders[:, plan.placed[at].gpu_ids].ravel().tolist())
    ]


def _gpus(placements: Iterable[Placement]) -> set[int]:
    return {gpu for new in placements for gpu in new.gpu_ids}
