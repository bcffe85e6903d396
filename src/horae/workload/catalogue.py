"""The catalogue: GPU types by their data sheets, and well-known models by their papers.

Models are drawn layer by layer (`networks`), so that their tensor sizes are the real ones, and
everything else (parameters, skew, FLOPs, bytes) follows from them.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

from horae.core.errors import UserError, did_you_mean
from horae.train import skew
from horae.workload.networks import images, inception, texts
from horae.workload.networks.layers import Layer, Network, Shape

#: The backward pass does the work of the forward pass twice: once for the inputs, once for the weights.
PASSES = 3
#: Times that a step touches each parameter: read forward and backward, gradient written, and the update by SGD with
#: momentum, which reads gradient, weight and momentum and writes the last two.
UPDATE_MOVES = 8
#: Bytes of a parameter, and of what training keeps with it: gradient and momentum.
PARAMETER_BYTES = 4
STATE_BYTES = 3 * PARAMETER_BYTES

_GPUS = Path(__file__).with_name("data") / "gpus.csv"


class NotInCatalogue(UserError):
    """A GPU type or a model that the catalogue does not hold."""


# GPU types


@dataclass(frozen=True)
class GpuType:
    """One GPU, by its data sheet: peaks that no program reaches. None stands for what there is not."""

    name: str
    title: str
    memory_gb: float
    bandwidth_gb_s: float
    fp32_tflops: float
    #: Dense, in the format that training uses on the matrix units.
    tensor_tflops: float | None
    tensor_format: str
    #: What joins the GPUs of a node, and how fast it is in one direction.
    link: str
    link_gb_s: float
    #: US$ on demand: an order of magnitude, for providers differ by a factor of four.
    price_per_hour: float | None
    source: str


@cache
def gpu_types() -> Mapping[str, GpuType]:
    """Every GPU type by name, oldest first."""
    with _GPUS.open(encoding="utf-8", newline="") as lines:
        return {row["name"]: _gpu_type(row) for row in csv.DictReader(lines)}


def _gpu_type(row: Mapping[str, str]) -> GpuType:
    return GpuType(
        name=row["name"],
        title=row["title"],
        memory_gb=float(row["memory_gb"]),
        bandwidth_gb_s=float(row["bandwidth_gb_s"]),
        fp32_tflops=float(row["fp32_tflops"]),
        tensor_tflops=float(row["tensor_tflops"]) if row["tensor_tflops"] else None,
        tensor_format=row["tensor_format"],
        link=row["link"],
        link_gb_s=float(row["link_gb_s"]),
        price_per_hour=float(row["price_per_hour"]) if row["price_per_hour"] else None,
        source=row["source"],
    )


#: Other names of GPU types, in plain letters.
_GPU_ALIASES = {
    "a100": "a100-40",
    "a100sxm": "a100-40",
    "a10040gb": "a100-40",
    "a10080gb": "a100-80",
    "a100sxm80gb": "a100-80",
    "h100sxm": "h100",
    "h200sxm": "h200",
    "b200sxm": "b200",
    "v100sxm2": "v100",
    "v10016gb": "v100",
    "v100sxm216gb": "v100",
    "p100pcie": "p100",
    "p10016gb": "p100",
    "2080ti": "rtx-2080-ti",
    "3090": "rtx-3090",
}
_MAKERS = re.compile(r"^(nvidia|amd)?(tesla|geforce|instinct)?")


def find_gpu_type(name: str) -> GpuType | None:
    """The GPU type of a name such as v100, V100 or NVIDIA A100-80GB; None if the catalogue does not know it."""
    plain = _MAKERS.sub("", _letters(name))
    by_letters = {_letters(type_name): type_name for type_name in gpu_types()} | _GPU_ALIASES
    return gpu_types()[by_letters[plain]] if plain in by_letters else None


def gpu_type(name: str) -> GpuType:
    """The GPU type of a name, or an error that says which there are."""
    found = find_gpu_type(name)
    if found is None:
        raise _not_in_catalogue("GPU type", name, gpu_types(), "--gpus")
    return found


# Models


@dataclass(frozen=True)
class Model:
    """A model as it is trained: its tensors, and what its layers do in the forward pass of one sample."""

    name: str
    title: str
    #: What one sample is.
    sample: str
    source: str
    tensors: Mapping[str, Shape]
    layers: tuple[Layer, ...]
    #: What an estimate of its speed should be taken with.
    note: str = ""

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """Parameters in each tensor."""
        return {name: math.prod(shape) for name, shape in self.tensors.items()}

    @cached_property
    def parameters(self) -> int:
        """Parameters in all."""
        return sum(self.sizes.values())

    @property
    def largest(self) -> str:
        """Name of the largest tensor."""
        return max(self.sizes, key=lambda name: self.sizes[name])

    @property
    def skew(self) -> float:
        """Share of the largest tensor."""
        return skew(self.sizes.values())

    @property
    def flops_per_sample(self) -> int:
        """Floating-point operations of a training step for each sample of its batch."""
        return PASSES * sum(layer.flops for layer in self.layers)

    @property
    def moves_per_sample(self) -> int:
        """Numbers that a training step reads and writes for each sample of its batch."""
        return PASSES * sum(layer.moved for layer in self.layers)

    @property
    def update_bytes(self) -> int:
        """Bytes that a training step reads and writes for the parameters, whatever the batch."""
        return UPDATE_MOVES * PARAMETER_BYTES * self.parameters


class _Entry(NamedTuple):
    """A line of the catalogue: a model yet to be drawn."""

    title: str
    sample: str
    source: str
    draw: Callable[[], Network]
    aliases: tuple[str, ...] = ()
    note: str = ""


_PICTURE, _LARGE_PICTURE = "224 x 224 picture", "299 x 299 picture"
_VGG = "Simonyan, Zisserman, ICLR 2015"
_RESNET = "He et al., CVPR 2016"
_BERT = "Devlin et al., NAACL 2019"
_GPT = "Radford et al., 2019"
_ENTRIES: dict[str, _Entry] = {
    "alexnet": _Entry("AlexNet", _PICTURE, "Krizhevsky, 2014", images.alexnet),
    "vgg-11": _Entry("VGG-11", _PICTURE, _VGG, partial(images.vgg, images.VGG_11)),
    "vgg-16": _Entry("VGG-16", _PICTURE, _VGG, partial(images.vgg, images.VGG_16)),
    "vgg-19": _Entry("VGG-19", _PICTURE, _VGG, partial(images.vgg, images.VGG_19)),
    "resnet-18": _Entry("ResNet-18", _PICTURE, _RESNET, partial(images.resnet, images.RESNET_18, deep=False)),
    "resnet-50": _Entry("ResNet-50", _PICTURE, _RESNET, partial(images.resnet, images.RESNET_50, deep=True)),
    "resnet-101": _Entry("ResNet-101", _PICTURE, _RESNET, partial(images.resnet, images.RESNET_101, deep=True)),
    "resnet-152": _Entry("ResNet-152", _PICTURE, _RESNET, partial(images.resnet, images.RESNET_152, deep=True)),
    "resnet-18-cifar": _Entry(
        "ResNet-18 (CIFAR-10)", "32 x 32 picture", _RESNET, partial(images.resnet_cifar, images.RESNET_18)
    ),
    "googlenet": _Entry("GoogLeNet", _PICTURE, "Szegedy et al., CVPR 2015", inception.googlenet, ("inceptionv1",)),
    "inception-v3": _Entry(
        "Inception-v3", _LARGE_PICTURE, "Szegedy et al., CVPR 2016", inception.inception_v3, ("inception3",)
    ),
    "inception-v4": _Entry(
        "Inception-v4", _LARGE_PICTURE, "Szegedy et al., AAAI 2017", inception.inception_v4, ("inception4",)
    ),
    "vit-b-16": _Entry("ViT-B/16", _PICTURE, "Dosovitskiy et al., ICLR 2021", texts.vit_b_16, ("vit",)),
    "cyclegan": _Entry("CycleGAN", "pair of 256 x 256 pictures", "Zhu et al., ICCV 2017", images.cyclegan),
    "transformer-base": _Entry(
        "Transformer base",
        "pair of sentences of 32 tokens",
        "Vaswani et al., NeurIPS 2017",
        texts.transformer_base,
        ("transformer",),
    ),
    "bert-base": _Entry("BERT-base", "128 tokens", _BERT, partial(texts.bert, 12, 768), ("bert", "bertbaseuncased")),
    "bert-large": _Entry("BERT-large", "128 tokens", _BERT, partial(texts.bert, 24, 1024), ("bertlargeuncased",)),
    "gpt-2": _Entry("GPT-2", "1,024 tokens", _GPT, partial(texts.gpt2, 12, 768), ("gpt2small",)),
    "gpt-2-medium": _Entry("GPT-2 medium", "1,024 tokens", _GPT, partial(texts.gpt2, 24, 1024)),
    "gpt-2-large": _Entry("GPT-2 large", "1,024 tokens", _GPT, partial(texts.gpt2, 36, 1280)),
    "gpt-2-xl": _Entry("GPT-2 XL", "1,024 tokens", _GPT, partial(texts.gpt2, 48, 1600)),
    "lstm-lm": _Entry(
        "LSTM language model", "35 tokens", "PyTorch examples, WikiText-2", texts.lstm_lm, ("lm", "lstm")
    ),
    "mult-dae": _Entry(
        "Mult-DAE recommender",
        "a user's films",
        "Liang et al., WWW 2018",
        texts.mult_dae,
        ("recommendation", "recommender"),
        "reading the sparse data takes longer than the GPU does",
    ),
    "a3c": _Entry(
        "A3C", "four frames", "Mnih et al., ICML 2016", images.a3c, note="the game on the CPU takes longer than the GPU"
    ),
}

#: Names of the models, in the order of the catalogue.
MODELS: tuple[str, ...] = tuple(_ENTRIES)


def find_model(job_class: str) -> Model | None:
    """The model of a job class such as "ResNet-50 (batch size 64)", resnet50 or VGG16; None if it is not known."""
    name = _by_letters().get(_letters(_BATCH.sub("", job_class)))
    return _drawn(name) if name else None


def model(name: str) -> Model:
    """The model of a name, or an error that says which there are."""
    found = find_model(name)
    if found is None:
        raise _not_in_catalogue("model", name, MODELS, "--models")
    return found


_BATCH = re.compile(r"\(batch size (\d{1,9})\)\s*$", re.IGNORECASE)


def batch_size(job_class: str) -> int | None:
    """The batch that a job class names: 64 of "ResNet-50 (batch size 64)"; None if it names none."""
    found = _BATCH.search(job_class)
    return (int(found[1]) or None) if found else None


@cache
def _by_letters() -> Mapping[str, str]:
    """Name of each model by every name it goes by, in plain letters."""
    names = {_letters(name): name for name in _ENTRIES} | {
        _letters(entry.title): name for name, entry in _ENTRIES.items()
    }
    return names | {alias: name for name, entry in _ENTRIES.items() for alias in entry.aliases}


@cache
def _drawn(name: str) -> Model:
    entry = _ENTRIES[name]
    net = entry.draw()
    return Model(name, entry.title, entry.sample, entry.source, net.tensors, tuple(net.layers), entry.note)


def _letters(name: str) -> str:
    """A name without what people write differently: case, spaces and hyphens."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _not_in_catalogue(what: str, name: str, names: Iterable[str], option: str) -> NotInCatalogue:
    hint = did_you_mean(name, names)
    return NotInCatalogue(f"The catalogue has no {what} {name!r}.{hint} `horae catalogue {option}` lists them.")
