"""The package `horae_train` under Horae's name: what a training script imports. It needs the standard library only.

from horae import train

run = train.Run(total=1000, save=save, load=load)
for step in run:
    loss = ...
    run.report(loss)

docs/design/train.md says why there are two names, and which files each distribution owns.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from horae import __version__


def _find_package() -> ModuleType:
    """The installed `horae_train` if it has Horae's version; otherwise Horae's own copy of it."""
    # The import also succeeds for an empty folder of this name, which has no version.
    with suppress(ModuleNotFoundError):
        installed = import_module("horae_train")
        if getattr(installed, "__version__", None) == __version__:
            return installed
    return import_module("horae.train.horae_train")


#: The package that everything here is taken from.
package = _find_package()

if TYPE_CHECKING:
    from horae.train import torch as torch
    from horae.train.horae_train import STOPPED, Profile, Run, profile, skew
else:
    STOPPED, Profile, Run = package.STOPPED, package.Profile, package.Run
    profile, skew = package.profile, package.skew

__all__ = ["STOPPED", "Profile", "Run", "profile", "skew"]


def __getattr__(name: str) -> object:
    """Import the adapter for PyTorch when `train.torch` is first used, so that other scripts do without PyTorch."""
    if name != "torch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("horae.train.torch")
