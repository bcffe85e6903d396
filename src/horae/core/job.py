"""A job as submitted: the schedulable half of what a user asks for. Stored: change by addition."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from horae.core.app_schedulers import BadAppScheduler, make_app_scheduler
from horae.core.errors import UserError
from horae.core.loss_curve import LossCurve

#: Slow-down of a job by the widest span of its GPUs: one GPU, one node, one rack, the cluster.
NO_SLOWDOWN = (1.0, 1.0, 1.0, 1.0)

#: Skew above which `tiresias` consolidates: between ResNet-50 (.09) or BERT (.21) and AlexNet (.62) or VGG (.72).
PACK_LIMIT = 0.3

#: Queue of a job that names none.
DEFAULT_QUEUE = "default"


#: Longest time, in seconds: beyond it, sums of times would lose whole seconds to rounding.
MAX_SECONDS = 1e12
MAX_STEPS = 1e15
#: Most CPUs, and most MiB of memory, that a job may ask for with each GPU.
MAX_ROOM_PER_GPU = 1 << 30
#: Most reports of the loss of one job.
MAX_REPORTS = 1000


class BadJob(UserError):
    """A job that no cluster could ever run."""


#: Fields of a job that hold seconds, or None.
_DURATIONS = (
    "checkpoint_s",
    "restore_s",
    "start_s",
    "finish_s",
    "notice_s",
    "checkpoint_every_s",
    "min_runtime_s",
    "deadline_s",
)

#: In place of a GPU type in `JobSpec.throughput`: every type that is not named, also one that joins the cluster later.
ANY_TYPE = "*"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One training job: a gang of GPUs and an amount of work.

    `work` is counted in `unit`. Seconds are seconds on `gpus` GPUs at speed 1;
    steps need a throughput, from the job itself (`throughput`, steps/s by GPU
    type on `gpus` GPUs) or from a throughput table by `job_class`.

    A job is rigid unless `gpus_min` or `gpus_max` differ from `gpus`; 0 takes
    the value of `gpus`. For a GPU count without a measured throughput, the
    speed of an elastic job is proportional to the GPU count.

    With `nodes`, the job runs on exactly that many nodes, with the same number
    of GPUs on each; 0 leaves the number of nodes to the placement rule.

    With each GPU the job takes `cpus_per_gpu` CPUs and `memory_mb_per_gpu` MiB
    of its node; 0 takes the GPU's share of what the node has.
    """

    id: str
    submit_s: float
    gpus: int
    work: float
    unit: Literal["seconds", "steps"] = "seconds"
    gpus_min: int = 0
    gpus_max: int = 0
    nodes: int = 0
    cpus_per_gpu: int = 0
    memory_mb_per_gpu: int = 0
    job_class: str = ""
    #: GPU types the job accepts; empty means any.
    gpu_types: tuple[str, ...] = ()
    throughput: Mapping[str, float] = field(default_factory=dict)
    slowdown: tuple[float, float, float, float] = NO_SLOWDOWN
    #: The largest tensor's share of the model, 0 to 1: how much the job suffers when it is spread; None if unknown.
    skew: float | None = None
    weight: float = 1.0
    #: Name of the app; empty means that the job is an app by itself.
    app: str = ""
    queue: str = DEFAULT_QUEUE
    #: The user whom the job counts for, in limits and in shares by user; empty for nobody.
    user: str = ""
    #: Whether no limit of users or of non-preemptible GPUs holds for the job: an admin submitted it.
    exempt: bool = False
    #: Seconds to save on preemption and to load on resumption; None takes the run's default.
    checkpoint_s: float | None = None
    restore_s: float | None = None
    #: Seconds from the first launch to the first work, such as loading data; None is 0.
    start_s: float | None = None
    #: Seconds from the last work to the end of the process, such as saving the result; None is 0.
    finish_s: float | None = None
    #: Seconds of `checkpoint_s` for which the job works on, before it hears of the stop request; None is 0.
    notice_s: float | None = None
    #: Seconds between the job's own checkpoints. A lost node costs the work since the last; with 0 it costs nothing.
    checkpoint_every_s: float = 0.0
    #: Whether the job goes on from its checkpoint after a stop; if not, it begins anew. Only the simulator reads it.
    resumable: bool = True
    min_runtime_s: float = 0.0
    #: Seconds after submission by which the job should be done; None means no deadline.
    deadline_s: float | None = None
    max_restarts: int = 0
    #: Exit codes after which the job is restarted; empty means all.
    retry_exit_codes: tuple[int, ...] = ()
    #: App scheduler, such as `halving:eta=3`, the same for all jobs of the app. Empty runs every trial to its end.
    app_scheduler: str = ""
    #: Work between two reports of the loss; 0 reports only at the rungs of the app scheduler.
    report_every: float = 0.0
    #: True loss by work done. Only the simulator reads it.
    loss: LossCurve | None = None

    def __post_init__(self) -> None:
        if self.gpus_min == 0:
            object.__setattr__(self, "gpus_min", self.gpus)
        if self.gpus_max == 0:
            object.__setattr__(self, "gpus_max", self.gpus)
        problem = self._problem()
        if problem:
            raise BadJob(f"Job {self.id!r}: {problem}.")

    @property
    def elastic(self) -> bool:
        """Whether the scheduler may choose the number of GPUs."""
        return self.gpus_min != self.gpus_max

    @property
    def keeps_gpus(self) -> bool:
        """Whether the job is never preempted."""
        return self.min_runtime_s >= MAX_SECONDS

    @property
    def gpus_per_node(self) -> int:
        """GPUs on each node of a job that asks for `nodes`; 0 for a job that does not."""
        return self.gpus // self.nodes if self.nodes else 0

    @property
    def app_id(self) -> str:
        """Name of the job's app: `app`, or the job's id where that is empty."""
        return self.app or self.id

    def _problem(self) -> str:
        """The first thing wrong with the job, or an empty string."""
        if not self.id:
            return "it has no id; give it one"
        if _has_control_characters(self.id):
            return "its id holds a control character; leave it out"
        if not 0 <= self.submit_s <= MAX_SECONDS:
            return f"submission time {self.submit_s} is not a number of seconds from 0 up to {MAX_SECONDS:g}"
        most = MAX_STEPS if self.unit == "steps" else MAX_SECONDS
        if not 0 < self.work <= most:
            return f"its work is {self.work} {self.unit}; it must be a finite number above 0 and at most {most:g}"
        if self.gpus < 1:
            return f"it asks for {self.gpus} GPUs; ask for at least 1"
        if not 1 <= self.gpus_min <= self.gpus <= self.gpus_max:
            return f"GPUs must satisfy 1 <= min <= gpus <= max, not {self.gpus_min}, {self.gpus}, {self.gpus_max}"
        if problem := problem_of_nodes(self.nodes, self.gpus, self.elastic):
            return problem
        for name in ("cpus_per_gpu", "memory_mb_per_gpu"):
            if not 0 <= getattr(self, name) <= MAX_ROOM_PER_GPU:
                return f"{name} is {getattr(self, name)}; it must be 0, for the GPU's share, up to {MAX_ROOM_PER_GPU}"
        if not (math.isfinite(self.weight) and self.weight > 0):
            return f"weight {self.weight} must be a finite number above 0"
        if self.unit not in ("seconds", "steps"):
            return f"its work is counted in {self.unit!r}; use seconds or steps"
        return self._problem_of_extras()

    def _problem_of_extras(self) -> str:
        """The first thing wrong with the optional settings."""
        if len(self.slowdown) != 4 or not all(math.isfinite(s) and s >= 1 for s in self.slowdown):
            return f"slow-downs {self.slowdown} must be four numbers of at least 1"
        if any(b < a for a, b in zip(self.slowdown, self.slowdown[1:], strict=False)):
            return f"slow-downs {self.slowdown} must not fall as the span widens"
        if any(not (math.isfinite(rate) and rate >= 0) for rate in self.throughput.values()):
            return "its throughputs must be finite steps/s of at least 0"
        if self.skew is not None and not 0 <= self.skew <= 1:
            return f"its skew is {self.skew}; it is the largest tensor's share of the model, from 0 to 1"
        for name in _DURATIONS:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_SECONDS:
                return f"{name} is {value}; it must be a finite number from 0 to {MAX_SECONDS:g}"
        if self.max_restarts < 0:
            return f"max_restarts is {self.max_restarts}; it must be at least 0"
        if not self.queue or any(not part for part in self.queue.split("/")):
            return f"queue {self.queue!r} is not a path such as org/team/user"
        return self._problem_of_trials()

    def _problem_of_trials(self) -> str:
        """The first thing wrong with the settings of trials: reports, app scheduler, loss."""
        if self.report_every and not self.work / MAX_REPORTS <= self.report_every < math.inf:
            return f"it reports every {self.report_every} {self.unit}; {MAX_REPORTS} reports of a job are the most"
        if self.app_scheduler:
            try:
                make_app_scheduler(self.app_scheduler)
            except BadAppScheduler as why:
                return str(why)
        return self.loss.problem if self.loss else ""


def problem_of_nodes(nodes: int, gpus: int, elastic: bool) -> str:
    """What is wrong with a number of nodes, 0 for none asked; or an empty string."""
    if not nodes:
        return ""
    if nodes < 0:
        return f"it asks for {nodes} nodes; ask for at least 1, or leave nodes out"
    if elastic:
        return f"with {nodes} nodes, alike, its GPU count is fixed; leave out nodes, or gpus_min and gpus_max"
    if gpus % nodes:
        low = gpus // nodes * nodes
        instead = f"{low} or {low + nodes}" if low else str(nodes)
        return (
            f"{gpus} GPUs cannot be divided equally among {nodes} nodes; ask for {instead} GPUs, or for another number "
            "of nodes"
        )
    return ""


def _has_control_characters(text: str) -> bool:
    """Whether a text holds control characters or lone surrogates, which harm terminals, files and programs."""
    return not text.isprintable() and any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
