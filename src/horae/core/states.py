"""States of a job, and the table of legal moves between them. Stored: numbers are never reused."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a job is in its life."""

    HELD = 0
    WAITING = 1
    #: GPUs are set aside for the job, but the last of them is not free yet.
    PLACED = 2
    LAUNCHING = 3
    RUNNING = 4
    #: Being stopped, to run again later. The job's GPUs are not free yet; nor in the next two states.
    STOPPING = 5
    #: Being stopped, to be held.
    HOLDING = 6
    #: Being stopped, for good.
    CANCELLING = 7
    FINISHED = 8
    FAILED = 9
    CANCELLED = 10
    #: Being stopped, since it has reached its time limit.
    TIMING_OUT = 11
    #: Ended by its time limit.
    TIMEOUT = 12


class Move(IntEnum):
    """What changes the state of a job."""

    HOLD = 0
    RELEASE = 1
    CANCEL = 2
    PLACE = 3
    WITHDRAW = 4
    LAUNCH = 5
    START = 6
    STOP = 7
    STOPPED = 8
    RETRY = 9
    FINISH = 10
    FAIL = 11
    TIME_OUT = 12


# Module-level names: an attribute look-up in an enum class is slow, and hot code does it a million times.
#: State by number.
STATES: tuple[State, ...] = tuple(State)
HELD, WAITING, PLACED, LAUNCHING, RUNNING, STOPPING, HOLDING, CANCELLING = STATES[:8]
FINISHED, FAILED, CANCELLED, TIMING_OUT, TIMEOUT = STATES[8:]

_S, _M = State, Move

#: All legal moves: (state, move) to the next state.
MOVES: dict[tuple[State, Move], State] = {
    (_S.WAITING, _M.HOLD): _S.HELD,
    (_S.WAITING, _M.CANCEL): _S.CANCELLED,
    (_S.WAITING, _M.PLACE): _S.PLACED,
    (_S.WAITING, _M.LAUNCH): _S.LAUNCHING,
    (_S.HELD, _M.RELEASE): _S.WAITING,
    (_S.HELD, _M.CANCEL): _S.CANCELLED,
    (_S.PLACED, _M.WITHDRAW): _S.WAITING,
    (_S.PLACED, _M.LAUNCH): _S.LAUNCHING,
    (_S.PLACED, _M.HOLD): _S.HELD,
    (_S.PLACED, _M.CANCEL): _S.CANCELLED,
    (_S.LAUNCHING, _M.START): _S.RUNNING,
    (_S.LAUNCHING, _M.FINISH): _S.FINISHED,
    **{
        move: to
        for alive in (_S.LAUNCHING, _S.RUNNING)
        for move, to in {
            (alive, _M.STOP): _S.STOPPING,
            (alive, _M.HOLD): _S.HOLDING,
            (alive, _M.CANCEL): _S.CANCELLING,
            (alive, _M.TIME_OUT): _S.TIMING_OUT,
            (alive, _M.RETRY): _S.WAITING,
            (alive, _M.FAIL): _S.FAILED,
        }.items()
    },
    (_S.RUNNING, _M.FINISH): _S.FINISHED,
    (_S.RUNNING, _M.STOPPED): _S.WAITING,
    (_S.LAUNCHING, _M.STOPPED): _S.WAITING,
    (_S.STOPPING, _M.STOPPED): _S.WAITING,
    (_S.STOPPING, _M.HOLD): _S.HOLDING,
    (_S.STOPPING, _M.CANCEL): _S.CANCELLING,
    (_S.HOLDING, _M.STOPPED): _S.HELD,
    (_S.HOLDING, _M.RELEASE): _S.STOPPING,
    (_S.HOLDING, _M.CANCEL): _S.CANCELLING,
    (_S.CANCELLING, _M.STOPPED): _S.CANCELLED,
    **{(ending, _M.FINISH): _S.FINISHED for ending in (_S.STOPPING, _S.HOLDING, _S.CANCELLING, _S.TIMING_OUT)},
    (_S.STOPPING, _M.RETRY): _S.WAITING,
    (_S.HOLDING, _M.RETRY): _S.HELD,
    (_S.STOPPING, _M.FAIL): _S.FAILED,
    (_S.HOLDING, _M.FAIL): _S.FAILED,
    (_S.CANCELLING, _M.RETRY): _S.CANCELLED,
    (_S.CANCELLING, _M.FAIL): _S.CANCELLED,
    **{(_S.TIMING_OUT, gone): _S.TIMEOUT for gone in (_M.STOPPED, _M.RETRY, _M.FAIL)},
}

#: States in which a job's processes may exist and its GPUs are taken.
ALIVE = (State.LAUNCHING, State.RUNNING, State.STOPPING, State.HOLDING, State.CANCELLING, State.TIMING_OUT)
#: States that a job never leaves.
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED, State.TIMEOUT)
#: States of jobs that are being stopped for good.
ENDING = (State.CANCELLING, State.TIMING_OUT)


#: `MOVES` by number, which is faster to look up.
_NEXT = tuple(tuple(MOVES.get((state, move)) for move in Move) for state in State)


def after(state: State, move: Move) -> State | None:
    """State after a move, or None if the move is not legal in this state."""
    return _NEXT[state][move]
