"""What benchmarks compare with is right, so that a ratio compares like with like."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from horae.core.job import JobSpec
from horae.core.queues import Queue, QueueTree
from horae.simulator.run import simulate
from horae.simulator.scenario import Scenario
from horae.solve.allocation.problem import AllocationProblem, Sharing
from horae.solve.auction.bids import check_bid
from horae.workload.clusters import parse_cluster


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """The benchmarks are not installed; they stand beside the tests."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1]))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture
def reference(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("reference")


@pytest.fixture
def plain(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("plain")


@pytest.fixture
def solver(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("solver")


@pytest.fixture
def made_up(benchmark_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The table of speeds where the published one is not at hand."""
    monkeypatch.setenv("HORAE_DATA", str(tmp_path))
    return benchmark_module("speeds").find_speeds()


def random_jobs(seed: int, count: int = 150) -> list[JobSpec]:
    """Jobs in whole seconds, often at the same one, that keep eight GPUs overloaded for a while."""
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, 400, count), rng.choice([1, 2, 4, 8], count), rng.integers(1, 40, count)
    return [
        JobSpec(f"{n}", float(submit_s), int(gpus), float(work))
        for n, (submit_s, gpus, work) in enumerate(zip(*columns, strict=True))
    ]


@pytest.mark.parametrize("policy", ["fifo-backfill", "srtf"])
@pytest.mark.parametrize("seed", range(3))
def test_the_naive_loop_gives_every_job_the_start_and_end_that_horae_does(
    reference: ModuleType, policy: str, seed: int
) -> None:
    jobs = random_jobs(seed)
    history = simulate(Scenario(jobs, parse_cluster("2x4"), policy=policy, placement="anywhere", restart_cost_s=0.0))
    reference.check_same(history, reference.naive.run(jobs, 8, policy))


def test_a_difference_between_the_two_is_told_by_job(reference: ModuleType) -> None:
    jobs = random_jobs(0)
    history = simulate(Scenario(jobs, parse_cluster("2x4"), policy="fifo", placement="anywhere", restart_cost_s=0.0))
    with pytest.raises(AssertionError, match=r"job \d+: horae ran it from .* jobs differ"):
        reference.check_same(history, reference.naive.run(jobs, 8, "srtf"))


# ------------------------------------------------------------ plain programs

#: One, two and three GPUs of three types, and two jobs.
SEED = AllocationProblem(
    gpu_types=("v100", "p100", "k80"),
    capacity=np.array([1.0, 2.0, 3.0]),
    ids=("0", "1"),
    gpus=np.ones(2),
    speed=np.array([[2.0, 1.0, 0.5], [3.0, 2.0, 1.0]]),
    weight=np.ones(2),
    steps_left=np.array([300.0, 500.0]),
    elapsed_s=np.zeros(2),
    isolated_s=np.zeros(2),
)


def test_the_plain_programs_solve_the_worked_examples(plain: ModuleType) -> None:
    assert plain.max_min(SEED) == pytest.approx(1.54839, abs=1e-5)
    assert plain.finish_time(SEED) == pytest.approx(0.64583, abs=1e-5)
    assert plain.makespan(SEED) == pytest.approx(200.0)


def test_the_plain_program_lets_jobs_share_where_that_is_faster(plain: ModuleType) -> None:
    alone = AllocationProblem(
        gpu_types=("gpu",),
        capacity=np.ones(1),
        ids=("0", "1"),
        gpus=np.ones(2),
        speed=np.ones((2, 1)),
        weight=np.ones(2),
        steps_left=np.ones(2),
        elapsed_s=np.zeros(2),
        isolated_s=np.zeros(2),
    )
    assert plain.max_min(alone) == pytest.approx(0.5)
    shared = replace(alone, sharing=Sharing(np.zeros(2, np.int64), np.full((1, 1, 1), 0.8)))
    assert plain.max_min(shared) == pytest.approx(0.8)


def test_the_plain_filling_goes_on_for_those_that_nobody_stops(plain: ModuleType) -> None:
    """The first job can use one type alone, and not all of it; the second has the other to itself."""
    apart = replace(SEED, capacity=np.array([0.25, 1.0, 1.0]), speed=np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    assert plain.lexicographic(apart) == pytest.approx([0.25, 1.0])


def test_a_plain_queue_serves_its_jobs_by_its_rule(plain: ModuleType) -> None:
    tree = QueueTree([Queue("fair", 1.0), Queue("first", 1.0, "fifo")])
    four = AllocationProblem(
        gpu_types=("gpu",),
        capacity=np.ones(1),
        ids=("0", "1", "2", "3"),
        gpus=np.ones(4),
        speed=np.ones((4, 1)),
        weight=np.ones(4),
        steps_left=np.ones(4),
        elapsed_s=np.zeros(4),
        isolated_s=np.zeros(4),
        queue=np.array([1, 2, 1, 2]),
        queues=tree,
    )
    assert plain.hierarchical(four) == pytest.approx([0.25, 0.5, 0.25, 0.0], abs=1e-6)


def test_every_problem_of_the_benchmark_is_solved_as_the_plain_programs_do(
    solver: ModuleType, made_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "JOBS", 40)
    monkeypatch.setattr(solver, "ENTITIES", 6)
    entries = list(solver._entries(made_up, 100, 50))
    measured = [solver._measure(entry, judged=False) for entry in entries]
    assert [miss for _, misses in measured for miss in misses] == []
    compared = {row["problem"] for row, _ in measured if row["differ"] != "-"}
    assert compared == {entry.name for entry in entries} - {"space sharing"}


def test_what_misses_a_limit_is_told(solver: ModuleType, made_up: Any) -> None:
    problem = replace(SEED)
    slow = solver.Entry("slow", problem, solver.max_min, lambda p: 2.0, limit_s=0.0, least_ratio=1e9)
    row, misses = solver._measure(slow, judged=True)
    assert row["holds"] == "NO"
    assert [miss.partition(": ")[2].split()[0] for miss in misses] == ["took", "differs", "is"]
    assert len(solver._measure(slow, judged=False)[1]) == 1


def test_the_made_up_table_has_the_shape_of_the_published_one(made_up: Any) -> None:
    assert not made_up.published
    assert (len(made_up), made_up.beside.shape) == (83, (83, 83, 3))
    unlike = made_up.gpus[:, None] != made_up.gpus[None, :]
    assert (made_up.beside[unlike] == 0).all()
    assert (made_up.beside[~unlike] > 0).all()
    assert len({tuple(row) for row in made_up.alone.tolist()}) == 83


def test_the_published_table_is_read_whole(
    benchmark_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, shared_data: Path
) -> None:
    monkeypatch.setenv("HORAE_DATA", str(shared_data))
    speeds = benchmark_module("speeds").find_speeds()
    assert speeds.published
    assert (speeds.alone[:, 0] > 0).all()
    assert len(speeds) == 83
    # Pairs of single GPUs that were measured; of gangs none was.
    assert (speeds.beside[:, :, 0] > 0).sum() == 636


# ------------------------------------------------------------ auctions


@pytest.mark.parametrize("named", [True, False])
def test_made_up_bids_are_such_as_an_auction_takes(benchmark_module: Callable[[str], ModuleType], named: bool) -> None:
    offer, bids = benchmark_module("bidding").draw_auction(30, 256, 1, named)
    for bid in bids:
        check_bid(offer, bid)
    # Contention: apps could use several times what there is, and more of it is better.
    assert sum(int(bid.bundles.total.max()) for bid in bids) > 2 * offer.gpus
    assert all(bid.bundles.rho.max() <= bid.rho_of_nothing for bid in bids if bid.gang < 4)


def test_an_auction_that_misses_its_limits_is_told(benchmark_module: Callable[[str], ModuleType]) -> None:
    auction = benchmark_module("auction")
    measured = auction._measure(8, 64, named=False)
    assert measured.misses() == []
    assert measured.row()["holds"] == "-"
    late = replace(measured, apps=50, gpus=256, cpu_s=9.0, outcome=replace(measured.outcome, gap=0.5))
    assert [miss.partition("apps ")[2].split()[0] for miss in late.misses()] == ["took", "has"]
    assert late.row()["holds"] == "NO"


def test_memory_counts_what_python_cannot_see(benchmark_module: Callable[[str], ModuleType]) -> None:
    """As compiled code asks for memory: of the system, not of Python."""
    memory = benchmark_module("memory")
    nothing = memory.peak_mb(lambda: None)
    assert 50 <= memory.peak_mb(lambda: mmap.mmap(-1, 50 * 2**20).write(bytes(50 * 2**20))) - nothing <= 150
    with pytest.raises(memory.CommandFailed):
        memory.peak_mb(lambda: 1 // 0)


def test_how_auctions_scale_is_drawn(benchmark_module: Callable[[str], ModuleType], tmp_path: Path) -> None:
    scaling = benchmark_module("scaling")
    line = scaling.Grown("arbiter", [0.0, 2.0], [0.0, 300.0])
    scaling.draw_scaling(tmp_path / "drawn.png", "title", [(8, 64), (50, 256)], [line])
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_a_decision_is_taken_apart(benchmark_module: Callable[[str], ModuleType]) -> None:
    measured = benchmark_module("arbiter")._measure(8, 64)
    assert measured.jobs >= measured.apps == 8
    assert 0 < max(measured.agents_s, measured.arbiter_s) < measured.whole_s


# ------------------------------------------------------------------------ service


def test_the_journal_that_recovery_is_timed_on_gives_the_same_engine(
    benchmark_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from horae.backends.local.gpu_detection import parse_virtual
    from horae.service.initial_settings import InitialSettings
    from horae.service.recovery import recover
    from horae.service.store.store import Store

    recovery = benchmark_module("recovery")
    monkeypatch.setattr(recovery, "_QUEUED", 60)
    beginning = InitialSettings(parse_virtual(benchmark_module("serving").GPUS), "tiresias")
    store = Store(f"sqlite:///{tmp_path}/journal.db", own=True)
    written = recovery._write(store, beginning, 700)
    found, seq = recover(store, beginning)
    store.close()
    assert seq == 700
    assert len(found.jobs) > 60
    for name, column in written.jobs.columns().items():
        np.testing.assert_array_equal(found.jobs.columns()[name], column, err_msg=name)


def test_the_longest_decision_is_that_of_the_interval_alone(benchmark_module: Callable[[str], ModuleType]) -> None:
    def counts(*by_end: tuple[str, int]) -> dict[str, float]:
        ends = {f'horae_decision_seconds_bucket{{le="{end}"}}': float(count) for end, count in by_end}
        return {**ends, "horae_decision_seconds_count": float(by_end[-1][1])}

    before = counts(("0.1", 5), ("1", 5), ("3", 6), ("+Inf", 6))
    after = counts(("0.1", 7), ("1", 8), ("3", 9), ("+Inf", 9))
    assert benchmark_module("service")._longest_s(before, after) == 1.0


# ------------------------------------------------------------------------ results


@pytest.fixture
def page(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("page")


@pytest.fixture
def results(benchmark_module: Callable[[str], ModuleType]) -> ModuleType:
    return benchmark_module("results")


def test_the_page_is_rendered_from_the_results(page: ModuleType, results: ModuleType) -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.render(results.load()), "run `make docs`"


def test_the_results_are_not_older_than_fifty_commits(results: ModuleType) -> None:
    ages = {name: results.commits_since(result["commit"]) for name, result in results.load().items()}
    if None in ages.values():
        pytest.skip("this is no git checkout, or a shallow one that does not hold the measured commits")
    old = {name: age for name, age in ages.items() if age > results.MOST_COMMITS}
    assert not old, f"run `make bench` and `make docs`: commits of the measured packages since, by part: {old}"


def test_every_part_has_a_section(benchmark_module: Callable[[str], ModuleType], page: ModuleType) -> None:
    assert set(page.SECTIONS) == set(benchmark_module("__main__").PARTS)


def test_a_result_takes_the_place_of_the_last_one_of_its_part(
    page: ModuleType, results: ModuleType, benchmark_module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    part, path = benchmark_module("part").Part, tmp_path / "results.json"
    for commit, cpu_s in (("a" * 40, 1234.5), ("b" * 40, 7.5)):
        results.save("start", part("Start", [{"cpu_s": cpu_s, "holds": "-"}], ["A note."]), commit, (0.5, 1.0), path)
    results.save("limits", part("Limits", [{"cpu_s": 4321}], [], ["Too slow."]), "b" * 40, (0.5, 1.0), path)
    rendered = page.render(results.load(path))
    assert "| 7.5 |  |\n\n- A note." in rendered
    assert "| 4,321 |" in rendered
    assert "- **Missed:** Too slow." in rendered
    assert "1,234" not in rendered
    assert "`bbbbbbbbbbbb`" in rendered


def test_pictures_are_drawn_from_rows(benchmark_module: Callable[[str], ModuleType], tmp_path: Path) -> None:
    arbiter, auction = benchmark_module("arbiter"), benchmark_module("auction")
    arbiter.draw_arbiter([arbiter._measure(8, 64).row()], tmp_path / "arbiter.png")
    auction.draw_auctions([auction._measure(8, 64, named).row() for named in (False, True)], tmp_path / "auction.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("arbiter.png", "auction.png"))
