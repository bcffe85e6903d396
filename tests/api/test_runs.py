"""Runs, comparisons, sweeps, audits and scenarios from Python."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import horae as public
from horae import JobSpec, Memory, Snapshot, UserError, Wishes
from horae.core.events import NodeLost
from tests.cli.conftest import TRACE, Horae, horae  # noqa: F401, the fixture


class Largest:
    """Large gangs first."""

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        return Wishes(now.rows, -now.gpus.astype(float))


@pytest.fixture
def trace(tmp_path: Path) -> public.Trace:
    (tmp_path / "day.csv").write_text(TRACE)
    return public.read_trace(tmp_path / "day.csv")


def test_a_run_is_that_of_the_command(horae: Horae, trace: public.Trace, tmp_path: Path) -> None:  # noqa: F811
    run = public.simulate(trace, cluster="1x4", policy="las", settings={"quantum": 300})
    words = ("--trace", tmp_path / "day.csv", "--cluster", "1x4", "--policy", "las", "--set", "quantum=300")
    told = horae("simulate", *words, "--jobs-out", tmp_path / "jobs.csv", "-o", "json").json
    costs = {"cpu_s", "wall_s", "peak_rss_mb"}
    assert run.summary == {key: value for key, value in told.items() if key not in costs}
    run.save_jobs(tmp_path / "own.csv")
    assert (tmp_path / "own.csv").read_bytes() == (tmp_path / "jobs.csv").read_bytes()
    header = (tmp_path / "jobs.csv").read_text().splitlines()[0]
    assert (run.jobs.columns, run.jobs.height) == (header.split(","), 5)
    assert repr(run).startswith("<Run of las: 5 of 5 jobs finished on 4 GPUs, average JCT")
    run.save_html(tmp_path / "page.html")
    run.save_perfetto(tmp_path / "viewer.json")
    assert "<html" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "viewer.json").read_text())
    assert (run.scenario.choice.name, run.history.policy, run.waiting) == ("las", "las", {})


def test_policies_are_names_places_classes_and_objects(trace: public.Trace, tmp_path: Path) -> None:
    place = tmp_path / "mine.py"
    place.write_text("import horae\nclass Mine:\n  def plan(self, now, memory): return horae.Wishes(now.rows)\n")
    ways: list[Any] = ["fifo", f"{place}:Mine", Largest, Largest(), ("las", {"quantum": 60})]
    runs = [public.simulate(trace, cluster="1x4", policy=way) for way in ways]
    assert [run.report.policy for run in runs] == ["fifo", f"{place}:Mine", "Largest", "Largest", "las"]
    assert runs[4].summary["settings"]["quantum"] == "60"


def test_a_comparison_has_a_row_for_each_policy_and_seed(tmp_path: Path) -> None:
    work = public.generate("plain", jobs=8, load=1.5)
    compared = public.compare(
        work, cluster="1x8", policies=["fifo", Largest(), ("las", {"quantum": 60})], seeds=range(3)
    )
    assert compared.labels == ["fifo", "Largest", "las"]
    assert compared.frame.select("policy", "seed").rows() == [(p, s) for p in compared.labels for s in range(3)]
    fifo = compared.frame.filter(policy="fifo")["avg_jct_s"]
    assert len(set(fifo)) == 3, "every seed draws other jobs"
    means = compared.means.row(0, named=True)
    assert means["avg_jct_s"] == pytest.approx(fifo.mean())
    assert compared.intervals.row(0, named=True)["avg_jct_s"] == pytest.approx(compared.summary[0]["ci95"]["avg_jct_s"])
    assert "rho.max" in compared.frame.columns
    compared.save_html(tmp_path / "page.html")
    assert "Largest" in (tmp_path / "page.html").read_text()
    assert public.compare(work, cluster="1x8", policies=["fifo"]).intervals["avg_jct_s"][0] is None


SCRIPT = """
import horae

{definition}
work = horae.generate("plain", jobs=6)
for workers in (1, 2):
    made = horae.compare(work, cluster="1x8", policies=["fifo", Mine, Mine(), "mine"], seeds=range(2), workers=workers)
    print(made.frame.select("policy", "seed", "avg_jct_s").rows())
"""
DEFINITION = """
@horae.policy("mine")
class Mine:
    def plan(self, now, memory):
        return horae.Wishes(now.rows, key(now))

def key(now):
    return -now.gpus.astype(float)
