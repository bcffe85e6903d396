"""The placement rules by name, and the step from wishes to a plan."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Bytes, Floats, Ints
from horae.core.cluster import Span
from horae.core.errors import UserError, did_you_mean
from horae.core.gpu_ledger import GpuLedger
from horae.core.gpu_moves import NOBODY
from horae.core.job import PACK_LIMIT
from horae.core.node_room import NodeRoom, room_of
from horae.core.plan import Placement, Plan
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.placement import PLACEMENTS
from horae.placement.choose import BEST_EFFORT, BY_SKEW, CONSOLIDATED, LEAST_FRAGMENTATION
from horae.placement.kept_gpus import FreeWalk, name_kept_gpus
from horae.placement.kernel_args import JobColumns, Totals
from horae.placement.pinned import fit_pinned
from horae.placement.room_checks import with_room, without_pins
from horae.placement.settling import RestOfPlan, settling_losers
from horae.placement.walk import fit
from horae.placement.walk_records import Answer, WalkRecords

_RULES = {
    "consolidated": (CONSOLIDATED, False),
    "best-effort": (BEST_EFFORT, False),
    # Where only the count matters, all GPUs of a type are one big node.
    "anywhere": (CONSOLIDATED, True),
    "least-fragmentation": (LEAST_FRAGMENTATION, False),
    "tiresias": (BY_SKEW, False),
}

_SPANS = tuple(Span)
#: Reasons that no reservation would help against, or that mean that the job has its GPUs.
_NOT_STARVING = [int(r) for r in (Reason.NONE, Reason.VACATING, Reason.OVER_QUOTA, Reason.CLUSTER_TOO_SMALL)]


class UnknownPlacement(UserError):
    """A placement rule that does not exist."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"No placement is called {name!r}.{did_you_mean(name, PLACEMENTS)} There are: {', '.join(PLACEMENTS)}."
        )


def make_placement(name: str) -> GangPlacement:
    """The placement rule of this name; `tiresias:0.4` sets the skew above which it consolidates."""
    rule, colon, limit = name.partition(":")
    if rule not in _RULES or (colon and rule != "tiresias"):
        raise UnknownPlacement(name)
    if not colon:
        return GangPlacement(*_RULES[rule])
    try:
        pack_limit = float(limit)
    except ValueError:
        pack_limit = np.nan
    if not 0 <= pack_limit <= 1:
        raise UserError(f"The limit of placement {name!r} is no number from 0 to 1, such as tiresias:{PACK_LIMIT}.")
    return GangPlacement(*_RULES[rule], pack_limit)


