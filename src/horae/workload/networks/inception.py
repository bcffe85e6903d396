"""Networks whose layers look at several scales side by side: GoogLeNet, Inception-v3 and Inception-v4."""

from __future__ import annotations

from functools import partial

from horae.workload.networks.layers import Network, Sides, Signal, concatenate


def googlenet() -> Network:
    """GoogLeNet (Szegedy et al. 2015, table 1), 1,000 classes, with the two side classifiers it is trained with."""
    net = Network()
    x = _plain(net.image(3, 224), "conv1", 64, 7, stride=2, padding=3).pool(3, 2, ceil=True)
    x = _plain(_plain(x, "conv2", 64, 1), "conv3", 192, 3, padding=1).pool(3, 2, ceil=True)
    x = _mixed(_mixed(x, "3a", 64, 96, 128, 16, 32, 32), "3b", 128, 128, 192, 32, 96, 64).pool(3, 2, ceil=True)
    x = _mixed(x, "4a", 192, 96, 208, 16, 48, 64)
    _side(x, "side1")
    x = _mixed(_mixed(x, "4b", 160, 112, 224, 24, 64, 64), "4c", 128, 128, 256, 24, 64, 64)
    x = _mixed(x, "4d", 112, 144, 288, 32, 64, 64)
    _side(x, "side2")
    x = _mixed(x, "4e", 256, 160, 320, 32, 128, 128).pool(3, 2, ceil=True)
    x = _mixed(_mixed(x, "5a", 256, 160, 320, 32, 128, 128), "5b", 384, 192, 384, 48, 128, 128)
    x.mean().pointwise().linear("fc", 1000)
    return net


def _plain(x: Signal, name: str, channels: int, kernel: int, stride: int = 1, padding: int = 0) -> Signal:
    return x.conv(name, channels, kernel, stride, padding, bias=True).pointwise()


def _mixed(x: Signal, name: str, conv1: int, reduce3: int, conv3: int, reduce5: int, conv5: int, pooled: int) -> Signal:
    return concatenate(
        _plain(x, f"{name}.1x1", conv1, 1),
        _plain(_plain(x, f"{name}.3x3.0", reduce3, 1), f"{name}.3x3.1", conv3, 3, padding=1),
        _plain(_plain(x, f"{name}.5x5.0", reduce5, 1), f"{name}.5x5.1", conv5, 5, padding=2),
        _plain(x.pool(3, 1, 1), f"{name}.pool", pooled, 1),
    )


def _side(x: Signal, name: str) -> None:
    x = _plain(x.pool(5, 3), f"{name}.conv", 128, 1)
    x.flat().linear(f"{name}.fc1", 1024).pointwise(2).linear(f"{name}.fc2", 1000)


def _normed(x: Signal, name: str, channels: int, kernel: Sides, stride: int = 1, padding: Sides = 0) -> Signal:
    return x.conv(f"{name}.conv", channels, kernel, stride, padding).norm(f"{name}.bn").pointwise()


def inception_v3() -> Network:
    """Inception-v3 (Szegedy et al. 2016) on 299 x 299 pictures, 1,000 classes, with its side classifier."""
    net = Network()
    x = _normed(net.image(3, 299), "Conv2d_1a_3x3", 32, 3, stride=2)
    x = _normed(_normed(x, "Conv2d_2a_3x3", 32, 3), "Conv2d_2b_3x3", 64, 3, padding=1).pool(3, 2)
    x = _normed(_normed(x, "Conv2d_3b_1x1", 80, 1), "Conv2d_4a_3x3", 192, 3).pool(3, 2)
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = _v3_a(x, name, pooled)
    x = _v3_b(x, "Mixed_6a")
    for name, width in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = _v3_c(x, name, width)
    side = _normed(_normed(x.pool(5, 3), "AuxLogits.conv0", 128, 1), "AuxLogits.conv1", 768, 5)
    side.mean().linear("AuxLogits.fc", 1000)
    x = _v3_e(_v3_e(_v3_d(x, "Mixed_7a"), "Mixed_7b"), "Mixed_7c")
    x.mean().pointwise().linear("fc", 1000)
    return net


