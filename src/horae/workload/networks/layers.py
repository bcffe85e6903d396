"""A network layer by layer: the shapes of its signals, the tensors it trains, the cost of a forward pass.

Only shapes are computed. A `Signal` is the shape of one sample between two layers; each layer
takes a signal, notes its tensors and its cost in the `Network`, and returns the next signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

Shape = tuple[int, ...]
#: A side of a kernel, or one for each side.
Sides = int | tuple[int, ...]


class Layer(NamedTuple):
    """What one layer does in the forward pass of one sample."""

    #: Floating-point operations; a multiplication and an addition are two.
    flops: int
    #: Numbers read as input or written as output.
    moved: int
    #: Kernel launches.
    calls: int = 1


@dataclass
class Network:
    """The tensors of a network by name, and its layers in order."""

    tensors: dict[str, Shape] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)

    def image(self, channels: int, side: int) -> Signal:
        """A picture that comes in."""
        return Signal(self, channels, (side, side))

    def values(self, count: int) -> Signal:
        """A list of numbers that comes in."""
        return Signal(self, count, ())

    def tokens(self, name: str, vocabulary: int, length: int, width: int) -> Signal:
        """A text that comes in, each of its tokens looked up in a table."""
        self.train(name, vocabulary, width)
        found = Signal(self, width, (length,))
        self.layers.append(Layer(0, 2 * found.size))
        return found

    def train(self, name: str, *shape: int) -> None:
        """Note a tensor; layers that use it again, under the same name, share it."""
        noted = self.tensors.setdefault(name, shape)
        assert noted == shape, f"{name} is {noted}, and cannot be {shape}"


@dataclass(frozen=True)
class Signal:
    """What a sample is at some point: channels at every place of a grid of none, one or two dimensions."""

    net: Network
    channels: int
    grid: Shape

    @property
    def places(self) -> int:
        """How many places the grid has."""
        return math.prod(self.grid)

    @property
    def size(self) -> int:
        """How many numbers it is."""
        return self.channels * self.places

    def conv(
        self, name: str, channels: int, kernel: Sides, stride: int = 1, padding: Sides = 0, bias: bool = False
    ) -> Signal:
        """A convolution."""
        sides = self._sides(kernel)
        grid = self._windows(sides, stride, self._sides(padding))
        self._train(name, (channels, self.channels, *sides), channels if bias else 0)
        return self._to(channels, grid, flops=2 * channels * math.prod(grid) * self.channels * math.prod(sides))

    def upconv(self, name: str, channels: int, kernel: int, stride: int) -> Signal:
        """A transposed convolution with a bias, which makes the grid `stride` times finer."""
        self._train(name, (self.channels, channels, kernel, kernel), channels)
        return self._to(channels, tuple(side * stride for side in self.grid), 2 * self.size * channels * kernel**2)

    def linear(self, name: str, channels: int, bias: bool = True) -> Signal:
        """A matrix for every place of the grid."""
        self._train(name, (channels, self.channels), channels if bias else 0)
        return self._to(channels, self.grid, flops=2 * self.size * channels)

    def norm(self, name: str) -> Signal:
        """A normalisation with a scale and a shift for each channel."""
        self._train(name, (self.channels,), self.channels)
        return self._to(self.channels, self.grid)

    def pointwise(self, times: int = 1) -> Signal:
        """As many functions of one number, such as ReLU, each of which reads and writes the whole signal."""
        for _ in range(times):
            self._to(self.channels, self.grid)
        return self

    def plus(self, other: Signal) -> Signal:
        """The sum with another signal of the same shape."""
        assert (self.channels, self.grid) == (other.channels, other.grid), f"{self} and {other} differ in shape"
        return self._to(self.channels, self.grid, besides=other.size)

    def pool(self, kernel: int, stride: int, padding: int = 0, ceil: bool = False) -> Signal:
        """The largest or the mean of every few places."""
        grid = self._windows(self._sides(kernel), stride, self._sides(padding), stride - 1 if ceil else 0)
        return self._to(self.channels, grid)

    def mean(self) -> Signal:
        """The mean over all places."""
        return self._to(self.channels, ())

    def flat(self) -> Signal:
        """The same numbers without a grid; costs nothing."""
        return Signal(self.net, self.size, ())

    def take(self, channels: int) -> Signal:
        """Some of the channels; costs nothing."""
        return Signal(self.net, channels, self.grid)

    def attend(self, keys: Signal, heads: int) -> Signal:
        """Attention to keys and as many values: a product over all pairs of places, softmax, and another product."""
        pairs = self.places * keys.places
        scores = Layer(2 * pairs * self.channels, self.size + keys.size + heads * pairs)
        self.net.layers += [scores, Layer(0, 2 * heads * pairs), scores]
        return Signal(self.net, self.channels, self.grid)

    def lstm(self, name: str, layer: int, width: int) -> Signal:
        """A layer of long short-term memory, one place of the grid after the other, with PyTorch's two biases."""
        for part, inputs in (("ih", self.channels), ("hh", width)):
            self.net.train(f"{name}.weight_{part}_l{layer}", 4 * width, inputs)
            self.net.train(f"{name}.bias_{part}_l{layer}", 4 * width)
        made = Signal(self.net, width, self.grid)
        flops = 2 * 4 * width * (self.channels + width) * self.places
        # Four gates and a cell for each number that comes out, written and read.
        self.net.layers.append(Layer(flops, self.size + 11 * made.size, calls=self.places))
        return made

    def _train(self, name: str, shape: Shape, bias: int) -> None:
        self.net.train(f"{name}.weight", *shape)
        if bias:
            self.net.train(f"{name}.bias", bias)

    def _to(self, channels: int, grid: Shape, flops: int = 0, besides: int = 0) -> Signal:
        """The signal behind a layer that reads this one, and something besides, and writes that."""
        made = Signal(self.net, channels, grid)
        self.net.layers.append(Layer(flops, self.size + besides + made.size))
        return made

    def _sides(self, sides: Sides) -> Shape:
        return (sides,) * len(self.grid) if isinstance(sides, int) else sides

    def _windows(self, kernel: Shape, stride: int, padding: Shape, beyond: int = 0) -> Shape:
        """How often a kernel fits along each side, if it may reach `beyond` the end."""
        sides = zip(self.grid, kernel, padding, strict=True)
        return tuple((side + 2 * pad + beyond - width) // stride + 1 for side, width, pad in sides)


def concatenate(*signals: Signal) -> Signal:
    """Signals over the same grid, copied one behind the other."""
    grid = signals[0].grid
    assert all(signal.grid == grid for signal in signals), f"the grids differ: {[signal.grid for signal in signals]}"
    made = Signal(signals[0].net, sum(signal.channels for signal in signals), grid)
    made.net.layers.append(Layer(0, 2 * made.size))
    return made
