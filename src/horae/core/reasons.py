"""Why a job waits: one stable code for each reason, and the sentence behind it."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Stable codes: they are journalled and shown everywhere, so numbers are never reused."""

    NONE = 0
    NOT_YET_CONSIDERED = 1
    HELD = 2
    NO_FREE_GPUS = 3
    FRAGMENTED = 4
    OVER_QUOTA = 5
    RESERVED_FOR_LARGER = 6
    BACKING_OFF = 7
    VACATING = 8
    CLUSTER_TOO_SMALL = 9
    BEHIND_EARLIER = 10
    BEHIND_SMALLER = 11
    BEHIND_SHORTER = 12
    BEHIND_LESS_SERVED = 13
    BEHIND_TURN = 14
    BEHIND_SHARE = 15
    GIVEN_UP = 20
    BEHIND_BETTER = 21
    AT_RUNG = 22

    @property
    def code(self) -> str:
        """The name shown to users, such as `OverQuota`."""
        return "".join(part.capitalize() for part in self.name.split("_"))


#: The sentence and the next step for each reason.
SENTENCES: dict[Reason, str] = {
    Reason.NONE: "The job is not waiting.",
    Reason.NOT_YET_CONSIDERED: "No decision has been made since the job came; the next one will look at it.",
    Reason.HELD: "The job is held; release it to let it run.",
    Reason.NO_FREE_GPUS: "It needs {gpus} GPUs of one type and {free} of a type it accepts are free; it starts when "
    "enough running jobs end.",
    Reason.FRAGMENTED: "{free} GPUs are free, but not close enough together for its {gpus} (at most {most} on one "
    "node); another placement rule, or a smaller gang, would start sooner.",
    Reason.OVER_QUOTA: "Queue {queue} or one above it is at its maximum of GPUs; raise the quota or wait for its jobs.",
    Reason.RESERVED_FOR_LARGER: "Free GPUs are set aside for job {head}, which waited longer; a job that ends sooner "
    "could still slip in.",
    Reason.BACKING_OFF: "Its last launch failed; it is tried again in {retry_in_s:.0f} s; the job's log says what "
    "went wrong.",
    Reason.VACATING: "Its GPUs are chosen and being vacated; it starts when the last of them is free.",
    Reason.CLUSTER_TOO_SMALL: "It needs {gpus} GPUs of one type it accepts and the cluster now has {capacity}; "
    "return a node or ask for fewer.",
    Reason.BEHIND_EARLIER: "Jobs that came earlier go first.",
    Reason.BEHIND_SMALLER: "Jobs that need fewer GPUs go first.",
    Reason.BEHIND_SHORTER: "Jobs with less work left go first.",
    Reason.BEHIND_LESS_SERVED: "Jobs that have had less GPU time go first.",
    Reason.BEHIND_TURN: "Other jobs have their turn; its own comes when their time slice ends.",
    Reason.BEHIND_SHARE: "Other jobs are farther behind their share.",
    Reason.BEHIND_BETTER: "Jobs whose loss falls faster go first.",
    Reason.AT_RUNG: "It has reached a rung of its app, which waits for its other trials to get there.",
    Reason.GIVEN_UP: "Its app gave it up {given_up}.",
}
