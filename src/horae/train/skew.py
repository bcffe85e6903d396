"""The skew of a model: how much of what it sends in a step is one message.

In data-parallel training every step sends the gradient of each trained tensor. A model whose
largest tensor is most of it (VGG-16: .74) keeps one link busy while the others wait, and
suffers when its GPUs are spread over nodes; one of many tensors alike (ResNet-50: .09) hardly
notices. A scheduler needs no more than this one number (Tiresias, NSDI '19, section 3.3).

    from horae.train import profile
    print(profile(model).skew)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

#: Bytes of a number whose kind nobody tells.
_FP32 = 4


class Module(Protocol):
    """Anything that names its parameters as a `torch.nn.Module` does; PyTorch itself is not needed."""

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
        """What a step sends in all."""
        return sum(self.sizes.values())


def skew(sizes: Iterable[float]) -> float:
    """The largest size's share of all of them: 1 for a single tensor, 1/n for n alike."""
    known = list(sizes)
    if not all(math.isfinite(size) and size >= 0 for size in known) or not sum(known) > 0:
        raise ValueError("a skew needs tensor sizes that are finite, not negative, and not all 0")
    return max(known) / sum(known)


def profile(module: Module) -> Profile:
    """The tensors of a module that are trained, and so sent; what is frozen or empty is left out."""
    if not callable(getattr(module, "named_parameters", None)):
        raise TypeError(f"profile() takes a module with named_parameters(), not a {type(module).__name__}")
    trained = {name: _bytes(one) for name, one in module.named_parameters() if getattr(one, "requires_grad", True)}
    sizes = {name: size for name, size in trained.items() if size > 0}
    if not sizes:
        raise ValueError("this module trains nothing: none of its parameters has requires_grad and a size")
    return Profile(sizes)


def _bytes(parameter: Any) -> int:
    """Bytes of a parameter, by its own word or by its dtype."""
    each = parameter.element_size() if hasattr(parameter, "element_size") else _item_bytes(parameter)
    return int(parameter.numel()) * int(each)


def _item_bytes(parameter: Any) -> int:
    return int(getattr(getattr(parameter, "dtype", None), "itemsize", _FP32))
