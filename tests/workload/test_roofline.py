"""The roofline: by hand on small models, and against speeds that were measured."""

import math
from pathlib import Path
from statistics import median

import hypothesis.strategies as st
import pytest
from hypothesis import given

from horae.core.cluster import Span
from horae.core.errors import UserError
from horae.core.job import JobSpec
from horae.core.throughputs import Origin, Setting, Throughputs
from horae.workload.catalogue import MODELS, Model, batch_size, gpu_type, gpu_types, model
from horae.workload.networks.layers import Layer
from horae.workload.roofline import (
    CALL_S,
    FP32_SHARE,
    LINK_SHARE,
    MEMORY_SHARE,
    TENSOR_SHARE,
    Precision,
    estimate,
    estimate_unmeasured,
)
from horae.workload.speed_files import load_throughputs

#: Steps/s on one H200 with PyTorch 2.11: SGD with momentum, data on the GPU, no TF32, nothing compiled or fused.
MEASURED_ON_H200 = {
    ("resnet-50", 16): (44.6, 36.0),
    ("resnet-50", 64): (14.7, 34.8),
    ("resnet-50", 256): (4.16, 9.58),
    ("resnet-18", 16): (88.5, 101),
    ("resnet-18", 128): (22.8, 43.3),
    ("vgg-16", 16): (28.0, 98.1),
    ("vgg-16", 64): (10.2, 33.7),
    ("alexnet", 64): (150, 202),
    ("alexnet", 512): (23.9, 61.8),
    ("inception-v3", 16): (24.1, 23.0),
    ("inception-v3", 64): (9.28, 18.5),
    ("vit-b-16", 16): (19.6, 28.8),
    ("vit-b-16", 128): (2.98, 17.2),
    ("bert-base", 16): (28.9, 23.4),
    ("bert-base", 128): (5.11, 22.2),
    ("gpt-2", 2): (19.3, 27.4),
    ("gpt-2", 16): (2.97, 9.50),
    ("transformer-base", 16): (24.0, 18.1),
    ("transformer-base", 256): (11.4, 20.1),
    ("lstm-lm", 5): (190, 144),
    ("lstm-lm", 80): (173, 152),
}


def tiny(*layers: Layer, parameters: int = 1000) -> Model:
    return Model("tiny", "Tiny", "a number", "nowhere", {"weight": (parameters,)}, layers)


def factors(pairs: list[tuple[float, float]]) -> list[float]:
    """By how much each estimate is off, either way: 2 is twice or half."""
    return [math.exp(abs(math.log(estimated / measured))) for estimated, measured in pairs]


# By hand


def test_a_layer_is_bound_by_arithmetic_or_by_memory() -> None:
    gpu = gpu_type("v100")
    busy, wide = Layer(flops=10**9, moved=10), Layer(flops=10, moved=10**7)
    found = estimate(tiny(busy, wide), gpu, batch=8, precision=Precision.FP32)
    update_s = 8 * 4 * 1000 / (MEMORY_SHARE * 900e9)
    assert found.compute_s == pytest.approx(3 * 8 * 1e9 / (FP32_SHARE * 15.7e12))
    assert found.memory_s == pytest.approx(3 * 8 * 1e7 * 4 / (MEMORY_SHARE * 900e9) + update_s)
    assert found.step_s == pytest.approx(found.compute_s + found.memory_s)
    assert found.steps_per_s == pytest.approx(1 / found.step_s)
    assert found.samples_per_s == pytest.approx(8 / found.step_s)
    assert found.bound == "compute"
    assert found.origin is Origin.ESTIMATED


def test_mixed_precision_uses_the_matrix_units_and_half_the_bytes() -> None:
    gpu = gpu_type("v100")
    found = estimate(tiny(Layer(10**9, 10), Layer(10, 10**7), parameters=1), gpu, batch=8, precision=Precision.MIXED)
    assert found.compute_s == pytest.approx(3 * 8 * 1e9 / (TENSOR_SHARE * 125e12))
    assert found.memory_s == pytest.approx(3 * 8 * 1e7 * 2 / (MEMORY_SHARE * 900e9), rel=1e-6)


def test_a_small_step_is_bound_by_its_calls() -> None:
    found = estimate(tiny(Layer(1, 1, calls=7), Layer(1, 1)), gpu_type("h100"))
    assert found.step_s == pytest.approx(3 * 8 * CALL_S)
    assert found.bound == "calls"


def test_gpus_exchange_their_gradients_in_a_ring() -> None:
    model = tiny(Layer(1, 1), parameters=10**9)
    alone, four = estimate(model, gpu_type("v100")), estimate(model, gpu_type("v100"), gpus=4)
    assert alone.exchange_s == 0
    assert four.exchange_s == pytest.approx(2 * 3 / 4 * 4e9 / (LINK_SHARE * 150e9))
    assert four.steps_per_s == pytest.approx(4 / (alone.step_s + four.exchange_s))


def test_a_model_whose_weights_do_not_fit_does_not_run() -> None:
    assert estimate(model("gpt-2-xl"), gpu_type("k80"), 1).steps_per_s == 0
    assert estimate(model("gpt-2-xl"), gpu_type("h200"), 1).steps_per_s > 0


