"""A job that costs nothing: each step is a sleep. It saves at the notice and goes on from there.

It imports nothing that takes long, so that it is up soon.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from horae import train


def main() -> None:
    """Sleep to the end, or until notice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-ms", type=float, required=True, help="milliseconds of a step at speed 1")
    parser.add_argument("--speed", required=True, help="speed on each GPU type, such as v100=1,k80=0.4")
    chosen = parser.parse_args()
    speeds = dict(part.split("=") for part in chosen.speed.split(","))
    step_s = chosen.step_ms / 1000 / float(speeds[os.environ["HORAE_GPU_TYPE"]])
    # The number of the step is all there is to save, and `Run` keeps that itself.
    for _ in train.Run(chosen.steps, Path.touch, Path.exists):
        time.sleep(step_s)


if __name__ == "__main__":
    main()