def _v3_a(x: Signal, name: str, pooled: int) -> Signal:
    """Grids of 35: one, five, twice three."""
    five = _normed(_normed(x, f"{name}.branch5x5_1", 48, 1), f"{name}.branch5x5_2", 64, 5, padding=2)
    three = _normed(_normed(x, f"{name}.branch3x3dbl_1", 64, 1), f"{name}.branch3x3dbl_2", 96, 3, padding=1)
    return concatenate(
        _normed(x, f"{name}.branch1x1", 64, 1),
        five,
        _normed(three, f"{name}.branch3x3dbl_3", 96, 3, padding=1),
        _normed(x.pool(3, 1, 1), f"{name}.branch_pool", pooled, 1),
    )


def _v3_b(x: Signal, name: str) -> Signal:
    """From a grid of 35 to one of 17."""
    three = _normed(_normed(x, f"{name}.branch3x3dbl_1", 64, 1), f"{name}.branch3x3dbl_2", 96, 3, padding=1)
    return concatenate(
        _normed(x, f"{name}.branch3x3", 384, 3, stride=2),
        _normed(three, f"{name}.branch3x3dbl_3", 96, 3, stride=2),
        x.pool(3, 2),
    )


def _v3_c(x: Signal, name: str, width: int) -> Signal:
    """Grids of 17: rows and columns of seven."""
    once = _normed(x, f"{name}.branch7x7_1", width, 1)
    once = _normed(once, f"{name}.branch7x7_2", width, (1, 7), padding=(0, 3))
    twice = _normed(x, f"{name}.branch7x7dbl_1", width, 1)
    twice = _normed(twice, f"{name}.branch7x7dbl_2", width, (7, 1), padding=(3, 0))
    twice = _normed(twice, f"{name}.branch7x7dbl_3", width, (1, 7), padding=(0, 3))
    twice = _normed(twice, f"{name}.branch7x7dbl_4", width, (7, 1), padding=(3, 0))
    return concatenate(
        _normed(x, f"{name}.branch1x1", 192, 1),
        _normed(once, f"{name}.branch7x7_3", 192, (7, 1), padding=(3, 0)),
        _normed(twice, f"{name}.branch7x7dbl_5", 192, (1, 7), padding=(0, 3)),
        _normed(x.pool(3, 1, 1), f"{name}.branch_pool", 192, 1),
    )


def _v3_d(x: Signal, name: str) -> Signal:
    """From a grid of 17 to one of 8."""
    seven = _normed(x, f"{name}.branch7x7x3_1", 192, 1)
    seven = _normed(seven, f"{name}.branch7x7x3_2", 192, (1, 7), padding=(0, 3))
    seven = _normed(seven, f"{name}.branch7x7x3_3", 192, (7, 1), padding=(3, 0))
    return concatenate(
        _normed(_normed(x, f"{name}.branch3x3_1", 192, 1), f"{name}.branch3x3_2", 320, 3, stride=2),
        _normed(seven, f"{name}.branch7x7x3_4", 192, 3, stride=2),
        x.pool(3, 2),
    )


def _v3_e(x: Signal, name: str) -> Signal:
    """Grids of 8: rows and columns of three, side by side."""
    three = _normed(x, f"{name}.branch3x3_1", 384, 1)
    double = _normed(x, f"{name}.branch3x3dbl_1", 448, 1)
    double = _normed(double, f"{name}.branch3x3dbl_2", 384, 3, padding=1)
    return concatenate(
        _normed(x, f"{name}.branch1x1", 320, 1),
        _normed(three, f"{name}.branch3x3_2a", 384, (1, 3), padding=(0, 1)),
        _normed(three, f"{name}.branch3x3_2b", 384, (3, 1), padding=(1, 0)),
        _normed(double, f"{name}.branch3x3dbl_3a", 384, (1, 3), padding=(0, 1)),
        _normed(double, f"{name}.branch3x3dbl_3b", 384, (3, 1), padding=(1, 0)),
        _normed(x.pool(3, 1, 1), f"{name}.branch_pool", 192, 1),
    )


