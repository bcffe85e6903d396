"""The catalogue: names are found however people write them, and what it says of GPUs and models is true."""

import pytest

from horae.core.errors import UserError
from horae.workload.catalogue import MODELS, batch_size, find_gpu_type, find_model, gpu_type, gpu_types, model

#: The two digits that the skews of well-known models must come out with.
SKEWS = {
    "vgg-16": 0.74,
    "vgg-19": 0.72,
    "alexnet": 0.62,
    "resnet-50": 0.09,
    "inception-v3": 0.09,
    "bert-base": 0.21,
}


@pytest.mark.parametrize("name", SKEWS)
def test_the_skew_of_well_known_models(name: str) -> None:
    assert round(model(name).skew, 2) == SKEWS[name]


def test_the_largest_tensor_is_named() -> None:
    assert model("vgg-16").largest == "classifier.0.weight"
    assert model("gpt-2").largest == "wte.weight"


@pytest.mark.parametrize(
    ("job_class", "name"),
    [
        ("ResNet-50 (batch size 64)", "resnet-50"),
        ("resnet50", "resnet-50"),
        ("RESNET_152", "resnet-152"),
        ("vgg19", "vgg-19"),
        ("inception3", "inception-v3"),
        ("Inception v4", "inception-v4"),
        ("LM (batch size 5)", "lstm-lm"),
        ("Transformer (Batch Size 16)", "transformer-base"),
        ("Recommendation (batch size 8192)", "mult-dae"),
        ("A3C", "a3c"),
        ("gpt2", "gpt-2"),
        ("GPT-2 XL", "gpt-2-xl"),
        ("bert", "bert-base"),
    ],
)
def test_a_job_class_finds_its_model(job_class: str, name: str) -> None:
    found = find_model(job_class)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("job_class", ["", "deepspeech2", "resnet", "compute-bound", "()", "(batch size 64)"])
def test_a_class_that_nobody_knows_has_no_model(job_class: str) -> None:
    assert find_model(job_class) is None


def test_every_name_leads_to_its_own_model() -> None:
    for name in MODELS:
        assert model(name).name == name
        assert model(model(name).title).name == name


@pytest.mark.parametrize(
    ("job_class", "batch"),
    [("ResNet-50 (batch size 64)", 64), ("lm (Batch Size 5) ", 5), ("A3C", None), ("x (batch size 0)", None)],
)
def test_the_batch_that_a_class_names(job_class: str, batch: int | None) -> None:
    assert batch_size(job_class) == batch


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("v100", "v100"),
        ("Tesla V100", "v100"),
        ("NVIDIA A100-80GB", "a100-80"),
        ("A100", "a100-40"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("h100_sxm", "h100"),
        ("H100 PCIe", "h100-pcie"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_gpu_type_however_it_is_written(written: str, name: str) -> None:
    found = find_gpu_type(written)
    assert found is not None
    assert found.name == name


def test_unknown_names_are_told_with_the_nearest() -> None:
    assert find_gpu_type("gpu") is None
    with pytest.raises(UserError, match=r"no GPU type 'v10'. Did you mean 'v100'\? `horae catalogue --gpus`"):
        gpu_type("v10")
    with pytest.raises(UserError, match=r"no model 'alexnot'. Did you mean 'alexnet'\? `horae catalogue --models`"):
        model("alexnot")


def test_the_gpu_types_by_their_data_sheets() -> None:
    v100, h100, k80 = gpu_type("v100"), gpu_type("h100"), gpu_type("k80")
    assert (v100.memory_gb, v100.bandwidth_gb_s, v100.fp32_tflops, v100.tensor_tflops) == (16, 900, 15.7, 125)
    assert (h100.memory_gb, h100.bandwidth_gb_s, h100.fp32_tflops, h100.tensor_tflops) == (80, 3350, 67, 989)
    assert (k80.tensor_tflops, k80.price_per_hour) == (None, 0.45)


def test_no_figure_is_out_of_the_question() -> None:
    wanted = {"k80", "m60", "p4", "p40", "p100", "t4", "v100", "rtx-2080-ti", "rtx-3090", "a10", "a30", "a40"}
    wanted |= {"a100-40", "a100-80", "l4", "l40s", "h100-pcie", "h100", "h200", "b200"}
    assert wanted <= set(gpu_types())
    for gpu in gpu_types().values():
        assert 8 <= gpu.memory_gb <= 200
        assert 100 <= gpu.bandwidth_gb_s <= 10_000
        assert (gpu.tensor_tflops is None) == (gpu.tensor_format == "")
        assert gpu.tensor_tflops is None or gpu.tensor_tflops > gpu.fp32_tflops
        assert gpu.price_per_hour is None or 0.1 <= gpu.price_per_hour <= 20
        assert "data sheet" in gpu.source or "white paper" in gpu.source
