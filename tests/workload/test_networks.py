"""Networks drawn layer by layer come out with the tensors and FLOPs that their papers and libraries state."""

import math

import pytest

from horae.workload.catalogue import MODELS, model
from horae.workload.networks.layers import Layer, Network, concatenate

#: Parameters, as the libraries that ship the models state them, and GFLOP of a forward pass (a multiply-add is two).
PUBLISHED = {
    "alexnet": (61_100_840, 1.43),
    "vgg-11": (132_863_336, 15.2),
    "vgg-16": (138_357_544, 30.9),
    "vgg-19": (143_667_240, 39.3),
    "resnet-18": (11_689_512, 3.63),
    "resnet-50": (25_557_032, 8.18),
    "resnet-101": (44_549_160, 15.6),
    "resnet-152": (60_192_808, 23.0),
    "resnet-18-cifar": (11_173_962, 1.11),
    "googlenet": (13_378_280, 3.18),
    "inception-v3": (27_161_264, 11.4),
    "inception-v4": (42_679_816, 24.5),
    "vit-b-16": (86_567_656, 35.1),
    "cyclegan": (2 * 11_378_179 + 2 * 2_764_737, 632),
    "transformer-base": (63_082_496, None),
    "bert-base": (109_482_240, None),
    "bert-large": (335_141_888, None),
    "gpt-2": (124_439_808, None),
    "gpt-2-medium": (354_823_168, None),
    "gpt-2-large": (774_030_080, None),
    "gpt-2-xl": (1_557_611_200, None),
    "lstm-lm": (13_987_678, None),
    "mult-dae": (2 * 20_108 * 200 + 20_108 + 200, None),
    "a3c": (677_943, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_flops_are_the_published_ones(name: str) -> None:
    parameters, gflops = PUBLISHED[name]
    assert model(name).parameters == parameters
    if gflops is not None:
        assert model(name).flops_per_sample / 3e9 == pytest.approx(gflops, rel=0.01)


def test_every_model_is_checked() -> None:
    assert set(PUBLISHED) == set(MODELS)


@pytest.mark.parametrize(("name", "layers", "width"), [("bert-base", 12, 768), ("bert-large", 24, 1024)])
def test_flops_of_an_encoder_by_hand(name: str, layers: int, width: int) -> None:
    tokens = 128
    matrices = layers * 12 * width**2 * tokens + width**2
    attention = layers * 2 * tokens**2 * width
    assert model(name).flops_per_sample == 3 * 2 * (matrices + attention)


def test_flops_of_gpt2_by_hand() -> None:
    tokens, width = 1024, 768
    matrices = (12 * 12 * width**2 + width * 50257) * tokens
    attention = 12 * 2 * tokens**2 * width
    assert model("gpt-2").flops_per_sample == 3 * 2 * (matrices + attention)


def test_flops_of_an_lstm_by_hand() -> None:
    layers = 2 * 4 * 200 * (200 + 200)
    assert model("lstm-lm").flops_per_sample == 3 * 2 * 35 * (layers + 200 * 33278)


def test_a_convolution_by_hand() -> None:
    net = Network()
    x = net.image(3, 5).conv("conv", 4, 3, stride=2, padding=1, bias=True)
    assert (x.channels, x.grid) == (4, (3, 3))
    assert net.tensors == {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,)}
    assert net.layers == [Layer(flops=2 * 4 * 9 * 27, moved=75 + 36)]


@pytest.mark.parametrize(("ceil", "side"), [(False, 2), (True, 3)])
def test_pooling_may_reach_beyond_the_edge(ceil: bool, side: int) -> None:
    assert Network().image(1, 6).pool(3, 2, ceil=ceil).grid == (side, side)


def test_shared_tensors_are_counted_once() -> None:
    net = Network()
    x = net.tokens("table.weight", 100, 7, 8)
    x.linear("table", 100, bias=False)
    assert net.tensors == {"table.weight": (100, 8)}
    with pytest.raises(AssertionError, match=r"table\.weight is \(100, 8\), and cannot be \(50, 8\)"):
        x.linear("table", 50, bias=False)


def test_signals_join_only_where_they_match() -> None:
    net = Network()
    a, b, c = net.image(2, 4), net.image(3, 4), net.image(2, 5)
    assert concatenate(a, b).channels == 5
    with pytest.raises(AssertionError, match="grids differ"):
        concatenate(a, c)
    with pytest.raises(AssertionError, match="differ in shape"):
        a.plus(b)


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_a_size(name: str) -> None:
    assert all(math.prod(shape) >= 1 for shape in model(name).tensors.values())
