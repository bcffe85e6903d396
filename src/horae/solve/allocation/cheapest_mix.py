"""The cheapest mix of GPU types that reaches a throughput, given a price for each type. Compiled.

A job (or a class of equal jobs) that spends the share x_j of its time on type j has the
throughput sum T_j x_j, and pays s * sum p_j x_j for its s GPUs. For a throughput q the
cheapest mix has at most two options, type a (or idle time) below q and type
b above it: the lower convex hull of the points (T_j, p_j) and the origin. So prices
alone determine the shares of each job.
"""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats
from horae.core.jit import FLOAT, FLOATS, INT, TABLE, compiled, inner

#: The option to run nowhere.
IDLE = -1


@compiled("UniTuple(int64, 2)", INT, FLOAT, TABLE, FLOATS)
def cheapest_mix(m: int, q: float, speed: Floats, price: Floats) -> tuple[int, int]:
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
def cheapest_shares(q: Floats, speed: Floats, size: Floats, price: Floats, usage: Floats, share: Floats) -> None:
    """The cheapest shares of time of all jobs at these prices (`share`), and the GPUs that they use (`usage`).

    `size` is the GPU count of all jobs of a class together; `q` is the throughput of one job, at most its fastest.
    """
    usage[:] = 0.0
    share[:, :] = 0.0
    for m in range(len(q)):
        low, high = cheapest_mix(m, q[m], speed, price)
        if high == IDLE:
            continue
        slow = 0.0 if low == IDLE else speed[m, low]
        mix = min(1.0, (q[m] - slow) / (speed[m, high] - slow))
        share[m, high] = mix
        usage[high] += size[m] * mix
        if low != IDLE:
            share[m, low] = 1.0 - mix
            usage[low] += size[m] * (1.0 - mix)


@inner(FLOAT, INT, FLOAT, FLOAT, TABLE, FLOATS, FLOATS)
def _marginal_price(m: int, q: float, fastest: float, speed: Floats, size: Floats, price: Floats) -> float:
    """Price of one more step/s of a job, just above its throughput q; infinite at its fastest."""
    above = q * (1.0 + 1e-9) + 1e-300
    if above >= fastest:
        return np.inf
    low, high = cheapest_mix(m, above, speed, price)
    slow = 0.0 if low == IDLE else speed[m, low]
    slow_price = 0.0 if low == IDLE else price[low]
    return float(size[m] * (price[high] - slow_price) / (speed[m, high] - slow))


@compiled(INT, FLOATS, FLOATS, FLOATS, TABLE, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS)
def usage_and_slopes(
    q: Floats,
    growth: Floats,
    fastest: Floats,
    speed: Floats,
    size: Floats,
    price: Floats,
    usage: Floats,
    marginal: Floats,
    slope: Floats,
) -> int:
    """The GPUs that the cheapest shares use (`usage`), and the marginal prices of the jobs whose throughput grows.

    Writes the n jobs with growth > 0 one after the other: `marginal[:n]` and, with their growth, `slope[:n]`.
    Returns n. Numbers are those of `cheapest_shares` and `marginal_prices`.
    """
    usage[:] = 0.0
    growing = 0
    for m in range(len(q)):
        low, high = cheapest_mix(m, q[m], speed, price)
        if high != IDLE:
            slow = 0.0 if low == IDLE else speed[m, low]
            mix = min(1.0, (q[m] - slow) / (speed[m, high] - slow))
            usage[high] += size[m] * mix
            if low != IDLE:
                usage[low] += size[m] * (1.0 - mix)
        if growth[m] > 0:
            marginal[growing] = _marginal_price(m, q[m], fastest[m], speed, size, price)
            slope[growing] = growth[m]
            growing += 1
    return growing


@compiled("void", FLOATS, FLOATS, TABLE, FLOATS, FLOATS, FLOATS)
def marginal_prices(q: Floats, fastest: Floats, speed: Floats, size: Floats, price: Floats, out: Floats) -> None:
    """Price of one more step/s of each job, just above its throughput q; infinite at its fastest."""
    for m in range(len(q)):
        out[m] = _marginal_price(m, q[m], fastest[m], speed, size, price)
