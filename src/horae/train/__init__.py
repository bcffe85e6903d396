"""What a training script imports: light, the standard library only.

from horae import train

run = train.Run(total=1000, save=save, load=load)
for step in run:
    loss = ...
    run.report(loss)
"""

from types import ModuleType

from horae.train.run import STOPPED, Run
from horae.train.skew import Profile, profile, skew

__all__ = ["STOPPED", "Profile", "Run", "profile", "skew"]


def __getattr__(name: str) -> ModuleType:
    """`train.torch` without an import of its own; PyTorch is loaded only by those who say so."""
    if name != "torch":
        raise AttributeError(f"module 'horae.train' has no attribute {name!r}")
    import importlib

    return importlib.import_module("horae.train.torch")
