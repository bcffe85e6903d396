"""Networks for texts and lists: transformers, the LSTM language model, the recommender."""

from __future__ import annotations

from horae.workload.networks.layers import Network, Signal

#: Heads are 64 channels wide in every transformer here; GPT-2 XL has 25 of them.
HEAD = 64


def bert(layers: int, width: int) -> Network:
    """BERT (Devlin et al. 2019): the encoder and the pooler that fine-tuning starts from, on 128 tokens."""
    net = Network()
    x = net.tokens("embeddings.word.weight", 30522, 128, width)
    x = x.plus(net.tokens("embeddings.position.weight", 512, 128, width))
    x = x.plus(net.tokens("embeddings.token_type.weight", 2, 128, width)).norm("embeddings.norm").pointwise()
    for layer in range(layers):
        name = f"encoder.{layer}"
        x = _attention(x, x, f"{name}.attention").plus(x).norm(f"{name}.norm1")
        x = _feed_forward(x, name).plus(x).norm(f"{name}.norm2")
    # The pooler looks at the first token alone.
    Signal(net, width, ()).linear("pooler", width).pointwise()
    return net


def gpt2(layers: int, width: int) -> Network:
    """GPT-2 (Radford et al. 2019) on 1,024 tokens; the output uses the table of tokens again."""
    net = Network()
    x = net.tokens("wte.weight", 50257, 1024, width)
    x = x.plus(net.tokens("wpe.weight", 1024, 1024, width)).pointwise()
    for layer in range(layers):
        name = f"h.{layer}"
        y = x.norm(f"{name}.ln_1").linear(f"{name}.attn.qkv", 3 * width)
        y = y.take(width).attend(y.take(2 * width), width // HEAD).linear(f"{name}.attn.proj", width)
        x = x.plus(y.pointwise())
        x = x.plus(_feed_forward(x.norm(f"{name}.ln_2"), f"{name}.mlp"))
    # Softmax reads and writes every probability.
    x.norm("ln_f").linear("wte", 50257, bias=False).pointwise()
    return net


def vit_b_16() -> Network:
    """ViT-B/16 (Dosovitskiy et al. 2021) on 224 x 224 pictures, 1,000 classes: 196 patches and the class token."""
    net = Network()
    patches = net.image(3, 224).conv("conv_proj", 768, 16, stride=16, bias=True)
    net.train("class_token", 1, 1, 768)
    net.train("pos_embedding", 1, patches.places + 1, 768)
    x = Signal(net, 768, (patches.places + 1,)).pointwise(2)
    for layer in range(12):
        name = f"encoder.{layer}"
        y = x.norm(f"{name}.ln_1").linear(f"{name}.in_proj", 3 * 768)
        x = x.plus(y.take(768).attend(y.take(2 * 768), 12).linear(f"{name}.out_proj", 768).pointwise())
        x = x.plus(_feed_forward(x.norm(f"{name}.ln_2"), f"{name}.mlp"))
    x.norm("ln").mean().linear("head", 1000)
    return net


def transformer_base() -> Network:
    """Transformer base (Vaswani et al. 2017), 37,000 tokens shared by both languages, sentences of 32 tokens."""
    net = Network()
    x = net.tokens("embedding.weight", 37000, 32, 512).pointwise(2)
    for layer in range(6):
        name = f"encoder.{layer}"
        x = _attention(x, x, f"{name}.self").plus(x).norm(f"{name}.norm1")
        x = _feed_forward(x, name).plus(x).norm(f"{name}.norm2")
    memory = x
    x = net.tokens("embedding.weight", 37000, 32, 512).pointwise(2)
    for layer in range(6):
        name = f"decoder.{layer}"
        x = _attention(x, x, f"{name}.self").plus(x).norm(f"{name}.norm1")
        x = _attention(x, memory, f"{name}.cross").plus(x).norm(f"{name}.norm2")
        x = _feed_forward(x, name).plus(x).norm(f"{name}.norm3")
    x.linear("embedding", 37000, bias=False).pointwise()
    return net


def _attention(x: Signal, memory: Signal, name: str) -> Signal:
    """Multi-head attention of a signal to a memory, with a matrix and a bias for each of its four products."""
    queries, keys = x.linear(f"{name}.query", x.channels), memory.linear(f"{name}.key", x.channels)
    memory.linear(f"{name}.value", x.channels)
    mixed = queries.attend(keys, x.channels // HEAD)
    return mixed.linear(f"{name}.out", x.channels).pointwise()


def _feed_forward(x: Signal, name: str) -> Signal:
    """Four times wider and back."""
    wide = x.linear(f"{name}.fc1", 4 * x.channels).pointwise()
    return wide.linear(f"{name}.fc2", x.channels).pointwise()


def lstm_lm() -> Network:
    """The LSTM language model of PyTorch's examples on WikiText-2: two layers of 200, 35 tokens."""
    net = Network()
    x = net.tokens("encoder.weight", 33278, 35, 200).pointwise()
    for layer in range(2):
        x = x.lstm("rnn", layer, 200).pointwise()
    x.linear("decoder", 33278).pointwise()
    return net


def mult_dae() -> Network:
    """Mult-DAE (Liang et al. 2018): from the 20,108 films of MovieLens-20M to themselves by a hidden layer of 200."""
    net = Network()
    x = net.values(20108).pointwise(2).linear("encoder", 200).pointwise()
    x.linear("decoder", 20108).pointwise()
    return net
