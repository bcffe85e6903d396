"""Wishes that name their machines: a policy has chosen, and what is left is to give out GPU numbers.

A job that has the GPUs wished keeps them. Others get free ones of the machines named, or those of jobs that
nobody wished for: the last such job first, none that is protected, and none for nothing. Quotas hold here, too:
a wish beyond the maximum of its queue is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from horae.core.gpu_moves import NOBODY
from horae.core.plan import Kept, Placement, Plan
from horae.core.quotas import QuotaUse
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.states import PLACED, STOPPING, WAITING
from horae.core.wishes import Wishes

Ints = NDArray[np.int64]


def fit_pinned(now: Snapshot, wishes: Wishes, pins: Sequence[Mapping[int, int]]) -> Plan:
    """Place every wish on the machines it names: `pins[i]` is the GPU count by machine of wish i."""
    floor = _Floor(now, set(wishes.job.tolist()))
    for row, machines in zip(wishes.job.tolist(), pins, strict=True):
        floor.want(row, machines)
    floor.make_room()
    placed = tuple(floor.place(row) for row in floor.wanted)
    reason_rows, reason_codes = floor.reasons(wishes.waiting, placed)
    return Plan(
        stopped=tuple((row, floor.taker(row)) for row in floor.losers),
        placed=placed,
        renewed=tuple(row for row in floor.kept if now.table.lease_until_s[row] <= now.now_s),
        reason_rows=reason_rows,
        reason_codes=reason_codes,
        head=NOBODY,
        unprotected_s=floor.unprotected_s(),
        kept=floor.kept_gpus(),
    )


class _Floor:
    """Who has which GPUs while a plan is made."""

    def __init__(self, now: Snapshot, wished: set[int]) -> None:
        ledger = now.gpu_ledger
        self._wished = wished
        self._now, self._table, self._ledger = now, now.table, ledger
        self._machine_of = now.machines.of_gpu
        self._in_order = np.argsort(self._machine_of, kind="stable")
        self._first = np.searchsorted(self._machine_of[self._in_order], np.arange(len(now.machines.names) + 1)).tolist()
        self._owner = ledger.holders[0].copy()
        self._queues = QuotaUse(now.queues)
        for row, gpu_ids in ledger.held.items():
            self._queues.add(int(self._table.quota[row]), len(gpu_ids))
        #: GPUs by machine of every job that gets others than it has, and who keeps or loses what it has.
        self.wanted: dict[int, Mapping[int, int]] = {}
        self.kept: list[int] = []
        self.losers: list[int] = []
        self._over_quota: set[int] = set()

    def want(self, row: int, machines: Mapping[int, int]) -> None:
        """Write down a wish, unless the job has just that or its queue is full."""
        has = self._ledger.held.get(row, ())
        if has and self._by_machine(has) == machines:
            self.kept.append(row)
            return
        queue, more = int(self._table.quota[row]), sum(machines.values()) - len(has)
        if not self._make_way(queue, more):
            self._over_quota.add(row)
            return
        self._queues.add(queue, more)
        self.wanted[row] = machines
        if has:
            self._lose(row)

    def _make_way(self, queue: int, gpus: int) -> bool:
        """Whether a queue may have so many more, once jobs of it that nobody wished for have lost theirs."""
        for row in sorted(self._ledger.held.keys() - self._wished, reverse=True):
            full = self._queues.full(queue, gpus)
            if not full:
                break
            mine = self._queues.within(int(self._table.quota[row]), full)
            if mine and row not in self.losers and not self._protected(row):
                self._lose(row)
        return self._queues.allows(queue, gpus)

    def make_room(self) -> None:
        """Take from jobs that nobody wished for what the wishes need beyond what is free."""
        needed: Counter[int] = Counter()
        for machines in self.wanted.values():
            needed.update(machines)
        taken: list[int] = []
        for machine, gpus in sorted(needed.items()):
            for row in self._idlers(machine):
                if len(self._free(machine)) >= gpus:
                    break
                taken.append(row)
                self._lose(row)
            free = len(self._free(machine))
            assert free >= gpus, f"{gpus} GPUs of machine {self._now.machines.names[machine]} are wished, {free} free"
        for row in taken:
            self._spare(row, needed)

    def _spare(self, row: int, needed: Counter[int]) -> None:
        """Let a job have its GPUs back if, after all that others lost, nobody needs them."""
        gpu_ids = list(self._ledger.held[row])
        if (self._owner[gpu_ids] != NOBODY).any():
            return
        mine = self._by_machine(self._ledger.held[row])
        if all(len(self._free(machine)) - gpus >= needed[machine] for machine, gpus in mine.items()):
            self._owner[gpu_ids] = self._ledger.holders[0, gpu_ids]
            for sharer in self._sharers(gpu_ids):
                self.losers.remove(sharer)
                self._queues.add(int(self._table.quota[sharer]), len(gpu_ids))

    def place(self, row: int) -> Placement:
        """Give a job GPU numbers: those that nobody sits on first, then the lowest."""
        mine: list[int] = []
        for machine, gpus in sorted(self.wanted[row].items()):
            free = self._free(machine)
            idle_first = np.argsort(self._ledger.occupants[0, free] != NOBODY, kind="stable")
            mine += free[idle_first[:gpus]].tolist()
        mine.sort()
        self._owner[mine] = row
        state = int(self._table.state[row])
        idle = bool((self._ledger.occupants[0, mine] == NOBODY).all())
        return Placement(row, tuple(mine), self._now.machines.span(mine), idle and state in (int(WAITING), int(PLACED)))

    def taker(self, row: int) -> int:
        """Who gets the GPUs that a job lost, or nobody."""
        takers = {int(self._owner[gpu]) for gpu in self._ledger.held[row]} - {row, NOBODY}
        return min(takers, default=NOBODY)

    def reasons(self, waiting: Reason, placed: tuple[Placement, ...]) -> tuple[Ints, NDArray[np.uint8]]:
        """Rows whose reason changes, and the new codes."""
        now, table = self._now, self._table
        most = np.where(now.rates > 0, now.open_gpus, 0).max(axis=1, initial=0)
        code = np.where(most < table.gpus_min[now.rows], int(Reason.CLUSTER_TOO_SMALL), int(waiting))
        number = {row: i for i, row in enumerate(now.rows.tolist())}
        if waiting in (Reason.LEASED, Reason.BEHIND_SHARE):
            # Jobs are compared only for GPUs that may change hands; it is not known who would get the others.
            leased = np.where(self._could_use_kept_gpus(), int(Reason.LEASED), int(Reason.BEHIND_SHARE))
            code = np.where(code == int(waiting), leased, code)
        if now.queues.has_maximum:
            full = [not self._queues.allows(int(table.quota[row]), int(table.gpus_min[row])) for row in now.rows]
            code[np.array(full, np.bool_) & (code != int(Reason.CLUSTER_TOO_SMALL))] = int(Reason.OVER_QUOTA)
        for row in self._over_quota:
            code[number[row]] = int(Reason.OVER_QUOTA)
        for row in self._ledger.held.keys() - set(self.losers):
            if row in number:
                vacating = int(table.state[row]) in (int(PLACED), int(STOPPING))
                code[number[row]] = int(Reason.VACATING if vacating else Reason.NONE)
        for one in placed:
            code[number[one.row]] = int(Reason.NONE if one.ready else Reason.VACATING)
        changed = np.flatnonzero(table.reason[now.rows] != code)
        return now.rows[changed], code[changed].astype(np.uint8)

    def unprotected_s(self) -> float:
        """When the first job that is protected is so no more, if anybody waits for that."""
        if set(self._now.rows.tolist()) <= (self._ledger.held.keys() - set(self.losers)) | self.wanted.keys():
            return np.inf
        until_s = [float(self._table.protected_until_s[row]) for row in self._ledger.held]
        return min((when_s for when_s in until_s if when_s > self._now.now_s), default=np.inf)

    def kept_gpus(self) -> Kept:
        """The protected jobs, which keep their GPUs."""
        rows = np.array(self._guarded, np.int64)
        return Kept(rows, self._table.protected_until_s[rows])

    @property
    def _guarded(self) -> list[int]:
        """Rows that keep their GPUs and are protected."""
        return [row for row in self._ledger.held if row not in self.losers and self._protected(row)]

    def _could_use_kept_gpus(self) -> NDArray[np.bool_]:
        """Jobs that could use GPUs of protected jobs: of a type with enough GPUs, if all of them could change hands."""
        now, types = self._now, len(self._now.cluster.gpu_types)
        kept_ids = np.array(sorted({gpu for row in self._guarded for gpu in self._ledger.held[row]}), np.int64)
        kept = np.bincount(now.cluster.gpu_type[kept_ids[self._ledger.gpu_open[kept_ids]]], minlength=types)
        enough = now.open_gpus >= self._table.gpus_min[now.rows][:, None]
        return np.asarray(((now.rates > 0) & (kept > 0) & enough).any(axis=1))

    def _protected(self, row: int) -> bool:
        return bool(self._table.protected_until_s[row] > self._now.now_s)

    def _by_machine(self, gpu_ids: tuple[int, ...]) -> dict[int, int]:
        return dict(Counter(self._machine_of[list(gpu_ids)].tolist()))

    def _gpus(self, machine: int) -> Ints:
        """GPU numbers of a machine, in order."""
        return self._in_order[self._first[machine] : self._first[machine + 1]]

    def _free(self, machine: int) -> Ints:
        """GPUs of a machine that nobody has."""
        gpus = self._gpus(machine)
        free: Ints = gpus[(self._owner[gpus] == NOBODY) & self._ledger.gpu_open[gpus]]
        return free

    def _idlers(self, machine: int) -> list[int]:
        """Jobs on a machine that nobody wished for and that may lose their GPUs, the last first; pairs go together."""
        gpus = self._gpus(machine)
        seats = self._ledger.holders[:, gpus[self._owner[gpus] != NOBODY]]
        if not seats.size:
            return []
        rows = [row for row in np.unique(seats).tolist() if row != NOBODY]
        stay = {*self.kept, *self.wanted, *self.losers}
        shares_with_stayer = {row for pair in seats.T.tolist() if stay & set(pair) for row in pair}
        return [row for row in reversed(rows) if row not in stay | shares_with_stayer and not self._protected(row)]

    def _sharers(self, gpu_ids: list[int]) -> list[int]:
        """Jobs that have some GPUs by plan: one, or two that share them."""
        return [row for row in np.unique(self._ledger.holders[:, gpu_ids]).tolist() if row != NOBODY]

    def _lose(self, row: int) -> None:
        """Take a job's GPUs away; a job that shares them loses them, too."""
        gpu_ids = list(self._ledger.held[row])
        for sharer in self._sharers(gpu_ids):
            if sharer not in self.losers:
                self.losers.append(sharer)
                if sharer not in self.wanted:
                    self._queues.add(int(self._table.quota[sharer]), -len(gpu_ids))
        self._owner[gpu_ids] = NOBODY