class GangPlacement:
    """Places gangs by one rule. Keeps room for the walk and a view of the open GPUs; remembers nothing else."""

    def __init__(self, rule: int, flat: bool, pack_limit: float = PACK_LIMIT) -> None:
        self._how = (rule, flat, pack_limit)
        self._flat = flat
        self._by_rule = WalkRecords(rule, flat, pack_limit)
        #: Where CPUs or memory may run out it matters on which node GPUs are, even by a rule that only counts GPUs.
        self._by_node = WalkRecords(LEAST_FRAGMENTATION, False, pack_limit) if flat else self._by_rule
        #: What the walks of a decision rest on: its records, and CPUs and memory that are left where they may run out.
        self._records: WalkRecords = self._by_rule
        self._room: NodeRoom | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> GangPlacement:
        """The same rule with room of its own: copies of columns would no longer be parts of their blocks."""
        return GangPlacement(*self._how)

    @property
    def flat(self) -> bool:
        """Whether only the count matters."""
        return self._flat

    def fit(self, now: Snapshot, wishes: Wishes) -> Plan:
        """Give GPUs to the wishes in order, within quotas, preempting only for jobs that are then placed."""
        self._room = room_of(now.table, now.gpu_ledger, pairs=len(wishes.partner) > 0)
        if self._room is None:
            self._records = self._by_rule
            return self._fit(now, wishes) if wishes.pins is None else fit_pinned(now, wishes, wishes.pins)
        self._records = self._by_node
        return with_room(now, self._fit(now, without_pins(now, wishes)), self._flat)

    def _fit(self, now: Snapshot, wishes: Wishes) -> Plan:
        """The plan for wishes that do not name their machines."""
        self._records.make_room(now, len(wishes.job))
        plan, held_up = self._plan(now, wishes, self._records.jobs)
        settling = settling_losers(now, plan) if plan.stopped else []
        if settling:
            rest = RestOfPlan(now, plan, settling)
            if rest.impatient:
                keep = self._records.jobs_that_keep(now.table.protected_until_s)
                plan, held_up = self._plan(now, wishes.without(rest.waiting - rest.impatient), keep)
            plan = rest.told(plan) if rest.impatient else rest.plan
        everybody_has_gpus = len(now.gpu_ledger.held) - len(plan.stopped) + len(plan.placed) >= len(now)
        reserved = plan.head != NOBODY
        if not wishes.preempt or everybody_has_gpus or not (held_up or reserved or len(wishes.unkept_key)):
            return plan
        walks = [self._walk_freely(now, wishes, wishes.key)] if held_up or reserved else []
        if len(wishes.unkept_key):
            walks.append(self._walk_freely(now, wishes, wishes.unkept_key))
        return name_kept_gpus(now, wishes, plan, walks)

    def _plan(self, now: Snapshot, wishes: Wishes, jobs: JobColumns) -> tuple[Plan, bool]:
        """What the wishes come to if jobs are protected as these columns say, and whether that may hold one up."""
        answer, head = self._records.answer, NOBODY
        totals = self._walk(now, wishes, jobs, wishes.preempt)
        held_up = totals.held_up
        if wishes.reserve_after_s < np.inf:
            head = _starving(now, wishes, answer, totals)
            if head != NOBODY:
                # While a job has a reservation no other is preempted: running jobs end when they are expected to.
                totals = self._walk(now, wishes, jobs, False, head)
        everybody_has_gpus = len(now.gpu_ledger.held) - totals.stopped + totals.grants >= len(now)
        reason_rows, reason_codes = _reasons(wishes, answer, totals)
        plan = Plan(
            stopped=_stopped(answer, totals.stopped),
            placed=_placements(answer, self._records.granted_rows(totals.grants)),
            renewed=_renewed(now.gpu_ledger, answer.renewed[: totals.renewed]),
            reason_rows=reason_rows,
            reason_codes=reason_codes,
            head=head,
            unprotected_s=np.inf if everybody_has_gpus else totals.unprotected_s,
        )
        return plan, held_up

    def _walk(
        self,
        now: Snapshot,
        wishes: Wishes,
        jobs: JobColumns,
        preempt: bool,
        head: int = NOBODY,
        unprotected: bool = False,
    ) -> Totals:
        """One walk over the wishes, from the GPUs as they are."""
        records = self._records
        floor, walk = records.floor(now, wishes, self._room), records.walk(now, wishes, preempt, head, unprotected)
        totals: Totals = fit(floor, walk, records.needs, jobs, records.pools, records.nodes(now))
        return totals

    def _walk_freely(self, now: Snapshot, wishes: Wishes, key: Floats) -> FreeWalk:
        """A walk as if no job were protected."""
        records = self._records
        wanted = wishes if key is wishes.key else wishes._replace(key=key)
        jobs = records.unprotected_jobs(wishes.waiting)
        totals = self._walk(now, wanted, jobs, True, unprotected=True)
        losers, takers = records.answer.stopped[: totals.stopped], records.answer.taker[: totals.stopped]
        return FreeWalk(key, records.granted_rows(totals.grants).copy(), losers.copy(), takers.copy())


def _starving(now: Snapshot, wishes: Wishes, answer: Answer, totals: Totals) -> int:
    """The row that has waited longest, longer than it should, and is not placed though the cluster could hold it."""
    codes = now.table.reason[now.rows]
    at = np.searchsorted(now.rows, answer.reason_rows[: totals.reasons])
    codes[at] = answer.reason_codes[: totals.reasons]
    waits = ~now.has_gpus & ~np.isin(codes, _NOT_STARVING)
    waits &= now.now_s - now.waiting_since_s >= wishes.reserve_after_s
    if not waits.any():
        return NOBODY
    since_s = np.where(waits, now.waiting_since_s, np.inf)
    return int(now.rows[np.argmin(since_s)])


def _reasons(wishes: Wishes, answer: Answer, totals: Totals) -> tuple[Ints, Bytes]:
    """Rows whose reason changes, and the new reasons."""
    rows, codes = answer.reason_rows[: totals.all_reasons].copy(), answer.reason_codes[: totals.all_reasons].copy()
    if not len(wishes.gpu_type):
        return rows, codes
    # A job with several wishes is named by each; the first counts. A job without a wish is named once.
    _, at = np.unique(rows, return_index=True)
    return rows[at], codes[at]


def _stopped(answer: Answer, count: int) -> tuple[tuple[int, int], ...]:
    """Pairs of a row that loses its GPUs and the row that gets them."""
    if not count:
        return ()
    return tuple(zip(answer.stopped[:count].tolist(), answer.taker[:count].tolist(), strict=True))


def _placements(answer: Answer, rows: Ints) -> tuple[Placement, ...]:
    """What each row with a grant gets."""
    if not len(rows):
        return ()
    count = len(rows)
    cuts = answer.first[: count + 1].tolist()
    ids, spans = answer.gpu_ids[: cuts[-1]].tolist(), answer.span[:count].tolist()
    ready = (answer.ready[:count] > 0).tolist()
    return tuple(
        Placement(row, tuple(ids[cuts[p] : cuts[p + 1]]), _SPANS[spans[p]], ready[p])
        for p, row in enumerate(rows.tolist())
    )


def _renewed(ledger: GpuLedger, rows: Ints) -> tuple[int, ...]:
    """Rows that keep their GPUs, in order of their first GPUs; of two that share them, the lead first."""
    if not len(rows):
        return ()
    by_gpu = np.argsort(ledger.holdings.first_gpu_of(rows), kind="stable")
    return tuple(rows[by_gpu].tolist())
