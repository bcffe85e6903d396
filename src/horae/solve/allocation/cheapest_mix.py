"""The cheapest way to a throughput, given a price for each GPU type. Compiled.

A job (or a class of equal jobs) that spends the share x_j of its time on type j has the
throughput sum T_j x_j, and pays s * sum p_j x_j for its s GPUs. For a throughput q the
cheapest way mixes at most two of its options, type a (or standing idle) below q and type
b above it: the lower convex hull of the points (T_j, p_j) and the origin. So prices alone
tell what each job does, and nothing is left to solve job by job.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats
from horae.core.jit import FLOAT, FLOATS, INT, TABLE, compiled

IDLE = -1


@compiled("UniTuple(int64, 2)", INT, FLOAT, TABLE, FLOATS)
def cheapest_way(m: int, q: float, speed: Floats, price: Floats) -> tuple[int, int]:
    """The two options (IDLE, or a type) whose mix reaches throughput q at the least price."""
    best_low, best_high, best_cost = IDLE, IDLE, np.inf
    if q <= 0:
        return best_low, best_high
    for high in range(len(price)):
        fast = speed[m, high]
        if fast < q:
            continue
        for low in range(IDLE, len(price)):
            slow = 0.0 if low == IDLE else speed[m, low]
            if slow >= q:
                continue
            slow_price = 0.0 if low == IDLE else price[low]
            cost = slow_price + (q - slow) / (fast - slow) * (price[high] - slow_price)
            if cost < best_cost:
                best_low, best_high, best_cost = low, high, cost
    return best_low, best_high


@compiled("void", FLOATS, TABLE, FLOATS, FLOATS, FLOATS, TABLE)
def respond(q: Floats, speed: Floats, size: Floats, price: Floats, usage: Floats, share: Floats) -> None:
    """What everybody does at these prices: shares of time on each type, and the GPUs that takes in all.

    `size` is the number of GPUs of a job times how many such jobs there are; `q` is the
    throughput of one of them, at most its fastest.
    """
    usage[:] = 0.0
    share[:, :] = 0.0
    for m in range(len(q)):
        low, high = cheapest_way(m, q[m], speed, price)
        if high == IDLE:
            continue
        slow = 0.0 if low == IDLE else speed[m, low]
        mix = min(1.0, (q[m] - slow) / (speed[m, high] - slow))
        share[m, high] = mix
        usage[high] += size[m] * mix
        if low != IDLE:
            share[m, low] = 1.0 - mix
            usage[low] += size[m] * (1.0 - mix)


@compiled("void", FLOATS, FLOATS, TABLE, FLOATS, FLOATS, FLOATS)
def marginal_prices(q: Floats, fastest: Floats, speed: Floats, size: Floats, price: Floats, out: Floats) -> None:
    """What one more step/s would cost each job, a step just above what it has; infinite where it has its fastest."""
    for m in range(len(q)):
        above = q[m] * (1.0 + 1e-9) + 1e-300
        if above >= fastest[m]:
            out[m] = np.inf
            continue
        low, high = cheapest_way(m, above, speed, price)
        slow = 0.0 if low == IDLE else speed[m, low]
        slow_price = 0.0 if low == IDLE else price[low]
        out[m] = size[m] * (price[high] - slow_price) / (speed[m, high] - slow)
