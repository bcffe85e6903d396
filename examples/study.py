"""A study: what the load of a cluster costs under four policies, from generated days to a plot with intervals."""

import matplotlib.pyplot as plt
import polars as pl

import horae

LOADS, SEEDS = (0.5, 0.7, 0.9, 1.1, 1.3), range(5)
POLICIES = ("fifo", "fifo-backfill", "time-slice", "srtf")

# 1. Run every policy at every load on the same generated days, in two processes.
day = horae.generate("tiresias", jobs=120)
swept = horae.sweep(day, vary="load", values=LOADS, cluster="8x4", policies=POLICIES, seeds=SEEDS, workers=2)

# 2. One row a policy and load: the average completion time in hours, and half the width of its 95 % interval.
hours = pl.col("avg_jct_s") / 3600
table = pl.concat(
    [swept.means.select("policy", "value", mean=hours), swept.intervals.select(half_width=hours)], how="horizontal"
)
print(table.pivot(on="policy", index="value", values="mean"))

# 3. Draw it.
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for policy in POLICIES:
    own = table.filter(policy=policy)
    axes.errorbar(own["value"], own["mean"], yerr=own["half_width"], label=policy, marker="o", capsize=3)
axes.set(xlabel="load (GPU-time that arrives over GPU-time there is)", ylabel="average completion time (hours)")
axes.set_title("120 generated jobs on 32 GPUs, 5 seeds, 95 % intervals")
axes.set_ylim(bottom=0)
axes.legend(frameon=False)
figure.savefig("study.png", dpi=150)
