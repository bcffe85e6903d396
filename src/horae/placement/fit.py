"""The hot loop: wishes in order, each kept, placed or left waiting. Compiled.

One walk serves every policy and every placement rule:

1. See who has GPUs now, and which of them may lose them.
2. Take the wishes in order (guaranteed queues first, where there are any):
   - a job that has GPUs keeps them, unless somebody before it took them;
   - a job that has none takes free GPUs, or else GPUs of jobs that come after it,
     the last of those first. Nobody loses GPUs unless the taker is placed;
   - where a job that waited too long has a reservation, those that waited longer go first, and
     all others may only use what does not delay it.
3. Let elastic jobs that were placed grow into what is left.
4. Give out GPU numbers, and say why everybody else waits.

Two jobs that share GPUs are one holder. A wish for two is placed like one for one of them, whose
GPUs the other then joins; a job that wishes for itself alone what it shares sends the other away.

A job that lost its GPUs to an earlier wish gets them back when its own turn comes,
if they are still there: then nothing happens to it at all.

Three counts by pool (and by type) say what can still be given: `free` has no holder;
`reach` adds the GPUs of jobs whose turn has not come and who may lose them; `late` is
the part of `free` that may be used beyond the time of a reservation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from horae.core.jit import BOOL, FLOAT, FLOATS, INT, INTS, TABLE, compiled_when_called, inner
from horae.core.reasons import Reason
from horae.core.states import State
from horae.placement.choose import BEST_EFFORT, BY_SKEW, CONSOLIDATED, LEAST_FRAGMENTATION, choose
from horae.placement.gpu_numbers import number, sort, span_of
from horae.placement.heap import heapify, pop
from horae.placement.holders import (
    depart,
    first_unprotected_s,
    fits_back,
    guarded_until_s,
    lead,
    limits_of_guards,
    line_up,
    make_room,
    reach_back,
    seat,
    see_holders,
    shift,
    stay,
)
from horae.placement.kernel_args import (
    CLOSED,
    DISPLACED,
    KEEPS,
    MOVES,
    UNDECIDED,
    Asked,
    Columns,
    Floats,
    Ints,
    Pools,
    Quotas,
    Result,
)
from horae.placement.quotas import affordable, below_low, charge, use, within_top
from horae.placement.reservation import reserve

#: A wish whose turn never came, and one that was granted.
_UNREACHED, _GRANTED = 255, 254
#: In `slot`: a job that waits after one of its wishes was looked at. Granted ones lie between this and -1.
_LOOKED_AT = -(1 << 60)
#: In `slot`: a job that waits for GPUs that jobs after it are not to lose now.
_HELD_BACK = _LOOKED_AT - 1

_WAITING, _PLACED, _STOPPING = int(State.WAITING), int(State.PLACED), int(State.STOPPING)
_NONE, _VACATING = int(Reason.NONE), int(Reason.VACATING)
_NO_FREE_GPUS, _FRAGMENTED = int(Reason.NO_FREE_GPUS), int(Reason.FRAGMENTED)
_OVER_QUOTA, _RESERVED = int(Reason.OVER_QUOTA), int(Reason.RESERVED_FOR_LARGER)
_TOO_SMALL, _LEASED, _TURN = int(Reason.CLUSTER_TOO_SMALL), int(Reason.LEASED), int(Reason.BEHIND_TURN)
#: In `given_host`: GPUs of its own; and, less the number of another, those that other is given.
_NO_HOST, _GIVEN = -1, -2
#: The mask of all GPU types.
_ALL = -1


@inner(INT, INT, INTS, INT)
def _most_of_one_type(mask: int, by_type: Ints, types: int) -> int:
    """The most GPUs of one type, among the types of a mask."""
    most = 0
    for gpu_type in range(types):
        if mask >> gpu_type & 1 and by_type[gpu_type] > most:
            most = by_type[gpu_type]
    return most


@inner(INT, INT, INT, INT, TABLE)
def _next_type(row: int, mask: int, tried: int, rates: Floats) -> int:
    """The fastest GPU type a job may use and has not tried; -1 if there is none."""
    best = -1
    for gpu_type in range(rates.shape[1]):
        usable = mask & ~tried
        if usable >> gpu_type & 1 and (best < 0 or rates[row, gpu_type] > rates[row, best]):
            best = gpu_type
    return best


@inner(BOOL, INT, INT, FLOATS)
def _waited_longer(row: int, head: int, waiting_since_s: Floats) -> bool:
    """Whether a job has waited at least as long as another; of those that came together the first has."""
    if waiting_since_s[row] != waiting_since_s[head]:
        return bool(waiting_since_s[row] < waiting_since_s[head])
    return row <= head


@inner(INT, INT, INT, FLOAT, FLOATS)
def _rule_for(row: int, rule: int, pack_limit: float, skew: Floats) -> int:
    """The rule for one job: where it goes by skew, only models that would suffer are consolidated."""
    if rule != BY_SKEW:
        return rule
    return CONSOLIDATED if skew[row] > pack_limit else LEAST_FRAGMENTATION


@inner(BOOL, INT, INTS)
def _decided(mark: int, status: Ints) -> bool:
    """Whether a job keeps its GPUs or got others, by its mark in `slot`."""
    h = seat(mark)
    return _LOOKED_AT < mark < -1 or (h >= 0 and (status[h] == KEEPS or status[h] == MOVES))


@inner(BOOL, INT, INT, INT, INT, INTS, INTS, INTS)
def _suits(mark: int, types: int, gpus: int, top: int, first: Ints, held: Ints, gpu_type: Ints) -> bool:
    """Whether a job has GPUs of the kind and number wished, by its mark in `slot`."""
    h = seat(mark)
    if h < 0:
        return False
    has = first[h + 1] - first[h]
    return bool((types >> gpu_type[held[first[h]]] & 1) == 1 and gpus <= has and has <= top)


@inner(BOOL, INTS, INTS, INTS, INTS, INTS)
def _all_fit(job: Ints, slot: Ints, gpus_min: Ints, types: Ints, type_free: Ints) -> bool:
    """Whether all jobs that wait fit into the free GPUs of each type that any of them may use."""
    wanted, mask = 0, 0
    for i in range(len(job)):
        if seat(slot[job[i]]) < 0:
            wanted += gpus_min[job[i]]
            mask |= types[job[i]]
            for gpu_type in range(len(type_free)):
                if mask >> gpu_type & 1 and type_free[gpu_type] < wanted:
                    return False
    return True


@compiled_when_called
def fit(
    asked_columns: tuple[Any, ...],
    job_columns: tuple[Any, ...],
    holders: Ints,
    occupants: Ints,
    pool_columns: tuple[Any, ...],
    quota_columns: tuple[Any, ...],
    slot: Ints,
    result_columns: tuple[Any, ...],
) -> tuple[int, int, int, int, float]:
    """Walk the wishes: the columns are those of `Asked`, `Columns`, `Pools`, `Quotas` and `Result`, in order.

    They come as plain tuples, for a compiled function that is kept on disk must not name
    classes that another release may not have. `slot` is scratch space, -1 everywhere before
    and after. Gives how many were stopped, placed and kept, how many reasons changed, and the
    first moment at which a protected job may be preempted.
    """
    asked, jobs, pools = Asked(*asked_columns), Columns(*job_columns), Pools(*pool_columns)
    quotas, result = Quotas(*quota_columns), Result(*result_columns)
    holder, occupant, second_occupant = holders[0], occupants[0], occupants[1]
    now_s, n, all_gpus = asked.now_s, len(asked.job), len(holder)
    types, n_pools = len(pools.type_capacity), len(pools.type)
    gpu_pool, pool_type = pools.gpu_pool, pools.type
    parent, used = quotas.parent, quotas.used
    counted = quotas.limited or quotas.guaranteed

    # 1. Who has GPUs, and who may lose them.
    rows, first, held = np.empty(all_gpus, np.int64), np.empty(all_gpus + 1, np.int64), np.empty(all_gpus, np.int64)
    guests = np.empty(all_gpus, np.int64)
    n_holders = see_holders(holders, slot, rows, guests, first, held)
    status = np.zeros(n_holders, np.int64)
    # Who had the GPUs before; and who comes to share them with a job that keeps them.
    rows_before, guests_before = rows[:n_holders].copy(), guests[:n_holders].copy()
    joined = np.full(n_holders, -1)
    # From the last in order to the first; looked up only when somebody has to lose GPUs.
    back, position, lined_up = np.empty(n_holders, np.int64), np.full(n_holders, n), False
    # GPUs that nobody holds; `idle` are those that nobody sits on, either.
    free, idle, type_free = np.zeros(n_pools, np.int64), np.zeros(n_pools, np.int64), np.zeros(types, np.int64)
    vacating = False
    for gpu in range(all_gpus):
        if holder[gpu] < 0 and gpu_pool[gpu] != CLOSED:
            free[gpu_pool[gpu]] += 1
            type_free[pool_type[gpu_pool[gpu]]] += 1
            idle[gpu_pool[gpu]] += occupant[gpu] < 0
            vacating = vacating or occupant[gpu] >= 0
    reach, late, type_reach = free.copy(), np.zeros(n_pools, np.int64), type_free.copy()
    protected = False
    for h in range(n_holders):
        if asked.preempt and guarded_until_s(rows[h], guests[h], jobs.protected_until_s) <= now_s:
            shift(h, 1, first, held, gpu_pool, pool_type, reach, type_reach)
            continue
        status[h] = KEEPS
        if counted:
            charge(rows[h], guests[h], first[h + 1] - first[h], jobs.queue, parent, used)
        protected = protected or asked.preempt
    guarded = status == KEEPS

    # Whoever has GPUs but no wish counts against its quotas until somebody takes them.
    if counted:
        line_up(asked.job, asked.partner, asked.key, slot, n_holders, position, back)
        lined_up = True
        for h in range(n_holders):
            if status[h] == UNDECIDED and position[h] == n:
                charge(rows[h], guests[h], first[h + 1] - first[h], jobs.queue, parent, used)

    # If everybody who waits fits into what is free, those who have GPUs keep them, in whatever order.
    anywhere = pools.rule == BEST_EFFORT or pools.rule == LEAST_FRAGMENTATION
    simple = asked.preempt and not counted and (pools.flat or anywhere)
    as_asked = len(asked.gpu_type) + len(asked.gpus_min) + len(asked.gpus_max) == 0
    if simple and as_asked and _all_fit(asked.job, slot, jobs.gpus_min, jobs.types, type_free):
        status.fill(KEEPS)

    # 2. The wishes in order.
    given_row, given_first = result.row, np.zeros(2 * all_gpus + 1, np.int64)
    given_top = np.empty(2 * all_gpus, np.int64)
    # Whose GPUs a job comes to share: those of a holder, or (_GIVEN less its number) of one that gets new ones.
    given_host = np.full(2 * all_gpus, _NO_HOST)
    given_pool, given_take = np.empty(all_gpus, np.int64), np.empty(all_gpus, np.int64)
    n_given, n_pairs = 0, 0
    out_pool, out_take = np.empty(n_pools, np.int64), np.empty(n_pools, np.int64)
    # Gang sizes that were tried in vain; forgotten where GPUs come free.
    # A second half is for those that the rule consolidates, where it does not do so with all.
    sizes = 2 * (all_gpus + 1) if pools.rule == BY_SKEW else all_gpus + 1
    failed_free, failed_reach = np.zeros((types, sizes), np.bool_), np.zeros((types, sizes), np.bool_)
    codes = np.full(n, _UNREACHED, np.uint8)
    lacking = asked.waiting if asked.preempt or asked.head >= 0 else _NO_FREE_GPUS
    # Only wishes that need a turn get one: not those of jobs that keep their GPUs anyway.
    keyed, popped, turns = len(asked.key) > 0, 0, 0
    keys, order = np.empty(n if keyed else 0), np.empty(n, np.int64)
    for i in range(n):
        h = seat(slot[asked.job[i]])
        if h < 0 or status[h] != KEEPS:
            order[turns] = i
            if keyed:
                keys[turns] = asked.key[i]
            turns += 1
    heap = order.copy() if keyed else order
    if keyed:
        heapify(keys[:turns], heap[:turns])
    several, looked_at, n_looked = len(asked.gpu_type) > 0, np.empty(2 * n, np.int64), 0
    blocked, reserved, reserved_s, head = False, False, np.inf, asked.head
    first_to_wait = -1
    for sweep in range(3):
        # Guaranteed queues, then those that waited at least as long as the job with a reservation, then everybody.
        if (sweep == 0 and not quotas.guaranteed) or (sweep == 1 and head < 0):
            continue
        if sweep == 2 and head >= 0 and slot[head] in (-1, _LOOKED_AT):
            reserved, rule = True, _rule_for(head, pools.rule, pools.pack_limit, jobs.skew)
            reserved_s = reserve(
                head, jobs.gpus_min[head], jobs.types[head], now_s, jobs.work_left, jobs.rate, jobs.since_s,
                jobs.best_rate, free, late, n_holders, rows, guests, first, held, status, n_given, given_row,
                given_first, given_pool, given_take, rule, gpu_pool, pool_type, pools.rack, pools.racks,
                pools.capacity, pools.by_capacity, type_free, out_pool, out_take,
            )  # fmt: skip
            failed_free.fill(False)
        for turn in range(turns):
            nothing_left = _most_of_one_type(_ALL, type_reach, types) == 0
            over = (nothing_left and not quotas.limited) or (blocked and not asked.preempt)
            if over and (first_to_wait >= 0 or not protected):
                break
            if keyed and turn == popped:
                order[turn] = pop(keys, heap, turns - turn)
                popped += 1
            i = order[turn]
            row, partner = asked.job[i], asked.partner[i] if len(asked.partner) else -1
            if over:
                # Only the first that has to wait is still of interest: who protected is in its way?
                first_to_wait = i if slot[row] == -1 else -1
                continue
            if _decided(slot[row], status) or (partner >= 0 and _decided(slot[partner], status)):
                # Of two that were to share one has been served otherwise: the other stays where it is, for now.
                for other in (row, partner):
                    h = seat(slot[other]) if other >= 0 and counted else -1
                    if (
                        h >= 0 and status[h] == UNDECIDED and position[h] < n and stay(
                            h, slot, rows, guests, status, first, held, gpu_pool, pool_type, free, type_free, position,
                            n, jobs.queue, parent, quotas.top, used,
                        )
                    ):  # fmt: skip
                        failed_free.fill(False)
                continue
            if sweep == 1 and not _waited_longer(row, head, jobs.waiting_since_s):
                continue
            gpus = asked.gpus_min[i] if len(asked.gpus_min) else jobs.gpus_min[row]
            top = asked.gpus_max[i] if len(asked.gpus_max) else jobs.gpus_max[row]
            mask = jobs.types[row]
            if len(asked.gpu_type):
                mask &= 1 << asked.gpu_type[i]
            if sweep == 0 and not below_low(jobs.queue[row], gpus, parent, quotas.low, used):
                continue

            # Of two that are to share, the one that has such GPUs already is the first.
            sits = _suits(slot[row], mask, gpus, top, first, held, pools.gpu_type)
            if partner >= 0 and not sits and _suits(slot[partner], mask, gpus, top, first, held, pools.gpu_type):
                row, partner = partner, row
            lead(row, slot, rows, guests)
            h = slot[row]
            returns = 0
            if counted and partner >= 0:
                # Its partner counts where it is, until it gets something better.
                other = seat(slot[partner])
                if other >= 0 and other != h and status[other] == UNDECIDED:
                    if position[other] < n and stay(
                        other, slot, rows, guests, status, first, held, gpu_pool, pool_type, free, type_free, position,
                        n, jobs.queue, parent, quotas.top, used,
                    ):  # fmt: skip
                        failed_free.fill(False)
                    returns = first[other + 1] - first[other] if status[other] == UNDECIDED else 0

            # A job that has GPUs of the kind and number wished keeps them, or gets them back.
            if h >= 0:
                has = first[h + 1] - first[h]
                if counted and position[h] == n and status[h] == UNDECIDED:
                    # An earlier wish of it came to nothing, and it was counted where it is: look at it anew.
                    charge(row, guests[h], -has, jobs.queue, parent, used)
                    position[h] = i
                suits = _suits(h, mask, gpus, top, first, held, pools.gpu_type)
                claims = has if suits else gpus
                if quotas.limited and not affordable(
                    row, partner, claims, returns, jobs.queue, parent, quotas.top, used
                ):
                    codes[i] = _OVER_QUOTA
                    if status[h] == UNDECIDED and stay(
                        h, slot, rows, guests, status, first, held, gpu_pool, pool_type, free, type_free, position, n,
                        jobs.queue, parent, quotas.top, used,
                    ):  # fmt: skip
                        failed_free.fill(False)
                    continue
                if suits and (status[h] == UNDECIDED or fits_back(h, first, held, gpu_pool, reach)):
                    # If it was displaced, the others are lined up already.
                    for at in range(first[h], first[h + 1] if status[h] == DISPLACED else first[h]):
                        pool = gpu_pool[held[at]]
                        if pool == CLOSED:
                            continue
                        make_room(
                            pool, 1, free, type_free, back, status, position, first, held, gpu_pool, pool_type, rows,
                            guests, jobs.queue, parent, used, n,
                        )  # fmt: skip
                        free[pool] -= 1
                        type_free[pool_type[pool]] -= 1
                        failed_free.fill(False)
                    shift(h, -1, first, held, gpu_pool, pool_type, reach, type_reach)
                    status[h] = KEEPS
                    if counted:
                        charge(row, partner, has, jobs.queue, parent, used)
                    if guests[h] >= 0 and guests[h] != partner:
                        # Whoever shared with it does so no more, and waits.
                        slot[guests[h]] = -1
                        guests[h] = -1
                    if partner >= 0 and guests[h] != partner:
                        if depart(
                            partner, slot, rows, guests, status, first, held, gpu_pool, pool_type, free, type_free,
                            position, n if counted else -1, jobs.queue, parent, quotas.top, used,
                        ):  # fmt: skip
                            failed_free.fill(False)
                        given_row[n_given], given_top[n_given], given_host[n_given] = partner, has, h
                        n_given += 1
                        given_first[n_given] = n_pairs
                        joined[h] = partner
                        if slot[partner] < 0:
                            slot[partner] = -1 - n_given
                    continue
            elif quotas.limited and not affordable(row, partner, gpus, returns, jobs.queue, parent, quotas.top, used):
                codes[i] = _OVER_QUOTA
                continue
            if blocked:
                continue

            # Anybody else takes free GPUs, or else those of jobs behind it; its fastest type first.
            taken, gpu_type = 0, -1
            long, rule = False, _rule_for(row, pools.rule, pools.pack_limit, jobs.skew)
            size = gpus + (all_gpus + 1 if pools.rule == BY_SKEW and rule == CONSOLIDATED else 0)
            for step in range(0 if vacating else 1, 3 if asked.preempt else 2):
                preempting = step == 2
                by_type = type_reach if preempting else type_free
                failed = failed_reach if preempting else failed_free
                tried = 0
                while taken == 0 and _most_of_one_type(mask & ~tried, by_type, types) >= gpus:
                    gpu_type = _next_type(row, mask, tried, jobs.rates)
                    tried |= 1 << gpu_type
                    if by_type[gpu_type] < gpus or failed[gpu_type, size]:
                        continue
                    if preempting and not lined_up:
                        line_up(asked.job, asked.partner, asked.key, slot, n_holders, position, back)
                        lined_up = True
                    if preempting:
                        taken = reach_back(
                            rule, gpus, gpu_type, free, back, n_holders, status, first, held, gpu_pool,
                            pools.gpu_type, pools.capacity, pools.by_capacity, pool_type, pools.rack, pools.racks,
                            out_pool, out_take,
                        )  # fmt: skip
                    else:
                        long = reserved and reserved_s < now_s + jobs.work_left[row] / jobs.rates[row, gpu_type]
                        counts = late if long else (free if step == 1 else idle)
                        taken = choose(
                            rule, gpus, gpu_type, counts, pools.capacity, pools.by_capacity, pool_type,
                            pools.rack, pools.racks, out_pool, out_take,
                        )  # fmt: skip
                    failed[gpu_type, size] = taken == 0 and not long and step > 0
                if preempting and taken > 0:
                    for at in range(taken):
                        make_room(
                            out_pool[at], out_take[at], free, type_free, back, status, position, first, held, gpu_pool,
                            pool_type, rows, guests, jobs.queue, parent, used, n,
                        )  # fmt: skip
                    failed_free.fill(False)

            # It waits: say why. A job with several wishes has the reason of the first.
            if taken == 0:
                if (
                    counted and h >= 0 and status[h] == UNDECIDED and stay(
                        h, slot, rows, guests, status, first, held, gpu_pool, pool_type, free, type_free, position, n,
                        jobs.queue, parent, quotas.top, used,
                    )
                ):  # fmt: skip
                    failed_free.fill(False)
                if h == _LOOKED_AT:
                    continue
                codes[i] = lacking
                if _most_of_one_type(jobs.types[row], pools.type_capacity, types) < gpus:
                    codes[i] = _TOO_SMALL
                elif _most_of_one_type(mask, type_free, types) >= gpus:
                    codes[i] = _FRAGMENTED
                    for gpu_type in range(types if reserved and row != head else 0):
                        # Is it the reservation that is in the way, or would the free GPUs not do without it, either?
                        if mask >> gpu_type & 1 and type_free[gpu_type] >= gpus and choose(
                            rule, gpus, gpu_type, free, pools.capacity, pools.by_capacity, pool_type,
                            pools.rack, pools.racks, out_pool, out_take,
                        ) > 0:  # fmt: skip
                            codes[i] = _RESERVED
                blocked = blocked or (asked.blocking and codes[i] != _TOO_SMALL)
                if first_to_wait < 0 and codes[i] != _TOO_SMALL:
                    first_to_wait = i
                if several and h < 0:
                    slot[row] = _LOOKED_AT
                    looked_at[n_looked] = row
                    n_looked += 1
                continue

            # It is placed.
            for at in range(taken):
                pool, take = out_pool[at], out_take[at]
                given_pool[n_pairs], given_take[n_pairs] = pool, take
                n_pairs += 1
                free[pool] -= take
                reach[pool] -= take
                idle[pool] = max(0, idle[pool] - take)
                late[pool] = min(late[pool] - (take if long else 0), free[pool])
            type_free[gpu_type] -= gpus
            type_reach[gpu_type] -= gpus
            codes[i] = _GRANTED
            if counted:
                charge(row, partner, gpus, jobs.queue, parent, used)
            given_lead = n_given
            for mover in (row, partner):
                if mover < 0:
                    continue
                if depart(
                    mover, slot, rows, guests, status, first, held, gpu_pool, pool_type, free, type_free, position,
                    n if counted else -1, jobs.queue, parent, quotas.top, used,
                ):  # fmt: skip
                    failed_free.fill(False)
                given_row[n_given], given_top[n_given] = mover, top if partner < 0 else gpus
                if mover == partner:
                    given_host[n_given] = _GIVEN - given_lead
                n_given += 1
                given_first[n_given] = n_pairs
                if slot[mover] < 0:
                    slot[mover] = -1 - n_given

    # 3. Elastic jobs grow within their pools, in order.
    spare = late if reserved else free
    for p in range(n_given):
        has = 0
        for pair in range(given_first[p], given_first[p + 1]):
            has += given_take[pair]
        for pair in range(given_first[p], given_first[p + 1]):
            while has < given_top[p] and spare[given_pool[pair]] > 0:
                queue = jobs.queue[given_row[p]]
                if quotas.limited and not within_top(queue, 1, parent, quotas.top, used):
                    break
                use(queue, 1, parent, used)
                given_take[pair] += 1
                spare[given_pool[pair]] -= 1
                has += 1

    # 4. Who keeps, who gets and who loses which GPUs.
    owner = np.full(all_gpus, -1, np.int64)
    n_kept, n_stopped = 0, 0
    for h in range(n_holders):
        if status[h] < DISPLACED:
            result.kept[n_kept] = rows[h]
            n_kept += 1
            if guests[h] >= 0:
                result.kept[n_kept] = guests[h]
                n_kept += 1
            for at in range(first[h], first[h + 1]):
                owner[held[at]] = rows[h]
    result.first[0] = 0
    for p in range(n_given):
        start = result.first[p]
        stop = start
        for pair in range(given_first[p], given_first[p + 1]):
            stop = number(
                given_row[p], given_pool[pair], given_take[pair], stop, pools.first, pools.gpus, owner, occupant,
                result.gpu_ids,
            )  # fmt: skip
        host = given_host[p]
        if host >= 0:
            for at in range(first[host], first[host + 1]):
                result.gpu_ids[stop] = held[at]
                stop += 1
        elif host <= _GIVEN:
            for at in range(result.first[_GIVEN - host], result.first[_GIVEN - host + 1]):
                result.gpu_ids[stop] = result.gpu_ids[at]
                stop += 1
        sort(result.gpu_ids, start, stop)
        result.first[p + 1] = stop
        result.span[p] = span_of(result.gpu_ids, start, stop, pools.flat, pools.gpu_node, pools.node_rack)
        # It can start at once if it is nowhere else, and nobody sits on its GPUs but whom it is to share them with.
        ready = jobs.state[given_row[p]] == _WAITING or jobs.state[given_row[p]] == _PLACED
        for at in range(start, stop):
            sits, sits_too = occupant[result.gpu_ids[at]], second_occupant[result.gpu_ids[at]]
            ready = ready and (sits < 0 or (host >= 0 and sits == rows[host]))
            ready = ready and (sits_too < 0 or (host >= 0 and sits_too == rows[host]))
        result.ready[p] = ready
    for h in range(n_holders):
        for row in (rows_before[h], guests_before[h]):
            if row < 0 or (status[h] < DISPLACED and (row == rows[h] or row == guests[h])):
                continue
            result.stopped[n_stopped], result.taker[n_stopped] = row, joined[h]
            for at in range(first[h], first[h + 1]):
                if joined[h] < 0 and owner[held[at]] >= 0 and owner[held[at]] != row:
                    result.taker[n_stopped] = owner[held[at]]
            n_stopped += 1
    result.node_free.fill(0)
    for gpu in range(all_gpus):
        if owner[gpu] < 0 and gpu_pool[gpu] != CLOSED:
            result.node_free[pools.gpu_node[gpu]] += 1

    # 5. Why everybody else waits; only what changed is listed.
    left = np.zeros(types, np.int64)
    for gpu in range(all_gpus):
        if owner[gpu] < 0 and gpu_pool[gpu] != CLOSED:
            left[pools.gpu_type[gpu]] += 1
    for i in range(n):
        row, code = asked.job[i], codes[i]
        gpus = asked.gpus_min[i] if len(asked.gpus_min) else jobs.gpus_min[row]
        if code in (_FRAGMENTED, _RESERVED) and _most_of_one_type(jobs.types[row], left, types) < gpus:
            # Others that fit have taken what was free when its turn came.
            codes[i] = lacking
        waits = codes[i] in (lacking, _FRAGMENTED, _RESERVED)
        if waits and not asked.takes and not within_top(jobs.queue[row], gpus, parent, quotas.top, used):
            # Others of its queue have passed it. (Where jobs are preempted, it would have their part of the quota.)
            codes[i] = _OVER_QUOTA
    # Who would have GPUs, were it not that jobs after it are guaranteed theirs or that a reservation stops preemption?
    held_back = asked.takes and asked.waiting != _TURN and bool(guarded.any())
    limit_key, limit_at = np.empty((0, 0)), np.empty((0, 0), np.int64)
    if held_back:
        limit_key, limit_at = limits_of_guards(
            asked.job, asked.partner, asked.key, slot, n_holders, guarded, first, held, gpu_pool, pools.gpu_type, left
        )
    for i in range(n if held_back else 0):
        row, code = asked.job[i], codes[i]
        if slot[row] != -1 and slot[row] != _LOOKED_AT:
            continue
        if code != asked.waiting and (code != _UNREACHED or slot[row] == _LOOKED_AT):
            continue
        gpus = asked.gpus_min[i] if len(asked.gpus_min) else jobs.gpus_min[row]
        if quotas.limited and not within_top(jobs.queue[row], gpus, parent, quotas.top, used):
            continue
        its_key = asked.key[i] if keyed else float(i)
        for gpu_type in range(types if gpus <= all_gpus else 0):
            if jobs.types[row] >> gpu_type & 1 and limit_at[gpu_type, gpus] >= 0:
                key, at = limit_key[gpu_type, gpus], limit_at[gpu_type, gpus]
                if slot[row] != _HELD_BACK and (key > its_key or (key == its_key and at > i)):
                    slot[row] = _HELD_BACK
                    looked_at[n_looked] = row
                    n_looked += 1
    n_changed = 0
    settled = not quotas.limited and not pools.shrunk and not held_back and not asked.blocking and head < 0
    first_in_line = asked.blocking and first_to_wait < 0
    for i in range(n):
        row, code = asked.job[i], codes[i]
        if settled and code == _UNREACHED and jobs.reason[row] == asked.waiting:
            continue
        mark, h = slot[row], seat(slot[row])
        if h >= 0 and status[h] < DISPLACED:
            code = _VACATING if jobs.state[row] == _PLACED or jobs.state[row] == _STOPPING else _NONE
        elif h >= 0 and status[h] == MOVES:
            code = _VACATING
        elif _LOOKED_AT < mark < -1:
            code = _NONE if result.ready[-2 - mark] else _VACATING
        elif mark == _LOOKED_AT and code == _UNREACHED:
            continue
        elif code == _UNREACHED:
            code = asked.waiting
            if _most_of_one_type(jobs.types[row], pools.type_capacity, types) < jobs.gpus_min[row]:
                code = _TOO_SMALL
            elif quotas.limited and not within_top(jobs.queue[row], jobs.gpus_min[row], parent, quotas.top, used):
                code = _OVER_QUOTA
            elif first_in_line:
                # Nobody that waits is before it: what it lacks is GPUs.
                code, first_in_line = _NO_FREE_GPUS, False
        if code == asked.waiting and row == head:
            code = _NO_FREE_GPUS
        elif mark == _HELD_BACK:
            code = _LEASED if asked.preempt else _RESERVED
        if jobs.reason[row] != code:
            result.changed[n_changed], result.codes[n_changed] = row, code
            n_changed += 1
    unprotected_s = np.inf
    if protected and first_to_wait >= 0:
        unprotected_s = first_unprotected_s(
            now_s,
            asked.job,
            asked.partner,
            asked.key,
            slot,
            n_holders,
            first_to_wait,
            rows,
            guests,
            jobs.protected_until_s,
        )
    for h in range(n_holders):
        slot[rows_before[h]] = -1
        if guests_before[h] >= 0:
            slot[guests_before[h]] = -1
    for p in range(n_given):
        slot[given_row[p]] = -1
    for at in range(n_looked):
        slot[looked_at[at]] = -1
    return n_stopped, n_given, n_kept, n_changed, unprotected_s
