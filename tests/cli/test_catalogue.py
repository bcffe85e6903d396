"""`horae catalogue`."""

import csv

import pytest

from horae.workload.catalogue import MODELS, gpu_type, gpu_types, model
from horae.workload.roofline import Precision, estimate
from tests.cli.conftest import Horae


def test_everything_is_listed(horae: Horae) -> None:
    answer = horae("catalogue")
    assert answer.code == 0
    assert all(name in answer.out for name in [*gpu_types(), *MODELS])
    assert "order of magnitude" in answer.out


def test_one_list_alone(horae: Horae) -> None:
    gpus, models = horae("catalogue", "--gpus", "-o", "json").json, horae("catalogue", "--models", "-o", "json").json
    assert [record["name"] for record in gpus["gpus"]] == list(gpu_types())
    assert [record["name"] for record in models["models"]] == list(MODELS)
    assert set(horae("catalogue", "-o", "json").json) == {"gpus", "models"}
    assert "models" not in gpus
    assert "gpus" not in models


def test_csv_is_one_line_a_gpu_or_a_model(horae: Horae) -> None:
    rows = list(csv.DictReader(horae("catalogue", "--gpus", "-o", "csv").out.splitlines()))
    assert [row["name"] for row in rows] == list(gpu_types())
    rows = list(csv.DictReader(horae("catalogue", "--models", "-o", "csv").out.splitlines()))
    assert {row["name"]: row["skew"] for row in rows}["vgg-16"] == "0.7427"


def test_one_estimate_says_that_it_is_one_and_where_it_comes_from(horae: Horae) -> None:
    text = " ".join(horae("catalogue", "--model", "resnet-50", "--gpu", "v100", "--batch", "64").out.split())
    wanted = estimate(model("resnet-50"), gpu_type("v100"), 64)
    assert f"{wanted.steps_per_s:,.4g} steps/s" in text
    assert "(estimated)" in text
    assert "25% of 125 TFLOP/s" in text
    assert "NVIDIA Tesla V100 data sheet" in text


def test_the_same_as_json(horae: Horae) -> None:
    words = ["--model", "ResNet50 (batch size 16)", "--gpu", "V100", "--count", "4", "--precision", "fp32"]
    record = horae("catalogue", *words, "-o", "json").json
    wanted = estimate(model("resnet-50"), gpu_type("v100"), 16, 4, Precision.FP32)
    assert record["steps_per_s"] == pytest.approx(wanted.steps_per_s)
    assert record["origin"] == "estimated"
    assert (record["batch"], record["gpus"], record["bound"]) == (16, 4, wanted.bound)


def test_one_model_with_its_tensors_on_every_gpu(horae: Horae) -> None:
    record = horae("catalogue", "--model", "vgg-16", "-o", "json").json
    assert record["tensors"]["classifier.0.weight"] == [4096, 25088]
    assert [one["gpu"] for one in record["estimates"]] == list(gpu_types())
    text = horae("catalogue", "--model", "vgg-16").out
    assert "classifier.0.weight" in text
    assert all(name in text for name in gpu_types())


def test_every_model_on_one_gpu(horae: Horae) -> None:
    record = horae("catalogue", "--gpu", "h100", "--batch", "8", "-o", "json").json
    assert [one["model"] for one in record["estimates"]] == list(MODELS)
    assert {one["batch"] for one in record["estimates"]} == {8}
    rows = list(csv.DictReader(horae("catalogue", "--gpu", "h100", "-o", "csv").out.splitlines()))
    assert [row["model"] for row in rows] == list(MODELS)


def test_types_that_cannot_are_left_out_of_a_list(horae: Horae) -> None:
    record = horae("catalogue", "--model", "vgg-16", "--precision", "mixed", "-o", "json").json
    assert "k80" not in {one["gpu"] for one in record["estimates"]}


def test_what_does_not_fit_and_what_is_not_to_be_believed_is_told(horae: Horae) -> None:
    assert "needs about" in horae("catalogue", "--model", "gpt-2-xl", "--gpu", "k80").err
    assert "too high" in horae("catalogue", "--model", "a3c", "--gpu", "k80").err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--model", "resnet-5"], "Did you mean 'resnet-50'?"),
        (["--gpu", "v10"], "Did you mean 'v100'?"),
        (["--model", "vgg-16", "--gpu", "k80", "--precision", "mixed"], "take fp32"),
        (["--model", "vgg-16", "--precision", "fp23"], "Did you mean 'fp32'?"),
        (["--batch", "4"], "add --model, --gpu or both"),
        (["--gpus", "--gpu", "k80"], "leave them out"),
        (["-o", "csv"], "add --gpus or --models"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(horae: Horae, words: list[str], sentence: str) -> None:
    answer = horae("catalogue", *words)
    assert answer.code == 1
    assert answer.out == ""
    assert sentence in answer.err
    assert answer.err.count("\n") == 1
