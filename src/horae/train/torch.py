"""The adapter for PyTorch, `horae_train.torch`, under Horae's name."""

from importlib import import_module
from typing import TYPE_CHECKING

from horae.train import package

if TYPE_CHECKING:
    from horae.train.horae_train.torch import Run, State, Stateful, TrainingState
else:
    _adapter = import_module(f"{package.__name__}.torch")
    Run, State, Stateful, TrainingState = _adapter.Run, _adapter.State, _adapter.Stateful, _adapter.TrainingState

__all__ = ["Run", "State", "Stateful", "TrainingState"]
