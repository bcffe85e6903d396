"""Trains a small network in NumPy, and survives preemption: the final loss is the same with and without.

python examples/train_numpy.py --steps 300 --folder build/checkpoint
horae submit --gpus 1 -- python examples/train_numpy.py --steps 300 --step-ms 20 --speed v100=1,k80=0.4
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from horae import train

INPUTS, CLASSES, BATCH = 20, 4, 64
MOMENTUM = 0.9

Array = npt.NDArray[np.float64]


class Network:
    """One hidden layer and a softmax, trained by momentum on points whose class a hidden network decides."""

    def __init__(self, hidden: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.teacher = self.rng.normal(size=(INPUTS, CLASSES))
        shapes = {"w1": (INPUTS, hidden), "b1": (hidden,), "w2": (hidden, CLASSES), "b2": (CLASSES,)}
        self.weights: dict[str, Array] = {name: self.rng.normal(0, 0.1, shape) for name, shape in shapes.items()}
        self.momentum: dict[str, Array] = {name: np.zeros(shape) for name, shape in shapes.items()}

    def step(self, lr: float) -> float:
        """One step on a fresh batch; the loss before it."""
        points, classes = self.batch()
        loss, gradients = self.gradients(points, classes)
        for name, gradient in gradients.items():
            self.momentum[name] = MOMENTUM * self.momentum[name] + gradient
            self.weights[name] -= lr * self.momentum[name]
        return loss

    def batch(self) -> tuple[Array, npt.NDArray[np.int64]]:
        """Points and their classes."""
        points = self.rng.normal(size=(BATCH, INPUTS))
        return points, np.argmax(np.tanh(points) @ self.teacher, axis=1)

    def gradients(self, points: Array, classes: npt.NDArray[np.int64]) -> tuple[float, dict[str, Array]]:
        """Cross entropy of a batch, and its gradient by every weight."""
        hidden = np.tanh(points @ self.weights["w1"] + self.weights["b1"])
        scores = hidden @ self.weights["w2"] + self.weights["b2"]
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        rows = np.arange(BATCH)
        loss = float(-np.log(shares[rows, classes]).mean())
        shares[rows, classes] -= 1
        error = shares / BATCH
        below = (error @ self.weights["w2"].T) * (1 - hidden**2)
        gradients = {"w1": points.T @ below, "b1": below.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
        return loss, gradients

    def save(self, path: Path) -> None:
        """Everything the next step depends on, in one file: weights, momentum and the generator."""
        state = {f"weight_{name}": value for name, value in self.weights.items()}
        state |= {f"momentum_{name}": value for name, value in self.momentum.items()}
        generator = json.dumps(self.rng.bit_generator.state)
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, generator=np.array(generator), **state)

    def load(self, path: Path) -> None:
        """All of it back."""
        with np.load(path, allow_pickle=False) as state:
            self.weights = {name: state[f"weight_{name}"] for name in self.weights}
            self.momentum = {name: state[f"momentum_{name}"] for name in self.momentum}
            self.rng.bit_generator.state = json.loads(str(state["generator"]))


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Train a small network in NumPy.")
    parser.add_argument("--steps", type=int, default=300, help="steps to train")
    parser.add_argument("--seed", type=int, default=0, help="decides the data and the first weights")
    parser.add_argument("--hidden", type=int, default=32, help="width of the hidden layer")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate")
    parser.add_argument("--step-ms", type=float, default=0, help="make a step take at least so long, at speed 1")
    parser.add_argument("--speed", type=speeds, default={}, help="speed of each GPU type, such as v100=1,k80=0.4")
    parser.add_argument("--every-s", type=float, default=60, help="seconds between checkpoints")
    parser.add_argument("--folder", help="where checkpoints go; Horae chooses one for its jobs")
    return parser.parse_args()


def speeds(text: str) -> dict[str, float]:
    """`v100=1,k80=0.4` as a table."""
    table = {name: float(value) for name, _, value in (part.partition("=") for part in text.split(","))}
    if not all(value > 0 for value in table.values()):
        raise ValueError("a speed is positive")
    return table


def step_seconds(chosen: Any) -> float:
    """How long a step takes on the GPU type this process was given."""
    return float(chosen.step_ms / 1000 / chosen.speed.get(os.environ.get("HORAE_GPU_TYPE", ""), 1))


def tell(loss: float, folder: str | None) -> None:
    """Print the final loss with all its digits, and leave it beside the checkpoint."""
    print(f"final loss {loss!r}")
    chosen = folder or os.environ.get("HORAE_CHECKPOINT_DIR")
    # Of several processes that train the same, one is enough.
    if chosen and int(os.environ.get("RANK") or 0) == 0:
        (Path(chosen) / "result.json").write_text(json.dumps({"loss": loss}) + "\n", encoding="utf-8")


def main() -> None:
    """Train to the end, or until notice."""
    chosen = options()
    network = Network(chosen.hidden, chosen.seed)
    run = train.Run(chosen.steps, network.save, network.load, every_s=chosen.every_s, folder=chosen.folder)
    for _ in run:
        began = time.monotonic()
        run.report(network.step(chosen.lr))
        time.sleep(max(0.0, step_seconds(chosen) - (time.monotonic() - began)))
    # On a batch of its own, so that a run that was stopped after its last step says the same.
    loss, _ = network.gradients(*network.batch())
    tell(loss, chosen.folder)


if __name__ == "__main__":
    main()
