"""A script for the tests: its model is the list of the steps it has done, in a file or a folder."""

import argparse
import json
import multiprocessing
import sys
import threading
import time
from pathlib import Path

from horae import train

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=100)
options.add_argument("--step-s", type=float, default=0.0)
options.add_argument("--every-s", type=float, default=60.0)
options.add_argument("--as-folder", action="store_true")
options.add_argument("--no-save", action="store_true")
options.add_argument("--worker", choices=("fork", "spawn", "forkserver"))
options.add_argument("--thread", action="store_true")
options.add_argument("--folder")
#: Makes a checkpoint large, so that writing it takes time.
options.add_argument("--padding", type=int, default=0)
chosen = options.parse_args()
done: list[int] = []


def save(path: Path) -> None:
    if chosen.as_folder:
        path.mkdir()
        (path / "deep").mkdir()
        path = path / "deep" / "steps"
    with path.open("w") as file:
        for part in (json.dumps(done), "\n", *(["x" * 1000] * chosen.padding), "end"):
            file.write(part)


def load(path: Path) -> None:
    text = (path / "deep" / "steps" if chosen.as_folder else path).read_text()
    assert text.endswith("end")
    done.extend(json.loads(text.splitlines()[0]))
    print("loaded", len(done), flush=True)


def train_all() -> None:
    for step in run:
        assert step == len(done), (step, len(done))
        print("step", step, flush=True)
        done.append(step)
        run.report(1 / (step + 1))
        time.sleep(chosen.step_s)
        assert worker is None or worker.is_alive()


# Workers that are not forked import this script again.
if __name__ == "__main__":
    functions = {} if chosen.no_save else {"save": save, "load": load}
    run = train.Run(chosen.steps, **functions, every_s=chosen.every_s, folder=chosen.folder)
    worker = None
    if chosen.worker:
        worker = multiprocessing.get_context(chosen.worker).Process(target=time.sleep, args=(60,))
        worker.start()
    if chosen.thread:
        thread = threading.Thread(target=train_all)
        thread.start()
        thread.join()
    else:
        train_all()
    if worker:
        worker.terminate()
        worker.join(10)
        print("worker", worker.exitcode)
    assert done == list(range(chosen.steps))
    print("all done", "numpy" in sys.modules)
