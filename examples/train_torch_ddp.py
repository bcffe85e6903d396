"""Trains a small network with PyTorch DDP, and survives preemption: the weights are the same to the last bit.

    torchrun --nproc-per-node 2 --signals-to-handle SIGTERM,SIGUSR1 examples/train_torch_ddp.py --folder build/ddp
    horae submit job.yaml      # with `processes: gpu`: Horae starts one process for each GPU itself

torchrun keeps its workers out of its own process group: it must be told to pass on SIGUSR1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from horae import train

INPUTS, CLASSES, BATCH = 16, 4, 32


def network() -> nn.Module:
    """A network with dropout, so that the random generators matter."""
    return nn.Sequential(nn.Linear(INPUTS, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, CLASSES))


def batch(seed: int, step: int) -> tuple[Any, Any]:
    """The data of one step, different for each process. Chosen by the step, it needs no state of its own."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1_009 + distributed.get_rank())
    points = torch.randn(BATCH, INPUTS, generator=generator)
    return points, points.abs()[:, :CLASSES].argmax(dim=1)


def tell(model: nn.Module, loss: float, folder: str | None) -> None:
    """Print the loss and a digest of the weights; rank 0 leaves them beside the checkpoint."""
    if distributed.get_rank() != 0:
        return
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    digest = hashlib.sha256(weights).hexdigest()
    print(f"final loss {loss!r}, weights {digest}")
    chosen = folder or os.environ.get("HORAE_CHECKPOINT_DIR")
    if chosen:
        (Path(chosen) / "result.json").write_text(
            json.dumps({"loss": loss, "weights": digest}) + "\n", encoding="utf-8"
        )


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train a small network with PyTorch DDP on CPUs.")
    parser.add_argument("--steps", type=int, default=300, help="steps to train")
    parser.add_argument("--seed", type=int, default=0, help="decides the data, the first weights and the dropout")
    parser.add_argument("--step-ms", type=float, default=0, help="wait so long in every step")
    parser.add_argument("--every-s", type=float, default=60, help="seconds between checkpoints")
    parser.add_argument("--folder", help="where checkpoints go; Horae chooses one for its jobs")
    return parser.parse_args()


def main() -> None:
    """Train to the end, or until notice."""
    chosen = options()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(chosen.seed * 1_009 + distributed.get_rank())
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, chosen.steps)

    run = train.torch.Run(
        chosen.steps,
        every_s=chosen.every_s,
        folder=chosen.folder,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
    )
    for step in run:
        points, classes = batch(chosen.seed, step)
        loss = nn.functional.cross_entropy(model(points), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.report(loss)
        time.sleep(chosen.step_ms / 1000)

    model.eval()
    with torch.no_grad():
        points, classes = batch(chosen.seed, chosen.steps)
        final = float(nn.functional.cross_entropy(model.module(points), classes))
    tell(model.module, final, chosen.folder)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
