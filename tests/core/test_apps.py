"""App schedulers as pure functions, against a plain reading; and what the engine makes of their answers.

Tests core/app_schedulers.py.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horae.core.app_schedulers import (
    AppTrials,
    Halving,
    HyperBand,
    HyperDrive,
    final_losses,
    make_app_scheduler,
)
from horae.core.apps import check_apps
from horae.core.codec import decode, encode
from horae.core.commands import Decided, StopWhy
from horae.core.engine import Engine
from horae.core.errors import UserError
from horae.core.events import Event, JobCancelled, JobFinished, JobHeld, JobProgressed, JobReleased
from horae.core.explain import explain
from horae.core.job import BadJob, JobSpec
from horae.core.loss_curve import LossCurve
from horae.core.reasons import Reason
from horae.core.states import State
from tests.builders import Cell, Script, job

NAN = math.nan
RUNNING, FINISHED, GONE = int(State.RUNNING), int(State.FINISHED), int(State.CANCELLED)


def view(losses: list[list[float]], state: list[int] | None = None, work: float = 27.0, rungs: int = 0) -> AppTrials:
    """An app of which only the reports matter."""
    n = len(losses)
    width = rungs or len(losses[0])
    scheduler = Halving(rung_count=width)
    return AppTrials(
        app="app",
        work=np.full(n, work),
        work_done=np.zeros(n),
        state=np.array(state or [RUNNING] * n, np.uint8),
        rungs=np.array([scheduler.rungs(k, work) for k in range(n)]),
        losses=np.array(losses),
    )


def trial(
    name: str, last: float, scheduler: str = "halving:eta=2,rungs=2", app: str = "app", **more: object
) -> JobSpec:
    """A trial whose loss falls towards `last`."""
    curve = LossCurve(10.0, last, 10.0)
    return job(name, app=app, app_scheduler=scheduler, loss=curve, **more)  # type: ignore[arg-type]


def test_rungs_are_an_eta_th_of_each_other() -> None:
    assert Halving(3, 3).rungs(5, 81.0) == (3.0, 9.0, 27.0)


def test_nobody_is_given_up_while_a_trial_that_is_alive_has_not_reported() -> None:
    assert Halving(2).give_up(view([[3.0], [1.0], [NAN]])) == {}
    assert set(Halving(2).give_up(view([[3.0], [1.0], [NAN]], [RUNNING, RUNNING, GONE]))) == {0}


def test_the_best_part_goes_on_and_ties_go_to_the_earlier_trial() -> None:
    lost = Halving(3).give_up(view([[2.0], [1.0], [1.0], [5.0], [1.0], [0.5]]))
    assert set(lost) == {0, 2, 3, 4}
    assert lost[3] == "at rung 1: its loss was 5, and the best 2 of 6 had 1 or less"


def test_the_last_trial_of_a_race_always_goes_on() -> None:
    assert set(Halving(10).give_up(view([[2.0], [1.0]]))) == {0}
    assert Halving(10).give_up(view([[2.0]])) == {}


def test_a_trial_that_has_ended_counts_in_the_race_but_is_not_given_up() -> None:
    assert set(Halving(2).give_up(view([[3.0], [1.0], [2.0], [0.5]], [FINISHED, RUNNING, RUNNING, FINISHED]))) == {2}


def by_hand(losses: np.ndarray, alive: np.ndarray, eta: int) -> set[int]:
    """Successive halving read aloud."""
    race, out = list(range(len(losses))), set()
    for rung in range(losses.shape[1]):
        if any(alive[one] and math.isnan(losses[one, rung]) for one in race):
            return out
        ranked = sorted((losses[one, rung], one) for one in race if not math.isnan(losses[one, rung]))
        if not ranked:
            return out
        race = sorted(one for _, one in ranked[: max(1, len(ranked) // eta)])
        out |= {one for _, one in ranked if one not in race and alive[one]}
    return out


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 3), st.integers(2, 4))
def test_halving_is_what_it_says(seed: int, trials: int, rungs: int, eta: int) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.integers(0, 6, (trials, rungs)).astype(float)
    losses[np.arange(rungs) >= rng.integers(0, rungs + 2, trials)[:, None]] = NAN
    states = rng.choice([RUNNING, FINISHED, GONE], trials, p=[0.6, 0.2, 0.2])
    seen = view(losses.tolist(), states.tolist())
    assert set(Halving(eta, rungs).give_up(seen)) == by_hand(losses, states == RUNNING, eta)


def test_those_that_have_reported_at_an_undecided_rung_pause() -> None:
    assert Halving(2).turns(view([[3.0], [1.0], [NAN]])).tolist() == [-1, -1, 0]
    assert Halving(2).turns(view([[3.0], [1.0]])).tolist() == [0, 0]
    # The second rung is undecided between the first two; the third is out.
    assert Halving(2).turns(view([[1.0, 1.0], [2.0, NAN], [3.0, NAN], [4.0, NAN]])).tolist() == [-1, 0, 0, 0]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(2, 4), st.integers(1, 3))
def test_what_is_given_up_is_the_same_in_whatever_order_reports_come(seed: int, n: int, eta: int, rungs: int) -> None:
    rng = np.random.default_rng(seed)
    final = rng.random((n, rungs))
    known, state = np.full((n, rungs), NAN), np.full(n, RUNNING)
    next_rung = np.zeros(n, np.int64)
    while (ready := np.flatnonzero((state == RUNNING) & (next_rung < rungs))).size:
        one = rng.choice(ready)
        known[one, next_rung[one]] = final[one, next_rung[one]]
        next_rung[one] += 1
        for out in Halving(eta, rungs).give_up(view(known.tolist(), state.tolist())):
            state[out] = GONE
    assert set(np.flatnonzero(state == GONE)) == by_hand(final, np.ones(n, bool), eta)


def test_hyperband_spreads_trials_over_races_in_the_papers_proportions() -> None:
    races = [len(HyperBand(3, 3).rungs(place, 27.0)) for place in range(49)]
    assert {race: races.count(race) for race in (3, 2, 1, 0)} == {3: 27, 2: 12, 1: 6, 0: 4}
    assert len(set(races[:6])) >= 3, "every race gets trials early"


def test_hyperband_gives_up_inside_a_race_only() -> None:
    band = HyperBand(2, 1)
    races = np.array([len(band.rungs(place, 8.0)) for place in range(8)])
    losses = np.where(races[:, None] == 1, np.arange(8.0)[:, None], NAN)
    rungs = np.where(races[:, None] == 1, 4.0, NAN)
    seen = replace(view([[0.0]] * 8), losses=losses, rungs=rungs)
    racing = np.flatnonzero(races == 1)
    assert list(band.give_up(seen)) == racing[len(racing) // 2 :].tolist()


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 10), st.floats(0.01, 10), st.floats(1, 1000))
def test_a_curve_of_the_worlds_family_is_foreseen_exactly(last: float, above: float, halves_at: float) -> None:
    curve, drive = LossCurve(last + above, last, halves_at), HyperDrive(rung_count=10)
    rungs = np.array([drive.rungs(0, 1000.0)])
    losses = np.vectorize(curve.at)(rungs)
    seen = replace(view([[0.0]], work=1000.0), rungs=rungs, losses=losses)
    assert final_losses(seen)[0] == pytest.approx(curve.at(1000.0), rel=1e-6, abs=1e-9)


def test_hyperdrive_gives_up_who_cannot_catch_up_and_runs_the_promising_first() -> None:
    drive = HyperDrive(rung_count=4, promising=0.3)
    curves = [LossCurve(10, 4, 50), LossCurve(10, 1, 50), LossCurve(10, 3.0, 400), LossCurve(10, 2, 50)]
    rungs = np.array([drive.rungs(0, 1000.0)] * 4)
    losses = np.array([[curve.at(work) for work in rungs[0]] for curve in curves])
    losses[3, 1:] = NAN
    seen = replace(view([[0.0]] * 4, work=1000.0), rungs=rungs, losses=losses)
    assert set(drive.give_up(seen)) == {0, 2}, "the second is at 1.53; the others end at 4.3, 5 and nobody knows where"
    assert drive.turns(seen).tolist() == [0, 0, 2, 1]
    assert drive.give_up(replace(seen, losses=np.full((4, 4), NAN))) == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("halvin", "Did you mean 'halving'"),
        ("halving:etta=3", "no setting 'etta'; it has eta, rungs"),
        ("halving:eta=1", "from 2 to"),
        ("halving:eta=2.5", "must be a whole number"),
        ("halving:rungs=nan", "must be a whole number"),
        ("hyperdrive:promising=2", "from 0 to 1"),
        ("hyperdrive:eta=3", "it has rungs, margin, promising"),
    ],
)
def test_a_scheduler_that_nobody_knows_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BadJob, match=sentence):
        job("a", app_scheduler=text)


def test_settings_are_read() -> None:
    assert make_app_scheduler("halving:eta=4,rungs=2") == Halving(4, 2)
    assert make_app_scheduler("hyperband") == HyperBand(3, 3)
    assert make_app_scheduler("hyperdrive:rungs=5,margin=0.5,promising=0.1") == HyperDrive(5, 0.5, 0.1)


def test_the_jobs_of_an_app_must_agree() -> None:
    check_apps([trial("a", 1), trial("b", 1), job("c"), job("d", app_scheduler="halving")])
    with pytest.raises(UserError, match="'a' and 'b' of app 'app' name the app schedulers"):
        check_apps([trial("a", 1), trial("b", 1, "hyperband")])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"loss": LossCurve(1, 2, 3)}, "would rise"),
        ({"loss": LossCurve(2, 1, 0)}, "halves at 0"),
        ({"loss": LossCurve(2, NAN, 1)}, "finite"),
        ({"report_every": 0.01}, "1000 reports"),
        ({"report_every": -1.0}, "1000 reports"),
    ],
)
def test_losses_that_make_no_sense_are_refused(more: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadJob, match=sentence):
        job("a", **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------ the engine


def four_trials(**more: object) -> list[JobSpec]:
    return [trial(name, last, work=100.0, **more) for name, last in zip("abcd", (3.0, 1.0, 4.0, 2.0), strict=True)]


def test_a_launch_asks_for_reports_at_the_rungs_that_are_not_passed() -> None:
    cell = Cell("1x4")
    decided = cell.submit(0, *four_trials(report_every=40.0))
    assert [launch.report_at for launch in decided.launches] == [(25.0, 40.0, 50.0, 80.0)] * 4
    cell.at(30, JobProgressed(30, "a", 1, 25.0, 2.0))
    assert cell.engine.apps.report_at(cell.row("a"), 45.0) == (50.0, 80.0)
    assert cell.engine.apps.report_at(cell.row("b"), 0.0) == (25.0, 40.0, 50.0, 80.0)
    assert cell.engine.apps.report_at(cell.row("b"), 45.0) == (25.0, 50.0, 80.0), (
        "a rung is asked for until it is known"
    )


def test_reports_give_trials_up_and_their_gpus_serve_others_at_once() -> None:
    cell = Cell("1x4")
    cell.submit(0, *four_trials(), job("waits", gpus=2))
    cell.tell(JobProgressed(25, "a", 1, 25.0, 3.0))
    cell.tell(JobProgressed(25, "b", 1, 25.0, 1.0))
    cell.tell(JobProgressed(25, "c", 1, 25.0, 4.0))
    decided = cell.at(25, JobProgressed(25, "d", 1, 25.0, 2.0))
    assert [(stop.job, stop.why) for stop in decided.stops] == [("a", StopWhy.GIVEN_UP), ("c", StopWhy.GIVEN_UP)]
    assert (cell.state("a"), cell.state("c")) == (State.CANCELLED, State.CANCELLED)
    assert cell.running == ["b", "d", "waits"]
    told = explain(cell.engine.status(), "c")
    assert told.code == "GivenUp"
    assert told.sentence.startswith(
        "Its app gave it up at rung 1: its loss was 4, and the best 2 of 4 had 2 or less; to run it"
    )


def test_who_comes_under_the_name_of_an_app_that_has_ended_runs_a_race_of_its_own() -> None:
    cell = Cell("1x4")
    cell.submit(0, *four_trials())
    for name, loss in zip("abcd", (0.1, 0.2, 0.3, 0.4), strict=True):
        cell.tell(JobProgressed(25, name, 1, 25.0, loss))
    cell.at(25)
    cell.at(30, *(JobCancelled(30, name) for name in "abcd"))
    cell.submit(40, *(trial(name, 1.0) for name in "ef"))
    cell.tell(JobProgressed(65, "e", 1, 25.0, 8.0))
    cell.at(65, JobProgressed(65, "f", 1, 25.0, 9.0))
    assert (cell.state("e"), cell.state("f")) == (State.RUNNING, State.CANCELLED), "the best of two goes on"
    cell.at(70, JobFinished(70, "e", int(cell.engine.jobs.attempt[cell.row("e")])))
    cell.submit(80, job("g", app="app"))
    assert cell.engine.apps.report_at(cell.row("g"), 0.0) == (), "another scheduler, or none"


def test_a_trial_at_an_undecided_rung_pauses_and_goes_on_when_it_passes() -> None:
    cell = Cell("1x4")
    cell.submit(0, *four_trials(), job("waits", gpus=3))
    for name, loss in zip("abc", (3.0, 1.0, 4.0), strict=True):
        decided = cell.at(25, JobProgressed(25, name, 1, 25.0, loss))
        assert [(stop.job, stop.why) for stop in decided.stops] == [(name, StopWhy.PAUSED)]
    assert cell.running == ["d", "waits"], "its GPUs serve others meanwhile"
    assert cell.reason("b") is Reason.AT_RUNG
    assert cell.engine.jobs.preemptions[:3].tolist() == [0, 0, 0]
    cell.at(40, JobHeld(40, "a"), JobHeld(40, "b"))
    cell.at(41, JobReleased(41, "b"))
    assert cell.reason("b") is Reason.AT_RUNG, "a user's release does not end a pause"
    cell.at(50, JobProgressed(50, "d", 1, 25.0, 2.0))
    assert (cell.state("a"), cell.state("c")) == (State.CANCELLED, State.CANCELLED)
    cell.at(60, JobFinished(60, "waits", 1))
    assert cell.running == ["b", "d"]


def test_a_trial_that_is_cancelled_or_ends_does_not_hold_up_the_others() -> None:
    cell = Cell("1x4")
    cell.submit(0, *four_trials())
    for name, loss in zip("abc", (3.0, 1.0, 4.0), strict=True):
        cell.tell(JobProgressed(25, name, 1, 25.0, loss))
    cell.at(30, JobCancelled(30, "d"))
    assert cell.running == ["b"], "the best of three"
    assert explain(cell.engine.status(), "d").code == "None", "nobody gave it up"


def test_a_trial_that_waits_is_given_up_without_a_stop() -> None:
    cell = Cell("1x1")
    cell.submit(0, *four_trials()[:2])
    cell.at(25, JobProgressed(25, "a", 1, 25.0, 3.0))
    assert cell.running == ["b"]
    decided = cell.at(50, JobProgressed(50, "b", 1, 25.0, 1.0))
    assert decided.stops == ()
    assert cell.state("a") is State.CANCELLED


def test_one_report_stands_for_all_rungs_passed_and_stale_ones_for_none() -> None:
    cell = Cell("1x4")
    cell.submit(0, *four_trials())
    cell.tell(JobProgressed(60, "a", 1, 60.0, 2.5))
    cell.tell(JobProgressed(60, "a", 1, 25.0, 3.5))
    cell.tell(JobProgressed(60, "b", 1, 60.0, math.inf))
    cell.tell(JobProgressed(60, "b", 1, 60.0))
    table = cell.engine.jobs
    assert cell.engine.apps.contents()["losses"] == {0: (2.5, 2.5)}
    assert (table.loss[0], table.loss_work[0], np.isnan(table.loss_before[0])) == (2.5, 60.0, True)
    assert np.isnan(table.loss[1])
    cell.tell(JobProgressed(70, "a", 1, 70.0, 2.0))
    assert (table.loss_before[0], table.loss_work_before[0], table.loss[0]) == (2.5, 60.0, 2.0)


def test_a_trial_that_finishes_before_it_is_stopped_has_finished() -> None:
    cell = Cell("1x4", slow_stops=True)
    cell.submit(0, *four_trials())
    for name, loss in zip("abcd", (3.0, 1.0, 4.0, 2.0), strict=True):
        cell.tell(JobProgressed(25, name, 1, 25.0, loss))
    cell.at(25)
    cell.at(26, JobFinished(26, "a", 1))
    assert cell.state("a") is State.FINISHED
    assert explain(cell.engine.status(), "a").code == "None"
    assert cell.state("c") is State.CANCELLING
    assert explain(cell.engine.status(), "c").code == "GivenUp"


def test_recovery_asks_no_app_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    journal: list[str] = []

    def note(engine: Engine, what: Event | Decided) -> None:
        journal.append(json.dumps(encode(what)))

    live = Script(four_trials(), "1x2", "las", {"quantum": "10"}, look=note).engine
    assert len(live.apps.given_up) == 3

    def refuse(*_: object) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(Halving, "give_up", refuse)
    monkeypatch.setattr(Halving, "turns", refuse)
    again = Cell("1x2", "las", {"quantum": "10"}).engine
    for line in journal:
        again.apply(decode(json.loads(line)))
    assert repr(again.contents()) == repr(live.contents())


def test_a_record_from_before_there_were_apps_can_be_read() -> None:
    record = encode(Decided(3.0, True))
    del record["given_up"], record["turns"]
    assert encode(decode(record)) == encode(Decided(3.0, True))
    assert decode({"v": 1, "kind": "JobProgressed", "at_s": 1, "job": "a", "attempt": 1, "work_done": 2}) == (
        JobProgressed(1.0, "a", 1, 2.0)
    )
