"""What a training script imports: light, the standard library only.

from horae import train

run = train.Run(total=1000, save=save, load=load)
for step in run:
    loss = ...
    run.report(loss)
"""

from typing import TYPE_CHECKING

from horae.train.run import STOPPED, Run
from horae.train.skew import Profile, profile, skew

if TYPE_CHECKING:
    from horae.train import torch as torch

__all__ = ["STOPPED", "Profile", "Run", "profile", "skew"]


def __getattr__(name: str) -> object:
    """`train.torch` without an import of its own: PyTorch is loaded only by those who ask for it."""
    if name != "torch":
        raise AttributeError(f"module 'horae.train' has no attribute {name!r}")
    from importlib import import_module

    return import_module("horae.train.torch")
