"""The adapter for PyTorch: it saves the state of the parts you name, and of every random generator.

    import horae_train as train

    run = train.torch.Run(total=1000, model=model, optimizer=optimizer, scheduler=scheduler)
    for step in run:
        loss = ...
        run.report(loss)

It works in a single process and in several (`torchrun`, or a process for each GPU) once the process
group is initialised: all processes stop after the same step, and rank 0 saves. A resumed run ends
with the weights of an uninterrupted run, to the last bit. All processes must see the same folder.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from .run import Run as PlainRun


class Stateful(Protocol):
    """A model, an optimizer, a scheduler, a scaler: any object with a state to save."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore the state."""


class Run(PlainRun):
    """A run that saves the parts given as keywords, such as model and optimizer; otherwise like the plain `Run`."""

    def __init__(
        self, total: int, *, every_s: float = 60.0, folder: Path | str | None = None, **parts: Stateful
    ) -> None:
        if not parts:
            raise ValueError("name what is to be saved, such as Run(total, model=model, optimizer=optimizer)")
        state = TrainingState(parts)
        super().__init__(
            total,
            state.save,
            state.load,
            every_s=every_s,
            folder=folder,
            agree=state.agree,
            gather=state.gather,
            rank=state.rank if state.is_distributed else None,
        )
        self._state = state

    def __iter__(self) -> Iterator[int]:
        try:
            yield from super().__iter__()
        except SystemExit:
            self._state.close()
            raise


class TrainingState:
    """The parts of a training script and the random generators of all its processes."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = {name: _unwrapped(part) for name, part in parts.items()}
        self.is_distributed = distributed.is_available() and distributed.is_initialized()
        if not self.is_distributed and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise RuntimeError(
                f"this is one of {os.environ['WORLD_SIZE']} processes: call torch.distributed.init_process_group() "
                "before Run(), so that all of them stop after the same step"
            )
        if sharded := [name for name, part in parts.items() if self.is_distributed and _is_sharded(part)]:
            raise ValueError(
                f"{sharded[0]} is spread over the processes (FSDP or tensor parallel), and rank 0 would save its own "
                "shard alone: use the plain Run, not that of PyTorch, and bring the shards together in its gather()"
            )
        self.rank = distributed.get_rank() if self.is_distributed else 0
        # A separate group on the CPU: agreeing neither waits for a GPU nor mixes with the gradients.
        self._group = distributed.new_group(backend="gloo") if self.is_distributed else None
        self._generators: list[dict[str, Any]] = []

    def agree(self, flag: bool) -> bool:
        """Whether any process raised its flag."""
        if not self.is_distributed:
            return flag
        flags = torch.tensor([int(flag)])
        distributed.all_reduce(flags, op=distributed.ReduceOp.MAX, group=self._group)
        return bool(flags.item())

    def close(self) -> None:
        """Close the process group: its threads can abort a process that exits while the group is open."""
        if self.is_distributed:
            distributed.destroy_process_group()

    def gather(self) -> None:
        """Collect the random generators' states of all processes: each process draws its own dropout."""
        self._generators = [_generators()]
        if self.is_distributed:
            self._generators *= distributed.get_world_size()
            distributed.all_gather_object(self._generators, _generators(), group=self._group)

    def save(self, path: Path) -> None:
        """Write all states to a single file."""
        states = {name: part.state_dict() for name, part in self._parts.items()}
        torch.save({"parts": states, "generators": self._generators}, path)

    def load(self, path: Path) -> None:
        """Restore all states. A rank that did not exist when the file was written keeps its own generators."""
        # Tensors are loaded to the CPU, and each part copies them to its own device. The script wrote the file itself,
        # and a part's state may hold more than weights, such as a learning rate that is a NumPy number.
        saved = torch.load(path, map_location="cpu", weights_only=False)
        for name, part in self._parts.items():
            if name not in saved["parts"]:
                raise KeyError(f"the checkpoint holds {', '.join(saved['parts'])}, and no {name!r}")
            part.load_state_dict(saved["parts"][name])
        if self.rank < len(saved["generators"]):
            _set_generators(saved["generators"][self.rank])


#: The earlier name, for scripts that import it.
State = TrainingState


def _unwrapped(part: Stateful) -> Stateful:
    """The model inside DistributedDataParallel, so that a checkpoint fits with and without the wrapper."""
    inner: Stateful = part.module if isinstance(part, DistributedDataParallel) else part
    return inner


def _is_sharded(part: Stateful) -> bool:
    """Whether each process has only a shard. Recognised by name and attribute: importing the classes takes seconds."""
    if not isinstance(part, torch.nn.Module):
        return False
    wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in part.modules())
    return wrapped or any(hasattr(tensor, "full_tensor") for tensor in part.parameters())


def _generators() -> dict[str, Any]:
    """The state of every random generator of this process."""
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def _set_generators(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    for device, state in enumerate(states.get("cuda", [])[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])
