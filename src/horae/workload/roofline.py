"""How fast a model should train on a GPU that nobody measured it on: a roofline, layer by layer.

Each layer takes as long as its arithmetic or its traffic to memory, whichever is longer, at a
stated share of the GPU's peaks; a step takes as long as all layers, or as the host needs to
start them, whichever is longer, and then the GPUs exchange their gradients. It is an estimate,
and marked as one: `docs/reference/catalogue.md` tells how far off it was where speeds are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.workload.catalogue import (
    PARAMETER_BYTES,
    PASSES,
    STATE_BYTES,
    GpuType,
    Model,
    batch_size,
    find_gpu_type,
    find_model,
)

#: Batch of a job class that names none.
DEFAULT_BATCH = 32

#: Shares of the peaks that training reaches, and what a call costs the host: those that fit 42 speeds measured on an
#: H200 and the published ones of V100 and P100 best, rounded. A link carries half of what it could.
FP32_SHARE = 0.55
TENSOR_SHARE = 0.25
MEMORY_SHARE = 0.45
LINK_SHARE = 0.5
CALL_S = 50e-6

#: Of the numbers that a forward pass moves, the share that is kept for the backward pass.
KEPT_SHARE = 1 / 3


class BadEstimate(UserError):
    """A question that the roofline has no answer to."""


class Precision(StrEnum):
    """What a model computes with: 32 bits everywhere, or 16 bits on the matrix units and 32 for the weights."""

    FP32 = "fp32"
    MIXED = "mixed"

    @property
    def number_bytes(self) -> int:
        """Bytes of a number that layers pass on."""
        return 4 if self is Precision.FP32 else 2


@dataclass(frozen=True)
class SpeedEstimate:
    """How long a step should take, by what it is made of.

    A step is one batch on one GPU; a job on several GPUs makes as many at once, which is how
    published tables count.
    """

    origin: ClassVar = Origin.ESTIMATED
    model: Model
    gpu: GpuType
    batch: int
    gpus: int
    precision: Precision
    #: Layers bound by arithmetic, layers bound by memory and the update, starting it all, exchanging gradients.
    compute_s: float
    memory_s: float
    calls_s: float
    exchange_s: float
    #: What the GPU must hold, and what it must hold even of the smallest batch.
    memory_gb: float
    state_gb: float

    @property
    def step_s(self) -> float:
        """Seconds that a step takes."""
        return max(self.compute_s + self.memory_s, self.calls_s) + self.exchange_s

    @property
    def steps_per_s(self) -> float:
        """Steps of the whole job in a second; 0 if not even the weights fit."""
        return self.gpus / self.step_s if self.state_gb <= self.gpu.memory_gb else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples of the whole job in a second."""
        return self.batch * self.steps_per_s

    @property
    def bound(self) -> str:
        """What takes most of a step: compute, memory, calls or exchange."""
        inside = {"compute": self.compute_s, "memory": self.memory_s}
        if self.calls_s > sum(inside.values()):
            inside = {"calls": self.calls_s}
        parts = {**inside, "exchange": self.exchange_s}
        return max(parts, key=lambda name: parts[name])


def estimate(
    model: Model, gpu: GpuType, batch: int = DEFAULT_BATCH, gpus: int = 1, precision: Precision | None = None
) -> SpeedEstimate:
    """Estimate a training step on GPUs of one node; without a precision, mixed where the GPU has matrix units."""
    if batch < 1 or gpus < 1:
        raise BadEstimate(f"{batch} samples on {gpus} GPUs are nothing to train; give at least 1 of each.")
    precision = precision or (Precision.MIXED if gpu.tensor_tflops else Precision.FP32)
    compute_s, memory_s = _layers_s(model, gpu, batch, precision)
    state_gb = STATE_BYTES * model.parameters / 1e9
    kept = KEPT_SHARE * sum(layer.moved for layer in model.layers) * batch
    return SpeedEstimate(
        model=model,
        gpu=gpu,
        batch=batch,
        gpus=gpus,
        precision=precision,
        compute_s=compute_s,
        memory_s=memory_s,
        calls_s=PASSES * CALL_S * sum(layer.calls for layer in model.layers),
        exchange_s=_exchange_s(model, gpu, gpus),
        memory_gb=state_gb + kept * precision.number_bytes / 1e9,
        state_gb=state_gb,
    )


def _layers_s(model: Model, gpu: GpuType, batch: int, precision: Precision) -> tuple[float, float]:
    """Seconds of the layers that arithmetic bounds, and of those that memory bounds, with the update."""
    tflops, share = compute_peak(gpu, precision)
    flops_per_s, bytes_per_s = 1e12 * share * tflops, 1e9 * MEMORY_SHARE * gpu.bandwidth_gb_s
    compute_s, memory_s = 0.0, model.update_bytes / bytes_per_s
    for layer in model.layers:
        arithmetic_s = PASSES * layer.flops * batch / flops_per_s
        traffic_s = PASSES * layer.moved * batch * precision.number_bytes / bytes_per_s
        if arithmetic_s > traffic_s:
            compute_s += arithmetic_s
        else:
            memory_s += traffic_s
    return compute_s, memory_s


def compute_peak(gpu: GpuType, precision: Precision) -> tuple[float, float]:
    """TFLOP/s by the data sheet, and the share of them that training reaches."""
    if precision is Precision.FP32:
        return gpu.fp32_tflops, FP32_SHARE
    if gpu.tensor_tflops is None:
        raise BadEstimate(f"The {gpu.title} has no matrix units for mixed precision; take fp32.")
    return gpu.tensor_tflops, TENSOR_SHARE


def _exchange_s(model: Model, gpu: GpuType, gpus: int) -> float:
    """Seconds of a ring in which every GPU sends and receives nearly all gradients twice."""
    sent = 2 * (gpus - 1) / gpus * PARAMETER_BYTES * model.parameters
    return sent / (1e9 * LINK_SHARE * gpu.link_gb_s)


def estimate_unmeasured(table: Throughputs, jobs: Iterable[JobSpec], gpu_types: Iterable[str]) -> Throughputs:
    """The same table, and an estimate where a job's speed is not in it.

    This goes for jobs that count steps, bring no speeds of their own and are of a class that
    the catalogue knows, on GPU types that it knows. What stands in the table stays. A class that
    other jobs count in seconds is left out: a table would tell how many steps those seconds are.
    """
    filled, types, jobs = table.copy(), tuple(gpu_types), tuple(jobs)
    in_seconds = {job.job_class for job in jobs if job.unit == "seconds"}
    wanted = {(job.job_class, job.gpus): None for job in jobs if job.unit == "steps" and not job.throughput}
    for job_class, gpus in wanted:
        if job_class in in_seconds:
            continue
        model = find_model(job_class)
        for name in types if model else ():
            gpu = find_gpu_type(name)
            setting = Setting(job_class, name, gpus, Span.GPU if gpus == 1 else Span.NODE)
            if model and gpu and filled.get(setting) is None:
                found = estimate(model, gpu, batch_size(job_class) or DEFAULT_BATCH, gpus)
                filled.put(setting, found.steps_per_s, Origin.ESTIMATED)
    return filled


def with_estimates(
    measured: Throughputs | None, jobs: Sequence[JobSpec], gpu_types: Iterable[str]
) -> Throughputs | None:
    """A table with estimates from the catalogue for job classes that it does not know at all; as it is without any."""
    table = measured or Throughputs()
    filled = estimate_unmeasured(table, [job for job in jobs if not table.knows(job.job_class)], gpu_types)
    return measured if len(filled) == len(table) else filled
