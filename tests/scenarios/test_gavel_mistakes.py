"""What Gavel's published system gets wrong, ten points, each with scenarios in which Horae does not.

Of the ninth, the recovery of a scheduler that crashed is in `test_wall_clock.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from horae.core.cluster import Node, Span
from horae.core.events import NodeJoined, NodeLost
from horae.core.throughputs import Setting, Throughputs
from horae.report.metrics.measure import measure
from tests.builders import Cell, Script, cluster, ends, job, run, times

ROUNDS = ("max-min", "finish-time", "makespan", "total-throughput")


# 1. Its plain FIFO puts every job on one type and idles the rest.


@pytest.mark.parametrize(
    ("policy", "settings"),
    [("fifo", {}), ("fifo-backfill", {}), ("fifo-aware", {}), ("fifo-aware", {"aware": "false"})],
)
def test_first_come_first_served_uses_every_gpu_type(policy: str, settings: dict[str, str]) -> None:
    cell = Cell("v100:1x2,p100:1x2,k80:1x2", policy, settings)
    cell.submit(0, *(job(f"j{k}", throughput={"v100": 4.0, "p100": 2.0, "k80": 1.0}) for k in range(6)))
    assert sorted(gpu for k in range(6) for gpu in cell.gpus(f"j{k}")) == list(range(6))


# 2. Packed policies crash on traces that mix jobs of one GPU and of several.


def test_policies_that_pack_take_jobs_of_all_sizes() -> None:
    table = Throughputs()
    for gpus, span in ((1, Span.GPU), (2, Span.NODE), (4, Span.NODE)):
        table.put(Setting("m", "gpu", gpus, span), 1.0)
        table.put(Setting("m", "gpu", gpus, span, "m"), 0.8)
    jobs = [
        job(f"j{k}", gpus=gpus, work=5000, unit="steps", job_class="m") for k, gpus in enumerate((1, 2, 4, 1, 2, 4))
    ]
    for policy, settings in (("max-min", {"space-sharing": "true"}), ("gandiva", {})):
        shared = run(jobs, cluster("gpu:1x4"), policy, settings=settings, throughputs=table)
        assert shared.finished.all()
        alone = run(jobs, cluster("gpu:1x4"), "max-min", throughputs=table)
        assert np.mean(shared.end_s) < np.mean(alone.end_s), f"{policy} gains by sharing"


# 3. A new job is not in the allocation until the next reset: 1,068 s to the first run on an under-loaded cluster.


@pytest.mark.parametrize("policy", ROUNDS)
def test_on_an_under_loaded_cluster_the_mean_time_to_the_first_run_is_zero(policy: str) -> None:
    rng = np.random.default_rng(5)
    speeds = [{"v100": 4.0, "p100": 2.0, "k80": 1.0}, {"v100": 2.0, "p100": 2.0, "k80": 2.0}]
    jobs = [
        job(f"j{k}", gpus=1 + k % 2, work=float(rng.uniform(100, 9000)), submit_s=501.0 * k, throughput=speeds[k % 2])
        for k in range(30)
    ]
    history = run(jobs, "v100:8x1,p100:8x1,k80:8x1", policy, placement="anywhere")
    assert (history.start_s - history.submit_s).mean() == 0


# 4. A GPU that comes free in mid-round stays idle to its end, and jobs shorter than a round fit badly.


@pytest.mark.parametrize("policy", ROUNDS)
def test_jobs_shorter_than_a_round_follow_each_other_without_a_gap(policy: str) -> None:
    history = run([job(f"j{k}", work=70) for k in range(10)], "1x1", policy, settings={"round": "360"})
    assert sorted(ends(history)) == [70.0 * (k + 1) for k in range(10)]


# 5. Preemption is free in its simulator, although half of all leases are broken.


def test_every_preemption_costs_the_jobs_own_time_to_save_and_load_and_is_counted() -> None:
    jobs = [job(name, work=3600, checkpoint_s=10.0, restore_s=20.0) for name in "ab"]
    history = run(jobs, "1x1", "max-min", settings={"stay": "0"})
    report = measure(history)
    assert report.preemptions == history.attempts.preempted.sum() > 5
    assert report.makespan_s == pytest.approx(2 * 3600 + 30 * report.preemptions)


def test_restarts_that_cost_more_than_they_are_worth_are_avoided() -> None:
    jobs = [job(name, work=3600, restore_s=120.0) for name in "ab"]
    eager, calm = (run(jobs, "1x1", "max-min", settings={"stay": stay}) for stay in ("0", "720"))
    assert measure(calm).preemptions < measure(eager).preemptions / 2
    assert measure(calm).makespan_s < measure(eager).makespan_s


# 6. Whoever is no bottleneck has an arbitrary share, so that under makespan short jobs starve (FTF up to 47).


def test_whoever_is_no_bottleneck_has_all_that_the_bottleneck_does_not_need() -> None:
    """The gang is held back by its type; the others can have theirs to the full, and do at once."""
    cell = Cell("fast:1x2,slow:1x1", "max-min")
    bound = job("bound", work=1e5, throughput={"slow": 1.0})
    cell.submit(0, bound, *(job(name, work=1e5, throughput={"fast": 1.0}) for name in "ab"))
    assert cell.running == ["bound", "a", "b"]
    share = cell.engine.memory.column("share", np.arange(3))
    assert share == pytest.approx(np.array([[0, 1], [1, 0], [1, 0]]))


def test_short_jobs_do_not_wait_for_the_end_of_the_longest_under_makespan() -> None:
    shorts = [job(f"s{k}", work=300) for k in range(8)]
    history = run([job("long", work=36_000), *shorts], "1x2", "makespan")
    assert ends(history)[0] == 36_000
    assert max(ends(history)[1:]) <= 8 * 300 + 360
    assert measure(history).isolated_rho.max < 2


@pytest.mark.parametrize(
    ("cluster_spec", "works"),
    [
        ("1x1", (36_000, 600)),
        ("1x1", (500_000, 1.5, 600)),
        ("1x4", (86_400, 86_400, 86_400, 86_400, 600, 1_800)),
        ("1x4", (86_400, 86_400, 86_400, 86_400, 7_200)),
        ("1x4", (86_400, 86_400, 86_400, 86_400, 86_400, 100, 100, 100)),
    ],
)
def test_short_jobs_pass_long_ones_that_need_nearly_all_the_time(cluster_spec: str, works: tuple[float, ...]) -> None:
    """Long jobs take turns in giving way, and the end comes at most two rounds later."""
    history = run([job(f"j{k}", work=work) for k, work in enumerate(works)], cluster_spec, "makespan")
    assert measure(history).isolated_rho.max < 1.1
    assert max(ends(history)) <= sum(works) / int(cluster_spec[2:]) + 2 * 360


# 7. Type-agnostic finish-time fairness and makespan take every type for a V100.


@pytest.mark.parametrize("policy", ["finish-time", "makespan", "max-min"])
def test_who_is_not_aware_of_types_takes_each_for_the_average_and_not_for_the_fastest(policy: str) -> None:
    """On average over the cluster the two are alike; on a V100 one is five times as fast."""
    cell = Cell("v100:1x2,k80:1x2", policy, {"aware": "false"})
    jobs = [job("a", throughput={"v100": 5.0, "k80": 1.0}), job("b", throughput={"v100": 1.0, "k80": 5.0})]
    cell.submit(0, *jobs, *(job(f"c{k}", throughput={"v100": 3.0, "k80": 3.0}) for k in range(6)))
    share = cell.engine.memory.column("share", np.arange(8))
    assert share.sum(axis=1) == pytest.approx(np.full(8, 0.5))


# 8. Placement never changes throughput, though tables for spread gangs exist.


def test_a_gang_that_is_spread_over_nodes_runs_at_the_speed_of_spread_gangs() -> None:
    speeds = Throughputs()
    speeds.put(Setting("lm", "v100", 2, Span.NODE), 10.0)
    speeds.put(Setting("lm", "v100", 2, Span.RACK), 4.0)
    gang = job("gang", gpus=2, work=1000, unit="steps", job_class="lm")
    assert ends(run([gang], "v100:1x2", "max-min", throughputs=speeds)) == [100]
    assert ends(run([gang], "v100:2x1", "max-min", throughputs=speeds)) == [250]


# 9. GPU types are hard-coded; there is no recovery of workers.


@pytest.mark.parametrize("policy", [*ROUNDS, "fifo-aware", "sjf-aware", "allox"])
def test_any_gpu_types_will_do_and_one_that_nobody_knew_may_join(policy: str) -> None:
    spec = job("a", work=7200, throughput={"mi250": 1.0, "gaudi": 2.0, "gb300": 3.0})
    newer = NodeJoined(1000, Node("new-0", "gb300", 1))
    history = Script([spec], "mi250:1x1,gaudi:1x1", policy, events=[newer]).history
    assert history.attempts.gpu_ids.tolist() == [1, 2], "first on gaudi, then on what joined"
    assert ends(history)[0] < 3600


@pytest.mark.parametrize("policy", [*ROUNDS, "fifo-aware", "allox"])
def test_a_job_whose_node_is_lost_goes_on_elsewhere_from_its_checkpoint(policy: str) -> None:
    lost = NodeLost(1000, "fast-0")
    spec = job("a", work=4000, checkpoint_every_s=300.0, throughput={"fast": 2.0, "slow": 1.0})
    script = Script([spec], "fast:1x1,slow:1x1", policy, events=[lost])
    # 900 s at speed 2 were saved; the other 2,200 s of work are done at speed 1.
    assert ends(script.history) == [3200]


# 10. Deadlines that cannot all be met drop all of them at once.


def test_a_deadline_that_cannot_be_met_leaves_the_others_in_force() -> None:
    speeds = {"fast": 2.0, "slow": 1.0}
    jobs = [
        job("hopeless", work=100_000, deadline_s=600, throughput=speeds),
        job("hurry", work=7200, deadline_s=4000, throughput=speeds),
        job("patient", work=7200, throughput=speeds),
    ]
    settings = {"prices": "fast:4,slow:1"}
    with_deadlines = run(jobs, cluster("fast:1x1,slow:1x2"), "cost-deadline", settings=settings)
    without = run(jobs, cluster("fast:1x1,slow:1x2"), "cost", settings=settings)
    assert times(with_deadlines)["hurry"][1] <= 4000
    assert times(without)["hurry"][1] > 4000, "or the deadline would prove nothing"
