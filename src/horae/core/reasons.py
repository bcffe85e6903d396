"""Why a job waits: one stable code for each reason, and the sentence behind it."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Reason codes. They are stored in journals and shown to users, so a number is never reused."""

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
    LEASED = 23
    AWAITING_BIDS = 24
    BEHIND_QUEUE = 25
    KEPT_FOR_OTHERS = 26
    LACKS_CPUS_OR_MEMORY = 27

    @property
    def code(self) -> str:
        """The name shown to users, such as `OverQuota`."""
        return "".join(part.capitalize() for part in self.name.split("_"))


#: The order by which other jobs go first, for reasons that are such an order.
RULES: dict[Reason, str] = {
    Reason.BEHIND_EARLIER: "Jobs that came earlier go first",
    Reason.BEHIND_SMALLER: "Jobs that need fewer GPUs go first",
    Reason.BEHIND_SHORTER: "Jobs with less work left go first",
    Reason.BEHIND_LESS_SERVED: "Jobs that have had less GPU time go first",
    Reason.BEHIND_QUEUE: "Jobs in earlier queues, by the GPU time they have had, go first, then those ahead in its own",
    Reason.BEHIND_TURN: "Other jobs have their turn",
    Reason.BEHIND_SHARE: "Jobs of those who are farther behind their share go first",
    Reason.BEHIND_BETTER: "Jobs whose loss falls faster go first",
}

#: The sentence for a job that no decision has looked at, since the cluster has not had a node yet.
NO_NODE_YET = (
    "No node of the cluster was seen yet, so that nothing is decided: it starts when the cluster shows nodes with "
    "GPUs; `horae nodes` lists them."
)

#: The sentence for each reason, its numbers and the next step. `core/explain.py` fills in the numbers; one with a noun
#: behind its colon is counted: `{gpus:GPU}` is "1 GPU" or "8 GPUs".
SENTENCES: dict[Reason, str] = {
    Reason.NONE: "The job is not waiting: it {doing}; `horae events {job}` tells what befell it.",
    Reason.NOT_YET_CONSIDERED: "No decision has looked at it since it came, was released or failed; the next one "
    "will: ask again in a moment.",
    Reason.HELD: "The job is held; `horae release {job}` lets it run.",
    Reason.NO_FREE_GPUS: "It needs {gpus:GPU} of one type, and of a type it accepts {free_are}; {holders_have} the "
    "other {taken:GPU}: it starts when enough of them are free again, or sooner {smaller}on another type{passing}.",
    Reason.FRAGMENTED: "{free:GPU} are free, but not close enough together for its {gpus} (at most {most} on one "
    "node); another placement rule, or a smaller gang, would start sooner{passing}.",
    Reason.LACKS_CPUS_OR_MEMORY: "It waits for CPUs or memory on nodes with free GPUs ({free} of a type it accepts): "
    "it takes {room_asked} with each of its {gpus:GPU}, and one of these nodes has at most {room_left} left; it starts "
    "when jobs there end, or sooner with less for each GPU{passing}.",
    Reason.OVER_QUOTA: "{full_whose} {full_used} of at most {full_max:GPU} and the job needs {gpus}; wait for "
    "{full_wait}.",
    Reason.RESERVED_FOR_LARGER: "Job {head} has waited longest and has a reservation: until it starts nobody is "
    "preempted, and free GPUs ({free} of a type this one accepts) go only to jobs that end before it could; one with "
    "less to do could still slip in.",
    Reason.BACKING_OFF: "{failed}; it is tried again in {retry_in_s:.0f} s; `horae events {job}` says what went wrong.",
    Reason.VACATING: "{chosen_are} chosen for it{vacating}: nothing is to be done.",
    Reason.CLUSTER_TOO_SMALL: "It needs {gpus:GPU} of one type it accepts and the cluster now has {capacity}; "
    "return a node or ask for fewer.",
    Reason.BEHIND_EARLIER: "{rule}: {ahead_wait} before it, and {holders_have} the {taken:GPU} it could use; it moves "
    "up as they end, and a policy with backfill would let it pass if it fits.",
    Reason.BEHIND_SMALLER: "{rule}: it needs {gpus}, and {holders_have} the {taken:GPU} it could use, {mean} "
    "each on average; with fewer GPUs it would start sooner.",
    Reason.BEHIND_SHORTER: "{rule}: {holders_have} the {taken:GPU} it could use{compared}; cut into shorter "
    "jobs it would start sooner.",
    Reason.BEHIND_LESS_SERVED: "{rule}: {holders_have} the {taken:GPU} it could use{compared}; it goes on when "
    "they have had as much or end{again}.",
    Reason.BEHIND_QUEUE: "{rule}: {holders_have} the {taken:GPU} it could use{compared}; it goes on when they end or "
    "come to a later queue{again}.",
    Reason.BEHIND_TURN: "{rule}: {holders_have} the {taken:GPU} it could use; its own comes when their time "
    "slice ends{again}, after {ahead:job} that waited longer: nothing is to be done.",
    Reason.BEHIND_SHARE: "{rule}: {holders_have} the {taken:GPU} it could use; shares are compared anew as "
    "time goes by{again}; `horae share` shows what each queue has and is entitled to.",
    Reason.BEHIND_BETTER: "{rule}: {holders_have} the {taken:GPU} it could use; {its_loss}; it goes on when "
    "theirs fall more slowly or they end{again}.",
    Reason.LEASED: "{holders_have} the {taken:GPU} it could use, and a lease, a minimum run time, loading or the "
    "policy's setting `stay` keeps some of these where they are, whoever goes first{kept}{next_look}: nothing is to be "
    "done.",
    Reason.KEPT_FOR_OTHERS: "GPUs that are free ({free} of a type it accepts), or what is left of its queue's maximum, "
    "are kept for jobs that go before it and wait until others, which only just loaded, have worked as long{kept}"
    "{next_look}: nothing is to be done.",
    Reason.AWAITING_BIDS: "{offered:GPU} of a type it accepts can be had by auction, which waits for the bids of the "
    "agents of {bidders:app}, {answer_in_s:.1f} s at most: ask again then.",
    Reason.AT_RUNG: "It has reached a rung of its app, which compares its trials there, with {others:trial} yet to "
    "come; `horae queue --app {app}` shows them, and one that is held or waits keeps all others waiting.",
    Reason.GIVEN_UP: "Its app gave it up {given_up}; to run it to its end all the same, submit it again without the "
    "app.",
}

#: Other sentences for a job that asks for a number of nodes.
NODE_SENTENCES: dict[Reason, str] = {
    Reason.NO_FREE_GPUS: "It needs {nodes:node} of one type with {each:GPU} free on each, and {fitting_have} so many; "
    "{holders_have} the {taken:GPU} in use: it starts when enough of them are free again, or sooner with fewer GPUs on "
    "more nodes, or without a number of nodes{passing}.",
    Reason.FRAGMENTED: "It needs {nodes:node} of one type with {each:GPU} free on each, and {fitting_have} so many, "
    "though {free:GPU} are free; with fewer GPUs on more nodes, or without a number of nodes, it would start sooner"
    "{passing}.",
    Reason.CLUSTER_TOO_SMALL: "It needs {nodes:node} of one type with {each:GPU} each, and the cluster now has "
    "{able_nodes} that can hold so many; return a node, or ask for another number of nodes.",
}

#: Reasons of a job that waits for GPUs. One that asks for a number of nodes is told how many there are.
WAITS_FOR_GPUS = (*RULES, Reason.LEASED, Reason.KEPT_FOR_OTHERS, Reason.RESERVED_FOR_LARGER)
