"""The profiler of a training script: any module that names its parameters will do."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given

from horae.train import profile, skew


@dataclass
class Dtype:
    itemsize: int


@dataclass
class Tensor:
    """A parameter as PyTorch would show it."""

    shape: tuple[int, ...]
    requires_grad: bool = True
    itemsize: int = 4

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.itemsize


@dataclass
class Module:
    """A module as PyTorch would show it."""

    tensors: dict[str, object]

    def named_parameters(self) -> Iterable[tuple[str, object]]:
        return self.tensors.items()


def test_the_skew_is_the_share_of_the_largest() -> None:
    assert skew([1, 2, 5]) == 5 / 8
    assert skew([3]) == 1


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), st.integers(1, 1000))
def test_a_skew_knows_no_unit_and_no_order(sizes: list[int], unit: int) -> None:
    assert skew(size * unit for size in sorted(sizes)) == pytest.approx(skew(sizes))
    assert 1 / len(sizes) <= skew(sizes) * (1 + 1e-12)
    assert skew(sizes) <= 1


@pytest.mark.parametrize("sizes", [[], [0, 0], [1, -1], [math.nan, 1], [math.inf]])
def test_sizes_without_a_skew(sizes: list[float]) -> None:
    with pytest.raises(ValueError, match="finite, not negative, and not all 0"):
        skew(sizes)


def test_a_module_is_profiled_by_what_it_sends() -> None:
    found = profile(Module({"conv": Tensor((4, 3, 2, 2)), "fc.weight": Tensor((10, 8)), "fc.bias": Tensor((10,))}))
    assert found.sizes == {"conv": 192, "fc.weight": 320, "fc.bias": 40}
    assert found.largest == "fc.weight"
    assert found.total_bytes == 552
    assert found.skew == 320 / 552


def test_what_is_frozen_or_empty_is_not_sent() -> None:
    module = Module({"base": Tensor((1000,), requires_grad=False), "head": Tensor((10,)), "none": Tensor((0, 5))})
    assert profile(module).sizes == {"head": 40}
    assert profile(module).skew == 1


def test_wide_numbers_are_longer_messages() -> None:
    module = Module({"half": Tensor((100,), itemsize=2), "full": Tensor((100,))})
    assert profile(module).skew == 2 / 3


def test_parameters_may_tell_their_size_by_their_dtype_or_not_at_all() -> None:
    class Bare:
        def numel(self) -> int:
            return 6

    class Typed(Bare):
        dtype = Dtype(8)

    assert profile(Module({"bare": Bare(), "typed": Typed()})).sizes == {"bare": 24, "typed": 48}


def test_what_is_no_module_and_what_trains_nothing() -> None:
    with pytest.raises(TypeError, match=r"named_parameters\(\), not a list"):
        profile([1, 2])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trains nothing"):
        profile(Module({"frozen": Tensor((3,), requires_grad=False)}))
