"""Runs of PyTorch scripts: what is saved is the state of the parts you name, and of every random generator.

    from horae import train

    run = train.torch.Run(total=1000, model=model, optimizer=optimizer, scheduler=scheduler)
    for step in run:
        loss = ...
        run.report(loss)

Works alike in one process and in many (`torchrun`, or one for each GPU), once the process group is
initialised: all stop after the same step, rank 0 saves, and a resumed run has the weights of one
that was never stopped, to the last bit. All processes must see the same checkpoint folder.
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

from horae.train.run import Run as PlainRun


class Stateful(Protocol):
    """A model, an optimizer, a scheduler, a scaler: anything with a state to save."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take a state."""


class Run(PlainRun):
    """A run over the parts named as keywords, such as model and optimizer; else like `horae.train.Run`."""

    def __init__(
        self, total: int, *, every_s: float = 60.0, folder: Path | str | None = None, **parts: Stateful
    ) -> None:
        if not parts:
            raise ValueError("name what is to be saved, such as Run(total, model=model, optimizer=optimizer)")
        state = State(parts)
        super().__init__(
            total,
            state.save,
            state.load,
            every_s=every_s,
            folder=folder,
            agree=state.agree,
            gather=state.gather,
            rank=state.rank if state.together else None,
        )
        self._state = state

    def __iter__(self) -> Iterator[int]:
        try:
            yield from super().__iter__()
        except SystemExit:
            self._state.part()
            raise


class State:
    """The parts of a training script and the random generators of all its processes."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = {name: _inside(part) for name, part in parts.items()}
        self.together = distributed.is_available() and distributed.is_initialized()
        if not self.together and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise RuntimeError(
                f"this is one of {os.environ['WORLD_SIZE']} processes: call torch.distributed.init_process_group() "
                "before Run(), so that all of them stop after the same step"
            )
        if sharded := [name for name, part in parts.items() if self.together and _is_sharded(part)]:
            raise ValueError(
                f"{sharded[0]} is spread over the processes (FSDP or tensor parallel), and rank 0 would save its own "
                "shard alone: use horae.train.Run, and bring the shards together in its gather()"
            )
        self.rank = distributed.get_rank() if self.together else 0
        # A group of our own, on the CPU: no question has to wait for a GPU, or meets the gradients on their way.
        self._group = distributed.new_group(backend="gloo") if self.together else None
        self._generators: list[dict[str, Any]] = []

    def agree(self, flag: bool) -> bool:
        """Whether any process raised its flag."""
        if not self.together:
            return flag
        raised = torch.tensor([int(flag)])
        distributed.all_reduce(raised, op=distributed.ReduceOp.MAX, group=self._group)
        return bool(raised.item())

    def part(self) -> None:
        """Take leave of the other processes: threads of a group that is still open can abort a process as it exits."""
        if self.together:
            distributed.destroy_process_group()

    def gather(self) -> None:
        """Bring the state of every process's generators together: dropout draws from each its own."""
        self._generators = [_generators()]
        if self.together:
            self._generators *= distributed.get_world_size()
            distributed.all_gather_object(self._generators, _generators(), group=self._group)

    def save(self, path: Path) -> None:
        """Write everything to one file."""
        states = {name: part.state_dict() for name, part in self._parts.items()}
        torch.save({"parts": states, "generators": self._generators}, path)

    def load(self, path: Path) -> None:
        """Take everything from it; a process that was not there when it was written keeps its own generators."""
        # Tensors go to the CPU first: each part copies them to where it lives. The file is the script's own, and what
        # a part has in its state is its own affair: NumPy's numbers, such as a rate, would not load as mere weights.
        found = torch.load(path, map_location="cpu", weights_only=False)
        for name, part in self._parts.items():
            if name not in found["parts"]:
                raise KeyError(f"the checkpoint holds {', '.join(found['parts'])}, and no {name!r}")
            part.load_state_dict(found["parts"][name])
        if self.rank < len(found["generators"]):
            _set_generators(found["generators"][self.rank])


def _inside(part: Stateful) -> Stateful:
    """The model itself, so that a checkpoint fits whether or not it is wrapped."""
    inner: Stateful = part.module if isinstance(part, DistributedDataParallel) else part
    return inner


def _is_sharded(part: Stateful) -> bool:
    """Whether no process has all of it. Known by their marks: to import the classes would take seconds."""
    if not isinstance(part, torch.nn.Module):
        return False
    wrapped = any(type(module).__name__ == "FullyShardedDataParallel" for module in part.modules())
    return wrapped or any(hasattr(tensor, "full_tensor") for tensor in part.parameters())


def _generators() -> dict[str, Any]:
    """The state of every generator of this process."""
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
