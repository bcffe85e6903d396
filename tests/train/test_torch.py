"""Real PyTorch models have the tensors, and so the skew, that the catalogue says."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from horae.train import profile
from horae.workload.catalogue import model

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytestmark = pytest.mark.long

#: Names in torchvision, and what its classes want to hear.
VISION: dict[str, tuple[str, dict[str, Any]]] = {
    "alexnet": ("alexnet", {}),
    "vgg-11": ("vgg11", {}),
    "vgg-16": ("vgg16", {}),
    "vgg-19": ("vgg19", {}),
    "resnet-18": ("resnet18", {}),
    "resnet-50": ("resnet50", {}),
    "resnet-101": ("resnet101", {}),
    "resnet-152": ("resnet152", {}),
    "inception-v3": ("inception_v3", {"aux_logits": True, "init_weights": False}),
}
#: Heads, layers and width of the language models.
BERT = {"bert-base": (12, 12, 768), "bert-large": (16, 24, 1024)}
GPT2 = {
    "gpt-2": (12, 12, 768),
    "gpt-2-medium": (16, 24, 1024),
    "gpt-2-large": (20, 36, 1280),
    "gpt-2-xl": (25, 48, 1600),
}


def without_memory(make: Callable[[], Any]) -> Any:
    """A module that has shapes and no numbers, so that the largest is made at once."""
    with torch.device("meta"):
        return make()


def assert_the_same(module: Any, name: str) -> None:
    """The module has the tensor sizes of the catalogue's model, and PyTorch's skew is the catalogue's."""
    found = Counter(parameter.numel() for parameter in module.parameters())
    assert found == Counter(model(name).sizes.values())
    assert profile(module).skew == model(name).skew


@pytest.mark.parametrize("name", VISION)
def test_torchvision(name: str) -> None:
    models = pytest.importorskip("torchvision.models", reason="needs torchvision: pip install torchvision")
    function, settings = VISION[name]
    module = without_memory(lambda: getattr(models, function)(weights=None, **settings))
    assert {key: tuple(one.shape) for key, one in module.named_parameters()} == model(name).tensors
    assert_the_same(module, name)


def test_torchvision_vit() -> None:
    models = pytest.importorskip("torchvision.models", reason="needs torchvision: pip install torchvision")
    assert_the_same(without_memory(lambda: models.vit_b_16(weights=None)), "vit-b-16")


@pytest.mark.parametrize("name", BERT)
def test_bert(name: str) -> None:
    library = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    heads, layers, width = BERT[name]
    config = library.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width
    )
    assert_the_same(without_memory(lambda: library.BertModel(config)), name)


@pytest.mark.parametrize("name", GPT2)
def test_gpt2(name: str) -> None:
    library = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    heads, layers, width = GPT2[name]
    module = without_memory(
        lambda: library.GPT2LMHeadModel(library.GPT2Config(n_embd=width, n_layer=layers, n_head=heads))
    )
    # Without numbers there is nothing to share, so the tie between input and output is made here.
    module.lm_head.weight = module.transformer.wte.weight
    assert_the_same(module, name)


def test_the_language_model_of_the_examples() -> None:
    def make() -> Any:
        parts = {
            "encoder": torch.nn.Embedding(33278, 200),
            "rnn": torch.nn.LSTM(200, 200, 2),
            "decoder": torch.nn.Linear(200, 33278),
        }
        return torch.nn.ModuleDict(parts)

    module = without_memory(make)
    assert {key: tuple(one.shape) for key, one in module.named_parameters()} == model("lstm-lm").tensors
    assert_the_same(module, "lstm-lm")
