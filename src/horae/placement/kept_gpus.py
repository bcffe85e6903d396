"""Jobs that keep their GPUs though others go before them: by a lease, a minimum run time, or the policy's preference.

What they keep others waiting from is found by walks as if no job were protected or preferred. Of such a walk only
this counts: which jobs get GPUs, and which lose them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from horae.core.arrays import Bytes, Floats, Ints
from horae.core.gpu_moves import NOBODY
from horae.core.plan import Kept, Plan
from horae.core.reasons import RULES, Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes

#: Whether a job would have GPUs if jobs after it lost theirs, by its reason.
_BEHIND_OTHERS = np.zeros(256, np.bool_)
_BEHIND_OTHERS[[*map(int, RULES), int(Reason.NO_FREE_GPUS)]] = True
_BEHIND_OTHERS[[int(Reason.FRAGMENTED), int(Reason.LACKS_CPUS_OR_MEMORY)]] = True
_LEASED, _RESERVED = int(Reason.LEASED), int(Reason.RESERVED_FOR_LARGER)


class FreeWalk(NamedTuple):
    """Jobs that would get GPUs by some keys if no job were protected; jobs that would lose theirs, and to which."""

    key: Floats
    granted: Ints
    losers: Ints
    takers: Ints


def name_kept_gpus(now: Snapshot, wishes: Wishes, plan: Plan, walks: list[FreeWalk]) -> Plan:
    """The plan with the reasons of jobs that wait for GPUs which others are to keep, and with who keeps them."""
    table, code = now.table, now.table.reason.copy()
    code[plan.reason_rows] = plan.reason_codes
    granted = walks[0].granted if len(walks) == 1 else np.unique(np.concatenate([walk.granted for walk in walks]))
    rows = granted[_BEHIND_OTHERS[code[granted]]]
    if plan.head != NOBODY:
        rows = rows[rows != plan.head]
    if not len(rows):
        return plan
    code[rows] = _LEASED if plan.head == NOBODY else _RESERVED
    listed = np.zeros(len(code), np.bool_)
    listed[plan.reason_rows] = True
    named = np.concatenate((plan.reason_rows, rows[~listed[rows]]))
    named = named[code[named] != table.reason[named]]
    codes: Bytes = code[named]
    kept = _joined(plan.kept, _kept(now, wishes, walks)) if plan.head == NOBODY else None
    return plan._replace(reason_rows=named, reason_codes=codes, kept=kept)


def _joined(some: Kept | None, others: Kept) -> Kept:
    if some is None:
        return others
    return Kept(*(np.concatenate(columns) for columns in zip(some, others, strict=True)))


def _kept(now: Snapshot, wishes: Wishes, walks: list[FreeWalk]) -> Kept:
    """The jobs that would lose their GPUs, and until when they keep them."""
    rows, until_s = [], []
    for walk in walks:
        ends_s = now.table.protected_until_s[walk.losers]
        if walk.key is not wishes.key:
            # They keep their GPUs by this decision, and so have a lease again.
            ends_s = np.maximum(np.maximum(ends_s, wishes.lease_until_s), _preferred_until_s(now, wishes, walk))
        still = ends_s > now.now_s
        rows.append(walk.losers[still])
        until_s.append(ends_s[still])
    return Kept(np.concatenate(rows), np.concatenate(until_s))


def _preferred_until_s(now: Snapshot, wishes: Wishes, walk: FreeWalk) -> Floats:
    """When the key of each loser's taker is lower than its own, if keys go on as they do now; infinite if unknown."""
    until_s = np.full(len(walk.losers), np.inf)
    if not len(wishes.key_per_s):
        return until_s
    single = wishes.partner < 0 if len(wishes.partner) else slice(None)
    at = wishes.job[single], wishes.gpu_type[single]
    key, per_s = np.full((2, len(now.table), len(now.cluster.gpu_types)), np.nan)
    key[at], per_s[at] = wishes.key[single], wishes.key_per_s[single]
    gpu_type = now.cluster.gpu_type[now.gpu_ledger.holdings.first_gpu_of(walk.losers)]
    mine, theirs = (walk.losers, gpu_type), (walk.takers, gpu_type)
    ahead, nearer_per_s = key[theirs] - key[mine], per_s[mine] - per_s[theirs]
    known = (walk.takers != NOBODY) & (ahead > 0) & (nearer_per_s > 0)
    until_s[known] = now.now_s + ahead[known] / nearer_per_s[known]
    return until_s