"""


def last_lines(script: str, folder: Path) -> list[str]:
    (folder / "script.py").write_text(script)
    ran = subprocess.run([sys.executable, "script.py"], cwd=folder, text=True, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_classes_of_a_notebook_go_to_worker_processes(tmp_path: Path) -> None:
    """Cells are run in a namespace that no other process can import: without a name, with one, as the main module."""
    cells = [SCRIPT.format(definition=DEFINITION).replace('"mine"', f'"mine-{number}"') for number in range(3)]
    namespaces = ["{}", '{"__name__": "cell"}', '{"__name__": "__main__"}']
    script = "\n".join(f"exec({cell!r}, {names})" for cell, names in zip(cells, namespaces, strict=True))
    lines = last_lines(script, tmp_path)
    assert len(lines) == 6
    for number, (alone, together) in enumerate(zip(lines[::2], lines[1::2], strict=True)):
        assert alone == together
        assert alone.count(f"mine-{number}") == 6


def test_classes_of_a_script_without_a_guard_go_to_worker_processes(tmp_path: Path) -> None:
    alone, together = last_lines("print('once')\n" + SCRIPT.format(definition=DEFINITION), tmp_path)[1:]
    assert alone == together


def test_a_mistake_in_a_worker_is_told_as_one_of_ours() -> None:
    class Fails(Largest):
        def plan(self, now: Snapshot, memory: Memory) -> Wishes:
            raise ValueError("not today")

    with pytest.raises(UserError, match="Policy 'Fails' failed: ValueError: not today"):
        public.compare(public.generate("plain", jobs=3), cluster="1x8", policies=["fifo", Fails], workers=2)


def test_a_sweep_over_load_size_and_settings(tmp_path: Path, trace: public.Trace) -> None:
    work = public.generate("plain", jobs=6)
    swept = public.sweep(work, vary="load", values=[2, 0.5], cluster="1x8", policies=["las", Largest], seeds=[0, 1])
    assert swept.frame.select("value", "policy", "seed").rows()[:4] == [
        (0.5, "las", 0), (0.5, "las", 1), (0.5, "Largest", 0), (0.5, "Largest", 1),
    ]  # fmt: skip
    assert swept.means.height == 4
    swept.save_plot(tmp_path / "load.png", "rho.max")
    swept.save_html(tmp_path / "load.html")
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")
    assert "Largest" in repr(swept)
    sizes = public.sweep(trace, vary="gpus", values=[4, 8], cluster="1x4", policies=["fifo"])
    assert sizes.frame["value"].to_list() == [4.0, 8.0]
    quanta = public.sweep(trace, vary="quantum", values=[30, 600], cluster="1x4", policies=["las", "fifo"])
    assert quanta.frame["value"].to_list() == [30.0, 600.0, None]
    with pytest.raises(UserError, match="Only generated jobs"):
        public.sweep(trace, vary="load", values=[1], cluster="1x4", policies=["fifo"])


def test_an_audit_judges_the_run(trace: public.Trace, tmp_path: Path) -> None:
    audited = public.audit(trace, cluster="1x4", policy="srtf", samples=5)
    assert audited.holds in (True, False)
    assert audited.frame.columns[:3] == ["name", "claim", "holds"]
    audited.save_html(tmp_path / "audit.html")
    assert "sharing" in (tmp_path / "audit.html").read_text().lower()


def test_a_scenario_can_be_changed_and_run_again(trace: public.Trace) -> None:
    first = public.scenario(trace, cluster="1x4", policy="las", settings={"quantum": 60}, faults={"stragglers": 0.5})
    assert public.simulate(first).summary == public.simulate(first).summary
    other = public.scenario(first, seed=3, policy="fifo", cluster="2x4")
    assert (other.seed, other.policy, dict(other.settings), other.cluster.gpus) == (3, "fifo", {}, 8)
    assert public.simulate(first, settings={"quantum": 30}).scenario.settings == {"quantum": "30"}


def test_mistakes_are_told_in_one_sentence(trace: public.Trace) -> None:
    for wrong, told in (
        (lambda: public.simulate(trace, policy="las"), "needs a cluster"),
        (lambda: public.simulate(trace, cluster="1x4"), "needs a policy"),
        (lambda: public.simulate("day.csv", cluster="1x4", policy="las"), "is no workload"),  # type: ignore[arg-type]
        (lambda: public.simulate([1], cluster="1x4", policy="las"), "is no job"),  # type: ignore[list-item]
        (lambda: public.simulate(trace, cluster="1x4", policy="lass"), "Did you mean 'las'"),
        (lambda: public.simulate(trace, cluster="1x4", policy="las", settings={"quantum": -1}), "too small"),
        (lambda: public.simulate(trace, cluster="1x4", policy="las", faults={"x": 1}), "no faults"),
        (lambda: public.compare(trace, cluster="1x4", policies="fifo"), "a list of at least one policy"),
        (lambda: public.compare(trace, cluster="1x4", policies=[]), "a list of at least one policy"),
        (lambda: public.compare(trace, cluster="1x4", policies=["fifo"], seeds=[]), "at least one seed"),
        (lambda: public.compare(trace, cluster="1x4", policies=["las"], settings={"quantum": 1}), "Settings go with"),
    ):
        with pytest.raises(UserError, match=told):
            wrong()


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_a_scenario_is_written_and_read_again(trace: public.Trace, tmp_path: Path, ending: str) -> None:
    speeds = public.Throughputs()
    queues = [public.Queue("a/b", gpus_max=3)]
    for made in (
        public.scenario(trace, cluster="v100:1x4,k80:2x2/1", policy="las", settings={"quantum": 60}, queues=queues),
        public.scenario(
            public.generate("themis", jobs=9), cluster="1x4", policy="themis", seed=7, until=5, truth=speeds
        ),
        public.scenario([JobSpec("a", 0, 1, 5.0)], cluster="1x4", policy="fifo", faults={"stragglers": 0.1}),
    ):
        path = tmp_path / f"scenario.{ending}"
        public.write_scenario(path, made)
        again = public.read_scenario(path)
        assert public.simulate(again).summary == public.simulate(made).summary
        assert (again.seed, again.until, again.queues, again.cluster) == (
            made.seed,
            made.until,
            made.queues,
            made.cluster,
        )


def test_a_scenario_whose_nodes_come_and_go_cannot_be_written(trace: public.Trace, tmp_path: Path) -> None:
    made = replace(public.scenario(trace, cluster="1x4", policy="fifo"), node_changes=(NodeLost(5.0, "gpu-0"),))
    with pytest.raises(UserError, match="cannot be written: its nodes come and go"):
        public.write_scenario(tmp_path / "s.json", made)


def test_a_policy_of_this_program_alone_cannot_be_written(trace: public.Trace, tmp_path: Path) -> None:
    made = public.scenario(trace, cluster="1x4", policy=Largest())
    with pytest.raises(UserError, match=r"cannot be written: its policy 'Largest' .*\./mine\.py:Largest") as error:
        public.write_scenario(tmp_path / "s.json", made)
    assert not (tmp_path / "s.json").exists()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [("{", "neither YAML nor JSON"), ("[]", "holds no scenario"), ('{"horae_scenario": 1}', "no whole scenario")],
)
def test_a_file_that_holds_no_scenario_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match=told):
        public.read_scenario(tmp_path / "s.json")
    with pytest.raises(UserError, match="cannot be read"):
        public.read_scenario(tmp_path / "away.json")


def test_a_policy_that_ignores_speeds_is_warned_of_where_it_was_called() -> None:
    jobs = [JobSpec(f"job-{k}", 0.0, 1, 100.0, unit="steps", throughput={"v100": 4.0, "k80": 1.0}) for k in range(3)]
    machines = "v100:1x1,k80:1x1"
    for call in (
        lambda: public.simulate(jobs, cluster=machines, policy="srsf"),
        lambda: public.audit(jobs, cluster=machines, policy="srsf", samples=1),
        lambda: public.compare(jobs, cluster=machines, policies=["srsf", "sjf-aware"], seeds=range(2)),
        lambda: public.sweep(jobs, vary="gpus", values=[2, 4], cluster=machines, policies=["srsf", "sjf-aware"]),
    ):
        with pytest.warns(public.PolicyWarning, match=r"^srsf treats GPU types as alike.* 4 times as fast") as told:
            call()
        assert [warning.filename for warning in told] == [__file__]


def test_no_warning_comes_with_a_policy_that_goes_by_speeds(recwarn: pytest.WarningsRecorder) -> None:
    jobs = [JobSpec("job", 0.0, 1, 100.0, unit="steps", throughput={"v100": 4.0, "k80": 1.0})]
    public.simulate(jobs, cluster="v100:1x1,k80:1x1", policy="sjf-aware")
    public.simulate(jobs, cluster="v100:1x2", policy="srsf")
    assert not recwarn.list
