"""The skew of a model: the share of its largest tensor in the bytes it sends in a step.

In data-parallel training every step sends the gradient of each trained tensor. A model with a
dominant tensor (VGG-16: .74) keeps a single link busy while the others wait, and slows down when
its GPUs are spread over nodes; a model of many similar tensors (ResNet-50: .09) hardly does.
This number is all that a scheduler needs (Tiresias, NSDI '19, section 3.3).

    from horae_train import profile
    print(profile(model).skew)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

#: Bytes of an element whose type is unknown.
_FP32 = 4


class Module(Protocol):
    """An object with the `named_parameters()` of a `torch.nn.Module`; PyTorch itself is not needed."""

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """The parameters, each with its name."""


class Profile(NamedTuple):
    """The messages of one training step: bytes of each trained tensor, by name."""

    sizes: Mapping[str, int]

    @property
    def skew(self) -> float:
        """Share of the largest tensor, above 0 and up to 1."""
        return skew(self.sizes.values())

    @property
    def largest(self) -> str:
        """Name of the largest tensor; the first of several."""
        return max(self.sizes, key=lambda name: self.sizes[name])

    @property
    def total_bytes(self) -> int:
        """Bytes that a step sends."""
        return sum(self.sizes.values())


def skew(sizes: Iterable[float]) -> float:
    """The largest size divided by the sum: 1 for a single tensor, 1/n for n equal tensors."""
    all_sizes = list(sizes)
    if not all(math.isfinite(size) and size >= 0 for size in all_sizes) or not sum(all_sizes) > 0:
        raise ValueError("a skew needs tensor sizes that are finite, not negative, and not all 0")
    return max(all_sizes) / sum(all_sizes)


def profile(module: Module) -> Profile:
    """The tensors of a module that are trained, and so sent; frozen and empty tensors are left out."""
    if not callable(getattr(module, "named_parameters", None)):
        raise TypeError(f"profile() takes a module with named_parameters(), not a {type(module).__name__}")
    named = module.named_parameters()
    trained = {name: _bytes(parameter) for name, parameter in named if getattr(parameter, "requires_grad", True)}
    sizes = {name: size for name, size in trained.items() if size > 0}
    if not sizes:
        raise ValueError("this module trains nothing: none of its parameters has requires_grad and a size")
    return Profile(sizes)


def _bytes(parameter: Any) -> int:
    """Bytes of a parameter, by its `element_size()` or by its dtype."""
    item_bytes = parameter.element_size() if hasattr(parameter, "element_size") else _item_bytes(parameter)
    return int(parameter.numel()) * int(item_bytes)


def _item_bytes(parameter: Any) -> int:
    return int(getattr(getattr(parameter, "dtype", None), "itemsize", _FP32))