def inception_v4() -> Network:
    """Inception-v4 (Szegedy et al. 2017, figures 3 to 9) on 299 x 299 pictures, 1,000 classes."""
    net = Network()
    x = _v4_stem(net.image(3, 299))
    for number in range(4):
        x = _v4_a(x, f"a{number}")
    x = _v4_to_17(x)
    for number in range(7):
        x = _v4_b(x, f"b{number}")
    x = _v4_to_8(x)
    for number in range(3):
        x = _v4_c(x, f"c{number}")
    x.mean().pointwise().linear("fc", 1000)
    return net


def _v4_stem(x: Signal) -> Signal:
    x = _normed(_normed(x, "stem.0", 32, 3, stride=2), "stem.1", 32, 3)
    x = _normed(x, "stem.2", 64, 3, padding=1)
    x = concatenate(x.pool(3, 2), _normed(x, "stem.3", 96, 3, stride=2))
    short = _normed(_normed(x, "stem.4", 64, 1), "stem.5", 96, 3)
    long = _normed(_normed(x, "stem.6", 64, 1), "stem.7", 64, (7, 1), padding=(3, 0))
    long = _normed(_normed(long, "stem.8", 64, (1, 7), padding=(0, 3)), "stem.9", 96, 3)
    x = concatenate(short, long)
    return concatenate(_normed(x, "stem.10", 192, 3, stride=2), x.pool(3, 2))


def _v4_a(x: Signal, name: str) -> Signal:
    double = _normed(_normed(x, f"{name}.double.0", 64, 1), f"{name}.double.1", 96, 3, padding=1)
    return concatenate(
        _normed(x.pool(3, 1, 1), f"{name}.pool", 96, 1),
        _normed(x, f"{name}.one", 96, 1),
        _normed(_normed(x, f"{name}.three.0", 64, 1), f"{name}.three.1", 96, 3, padding=1),
        _normed(double, f"{name}.double.2", 96, 3, padding=1),
    )


def _v4_to_17(x: Signal) -> Signal:
    double = _normed(_normed(x, "to17.double.0", 192, 1), "to17.double.1", 224, 3, padding=1)
    return concatenate(
        x.pool(3, 2),
        _normed(x, "to17.three", 384, 3, stride=2),
        _normed(double, "to17.double.2", 256, 3, stride=2),
    )


def _v4_b(x: Signal, name: str) -> Signal:
    row = partial(_normed, kernel=(1, 7), padding=(0, 3))
    column = partial(_normed, kernel=(7, 1), padding=(3, 0))
    once = row(_normed(x, f"{name}.once.0", 192, 1), f"{name}.once.1", 224)
    twice = row(_normed(x, f"{name}.twice.0", 192, 1), f"{name}.twice.1", 192)
    twice = row(column(twice, f"{name}.twice.2", 224), f"{name}.twice.3", 224)
    return concatenate(
        _normed(x.pool(3, 1, 1), f"{name}.pool", 128, 1),
        _normed(x, f"{name}.one", 384, 1),
        column(once, f"{name}.once.2", 256),
        column(twice, f"{name}.twice.4", 256),
    )


def _v4_to_8(x: Signal) -> Signal:
    seven = _normed(_normed(x, "to8.seven.0", 256, 1), "to8.seven.1", 256, (1, 7), padding=(0, 3))
    seven = _normed(seven, "to8.seven.2", 320, (7, 1), padding=(3, 0))
    return concatenate(
        x.pool(3, 2),
        _normed(_normed(x, "to8.three.0", 192, 1), "to8.three.1", 192, 3, stride=2),
        _normed(seven, "to8.seven.3", 320, 3, stride=2),
    )


def _v4_c(x: Signal, name: str) -> Signal:
    row, column = partial(_normed, kernel=(1, 3), padding=(0, 1)), partial(_normed, kernel=(3, 1), padding=(1, 0))
    once = _normed(x, f"{name}.once.0", 384, 1)
    twice = row(_normed(x, f"{name}.twice.0", 384, 1), f"{name}.twice.1", 448)
    twice = column(twice, f"{name}.twice.2", 512)
    return concatenate(
        _normed(x.pool(3, 1, 1), f"{name}.pool", 256, 1),
        _normed(x, f"{name}.one", 256, 1),
        row(once, f"{name}.once.1", 256),
        column(once, f"{name}.once.2", 256),
        row(twice, f"{name}.twice.3", 256),
        column(twice, f"{name}.twice.4", 256),
    )