def test_a_question_without_an_answer() -> None:
    with pytest.raises(UserError, match="no matrix units for mixed precision; take fp32"):
        estimate(model("vgg-16"), gpu_type("p100"), precision=Precision.MIXED)
    with pytest.raises(UserError, match="at least 1 of each"):
        estimate(model("vgg-16"), gpu_type("p100"), batch=0)


@given(
    st.sampled_from(MODELS),
    st.sampled_from(list(gpu_types())),
    st.integers(1, 512),
    st.integers(1, 64),
    st.integers(1, 16),
)
def test_larger_batches_take_longer_and_waste_less(name: str, gpu: str, batch: int, more: int, gpus: int) -> None:
    small = estimate(model(name), gpu_type(gpu), batch, gpus)
    large = estimate(model(name), gpu_type(gpu), batch + more, gpus)
    assert large.step_s >= small.step_s
    assert large.samples_per_s >= small.samples_per_s * (1 - 1e-9)
    assert large.memory_gb > small.memory_gb


@given(st.sampled_from(MODELS), st.integers(1, 512), st.sampled_from(list(Precision)))
def test_a_gpu_that_is_better_at_everything_is_not_slower(name: str, batch: int, precision: Precision) -> None:
    speeds = [
        estimate(model(name), gpu_type(gpu), batch, 2, precision).step_s
        for gpu in ("b200", "h200", "h100", "a100-80", "v100")
    ]
    if precision is Precision.FP32:
        assert speeds == sorted(speeds)
    assert speeds[0] <= speeds[1] <= speeds[2]


# Against what was measured


@pytest.mark.parametrize(("precision", "column"), [(Precision.FP32, 0), (Precision.MIXED, 1)])
def test_the_roofline_is_near_what_an_h200_does(precision: Precision, column: int) -> None:
    pairs = [
        (estimate(model(name), gpu_type("h200"), batch, precision=precision).steps_per_s, measured[column])
        for (name, batch), measured in MEASURED_ON_H200.items()
    ]
    assert median(factors(pairs)) < 1.35
    assert max(factors(pairs)) < 2.5


@pytest.mark.parametrize(("gpu", "typical", "worst"), [("v100", 1.4, 3.1), ("p100", 1.3, 2.5), ("k80", 2.0, 7.5)])
def test_the_roofline_is_near_the_published_speeds(shared_data: Path, gpu: str, typical: float, worst: float) -> None:
    """One GPU, fp32. The published ResNet-18 saw the small pictures of CIFAR-10."""
    table = load_throughputs(shared_data / "gavel" / "simulation_throughputs.json")
    pairs = []
    for setting, known in table.settings():
        alone = setting.gpu_type == gpu and setting.gpus == 1 and not setting.neighbour
        if alone and setting.job_class.startswith(("ResNet", "Transformer", "LM", "CycleGAN")):
            name = setting.job_class.split(" (")[0].replace("ResNet-18", "resnet-18-cifar")
            found = estimate(model(name), gpu_type(gpu), batch_size(setting.job_class) or 1, precision=Precision.FP32)
            pairs.append((found.steps_per_s, known.steps_per_s))
    assert len(pairs) == 20
    assert median(factors(pairs)) < typical
    assert max(factors(pairs)) < worst


# Where nothing was measured


def job(job_class: str, gpus: int = 1, **other: object) -> JobSpec:
    return JobSpec("job", 0.0, gpus, 100.0, "steps", job_class=job_class, **other)  # type: ignore[arg-type]


def test_holes_are_filled_and_marked() -> None:
    table = Throughputs()
    table.put(Setting("ResNet-50 (batch size 64)", "v100", 1, Span.GPU), 4.4, Origin.MEASURED)
    jobs = [job("ResNet-50 (batch size 64)"), job("ResNet-50 (batch size 64)", 4), job("nobody knows")]
    filled = estimate_unmeasured(table, jobs, ["v100", "H100", "toaster"])
    found = {setting: known for setting, known in filled.settings() if known.origin is Origin.ESTIMATED}
    assert set(found) == {
        Setting("ResNet-50 (batch size 64)", "H100", 1, Span.GPU),
        Setting("ResNet-50 (batch size 64)", "v100", 4, Span.NODE),
        Setting("ResNet-50 (batch size 64)", "H100", 4, Span.NODE),
    }
    wanted = estimate(model("resnet-50"), gpu_type("h100"), 64, 4).steps_per_s
    assert found[Setting("ResNet-50 (batch size 64)", "H100", 4, Span.NODE)].steps_per_s == wanted
    assert filled.get(Setting("ResNet-50 (batch size 64)", "v100", 1, Span.GPU)).steps_per_s == 4.4  # type: ignore[union-attr]
    assert len(table) == 1, "the table that came in stays as it was"


def test_jobs_that_need_no_estimate_get_none() -> None:
    jobs = [
        JobSpec("seconds", 0.0, 1, 100.0, job_class="ResNet-50"),
        job("ResNet-50", throughput={"v100": 3.0}),
    ]
    assert len(estimate_unmeasured(Throughputs(), jobs, ["v100"])) == 0
