"""Networks for pictures: AlexNet, VGG, ResNet, CycleGAN, and the small one that plays games."""

from __future__ import annotations

from collections.abc import Sequence

from horae.workload.networks.layers import Network, Signal

#: Channels of VGG's convolutions, stage by stage; each stage ends in a pooling that halves the picture.
VGG_11 = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG_16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
VGG_19 = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)

#: Blocks in each stage of a ResNet.
RESNET_18 = (2, 2, 2, 2)
RESNET_50 = (3, 4, 6, 3)
RESNET_101 = (3, 4, 23, 3)
RESNET_152 = (3, 8, 36, 3)


def alexnet() -> Network:
    """AlexNet on one GPU (Krizhevsky, "One weird trick", 2014), 1,000 classes."""
    net = Network()
    x = net.image(3, 224)
    x = x.conv("features.0", 64, 11, stride=4, padding=2, bias=True).pointwise().pool(3, 2)
    x = x.conv("features.3", 192, 5, padding=2, bias=True).pointwise().pool(3, 2)
    x = x.conv("features.6", 384, 3, padding=1, bias=True).pointwise()
    x = x.conv("features.8", 256, 3, padding=1, bias=True).pointwise()
    x = x.conv("features.10", 256, 3, padding=1, bias=True).pointwise().pool(3, 2)
    # Each dropout and each ReLU is one function.
    x = x.flat().pointwise().linear("classifier.1", 4096).pointwise(2)
    x.linear("classifier.4", 4096).pointwise().linear("classifier.6", 1000)
    return net


def vgg(stages: Sequence[Sequence[int]]) -> Network:
    """VGG without batch normalisation (Simonyan and Zisserman 2015), 1,000 classes."""
    net = Network()
    x, number = net.image(3, 224), 0
    for stage in stages:
        for channels in stage:
            x = x.conv(f"features.{number}", channels, 3, padding=1, bias=True).pointwise()
            number += 2
        x = x.pool(2, 2)
        number += 1
    x = x.flat().linear("classifier.0", 4096).pointwise(2)
    x.linear("classifier.3", 4096).pointwise(2).linear("classifier.6", 1000)
    return net


def resnet(blocks: Sequence[int], deep: bool) -> Network:
    """ResNet (He et al. 2016), 1,000 classes; deep ones have bottlenecks, with the stride in the 3 x 3 convolution."""
    net = Network()
    x = net.image(3, 224).conv("conv1", 64, 7, stride=2, padding=3).norm("bn1").pointwise().pool(3, 2, padding=1)
    _stages(x, blocks, deep).mean().linear("fc", 1000)
    return net


def resnet_cifar(blocks: Sequence[int]) -> Network:
    """The same ResNet for the small pictures and ten classes of CIFAR-10: no stride and no pooling at the start."""
    net = Network()
    x = net.image(3, 32).conv("conv1", 64, 3, padding=1).norm("bn1").pointwise()
    _stages(x, blocks, deep=False).mean().linear("fc", 10)
    return net


def _stages(x: Signal, blocks: Sequence[int], deep: bool) -> Signal:
    block = _bottleneck if deep else _basic
    for stage, count in enumerate(blocks, start=1):
        for number in range(count):
            stride = 2 if stage > 1 and number == 0 else 1
            x = block(x, f"layer{stage}.{number}", 32 * 2**stage, stride)
    return x


def _basic(x: Signal, name: str, width: int, stride: int) -> Signal:
    y = x.conv(f"{name}.conv1", width, 3, stride, padding=1).norm(f"{name}.bn1").pointwise()
    y = y.conv(f"{name}.conv2", width, 3, padding=1).norm(f"{name}.bn2")
    return y.plus(_shortcut(x, name, width, stride)).pointwise()


def _bottleneck(x: Signal, name: str, width: int, stride: int) -> Signal:
    y = x.conv(f"{name}.conv1", width, 1).norm(f"{name}.bn1").pointwise()
    y = y.conv(f"{name}.conv2", width, 3, stride, padding=1).norm(f"{name}.bn2").pointwise()
    y = y.conv(f"{name}.conv3", 4 * width, 1).norm(f"{name}.bn3")
    return y.plus(_shortcut(x, name, 4 * width, stride)).pointwise()


def _shortcut(x: Signal, name: str, width: int, stride: int) -> Signal:
    if stride == 1 and x.channels == width:
        return x
    return x.conv(f"{name}.downsample.0", width, 1, stride).norm(f"{name}.downsample.1")


def cyclegan() -> Network:
    """CycleGAN on 256 x 256 pictures (Zhu et al. 2017): two generators of nine blocks, two 70 x 70 discriminators.

    A step sends each of two pictures there, back and, for the identity loss, nowhere: six
    passes through generators. Discriminators see both fakes twice, once for each side's
    loss, and both originals: six passes, too.
    """
    net = Network()
    for side in ("a", "b"):
        for _ in range(3):
            _generator(net.image(3, 256), f"generator_{side}")
            _discriminator(net.image(3, 256), f"discriminator_{side}")
    return net


def _generator(x: Signal, name: str) -> Signal:
    # Instance normalisation has nothing to train here: two functions follow every convolution.
    x = x.conv(f"{name}.in", 64, 7, padding=3, bias=True).pointwise(2)
    x = x.conv(f"{name}.down1", 128, 3, 2, padding=1, bias=True).pointwise(2)
    x = x.conv(f"{name}.down2", 256, 3, 2, padding=1, bias=True).pointwise(2)
    for block in range(9):
        y = x.conv(f"{name}.block{block}.1", 256, 3, padding=1, bias=True).pointwise(2)
        x = y.conv(f"{name}.block{block}.2", 256, 3, padding=1, bias=True).pointwise().plus(x)
    x = x.upconv(f"{name}.up1", 128, 3, 2).pointwise(2).upconv(f"{name}.up2", 64, 3, 2).pointwise(2)
    return x.conv(f"{name}.out", 3, 7, padding=3, bias=True).pointwise()


def _discriminator(x: Signal, name: str) -> Signal:
    for number, (channels, stride) in enumerate(((64, 2), (128, 2), (256, 2), (512, 1))):
        x = x.conv(f"{name}.conv{number}", channels, 4, stride, padding=1, bias=True).pointwise(2 if number else 1)
    return x.conv(f"{name}.conv4", 1, 4, padding=1, bias=True)


def a3c() -> Network:
    """The feed-forward agent of A3C (Mnih et al. 2016) for four frames and the six actions of Pong."""
    net = Network()
    x = net.image(4, 84).conv("conv1", 16, 8, stride=4, bias=True).pointwise()
    x = x.conv("conv2", 32, 4, stride=2, bias=True).pointwise().flat().linear("fc", 256).pointwise()
    x.linear("policy", 6)
    x.linear("value", 1)
    return net
