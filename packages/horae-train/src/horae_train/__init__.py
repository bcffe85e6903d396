"""What a training script imports to survive preemption. It needs the standard library only.

import horae_train as train

run = train.Run(total=1000, save=save, load=load)
for step in run:
    loss = ...
    run.report(loss)

Horae offers the same objects as `horae.train`.
"""

from typing import TYPE_CHECKING

# Imports are relative: Horae carries a copy of this package under another name.
from .run import STOPPED, Run
from .skew import Profile, profile, skew

if TYPE_CHECKING:
    from . import torch as torch

__all__ = ["STOPPED", "Profile", "Run", "profile", "skew"]
#: The same as Horae's own version, which a test compares.
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import the adapter for PyTorch when `train.torch` is first used, so that other scripts do without PyTorch."""
    if name != "torch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.torch")
