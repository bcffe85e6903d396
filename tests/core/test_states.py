"""The table of legal moves."""

from __future__ import annotations

import pytest

from horae.core.states import ALIVE, ENDED, MOVES, Move, State, after

ALL = [(state, move) for state in State for move in Move]


@pytest.mark.parametrize("state", ENDED)
def test_a_job_never_leaves_an_end(state: State) -> None:
    assert [move for move in Move if after(state, move) is not None] == []


@pytest.mark.parametrize("state", ALIVE)
@pytest.mark.parametrize("move", [Move.STOPPED, Move.FINISH, Move.FAIL, Move.RETRY])
def test_whatever_becomes_of_an_attempt_its_state_can_take_it(state: State, move: Move) -> None:
    assert after(state, move) not in (None, *ALIVE), "the attempt is gone, so the job is not alive"


def test_only_a_launch_leads_to_gpus_in_use() -> None:
    entries = {(state, move) for (state, move), to in MOVES.items() if state not in ALIVE and to in ALIVE}
    assert entries == {(State.WAITING, Move.LAUNCH), (State.PLACED, Move.LAUNCH)}


def test_every_state_but_the_first_can_be_reached_and_every_job_can_end() -> None:
    reached, ends = {State.WAITING}, set(ENDED)
    for _ in State:
        reached |= {to for (state, _), to in MOVES.items() if state in reached}
        ends |= {state for (state, _), to in MOVES.items() if to in ends}
    assert reached == set(State)
    assert ends == set(State)


def test_what_is_not_in_the_table_is_no_move() -> None:
    assert [pair for pair in ALL if (after(*pair) is None) != (pair not in MOVES)] == []


def test_nobody_but_the_user_takes_a_job_out_of_hold() -> None:
    assert {move for (state, move) in MOVES if state is State.HELD} == {Move.RELEASE, Move.CANCEL}
