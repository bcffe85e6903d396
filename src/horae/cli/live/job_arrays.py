"""Job arrays and grids: many jobs from one job file, with {names} replaced by values."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from horae.core.errors import UserError, did_you_mean

#: Most jobs in one request.
MOST_JOBS = 1000
#: {name}, unless a dollar sign before it makes it a shell variable; {{name}} means a literal {name}.
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|(?<!\$)\{([A-Za-z_]\w*)\}")
_NAME = re.compile(r"[A-Za-z_]\w*")

#: Values of one job of an array or grid, by name.
Trial = Mapping[str, str]


class BadGrid(UserError):
    """A wrong --array or --grid."""


def trials(array: int | None, grid: Sequence[str]) -> list[Trial]:
    """Values of each job: none for a single job, the index for an array, a combination of values for a grid."""
    if array is not None and grid:
        raise BadGrid("Use --array or --grid, not both: a grid also has {index}.")
    if array is not None:
        return _limited([{"index": str(number)} for number in range(array)])
    axes = dict(_axes(grid))
    if not axes:
        return [{}]
    total = 1
    for values in axes.values():
        total *= len(values)
    _check_total(total)
    combinations = itertools.product(*axes.values())
    return [{**dict(zip(axes, values, strict=True)), "index": str(n)} for n, values in enumerate(combinations)]


def _limited(made: list[Trial]) -> list[Trial]:
    _check_total(len(made))
    return made


def _check_total(total: int) -> None:
    if total > MOST_JOBS:
        raise BadGrid(f"That makes {total:,} jobs, but at most {MOST_JOBS:,} can be submitted at once: split it.")


def _axes(grid: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    seen = set[str]()
    for word in grid:
        name, equals, text = word.partition("=")
        values = text.split(",")
        if not equals or not _NAME.fullmatch(name) or not all(values):
            raise BadGrid(f"--grid {word!r} is not of the form NAME=VALUE,VALUE; write it like --grid lr=0.1,0.01.")
        if name in seen or name == "index":
            raise BadGrid(
                f"--grid names {name!r} twice; give it once." if name in seen else "{index} is set by itself."
            )
        if len(set(values)) < len(values):
            raise BadGrid(f"--grid {word!r} has the same value twice: give each value once.")
        seen.add(name)
        yield name, values


def expand(job: Mapping[str, Any], made: Sequence[Trial]) -> list[dict[str, Any]]:
    """One job for each trial. In a single job, braces are not replaced."""
    if list(made) == [{}]:
        return [dict(job)]
    used = set[str]()
    jobs = [_filled(job, trial, used) for trial in made]
    unused = [name for name in made[0] if name not in used and name != "index"]
    if unused:
        raise BadGrid(f"--grid {unused[0]} is not used: write {{{unused[0]}}} where its value belongs.")
    _check_checkpoints(jobs)
    return jobs


def _filled(job: Mapping[str, Any], trial: Trial, used: set[str]) -> dict[str, Any]:
    """A job with the values of a trial filled in. In shell text the values are quoted."""

    def plain(text: Any) -> Any:
        return _substitute(text, trial, used, str)

    def quoted(text: Any) -> Any:
        return _substitute(text, trial, used, shlex.quote)

    filled = dict(job)
    for key, change in {"name": plain, "workdir": plain, "setup": quoted}.items():
        if key in job:
            filled[key] = change(job[key])
    run = job.get("run")
    filled["run"] = [plain(word) for word in run] if isinstance(run, list) else quoted(run)
    if isinstance(job.get("envs"), Mapping):
        filled["envs"] = {name: plain(value) for name, value in job["envs"].items()}
    if isinstance(job.get("checkpoint"), Mapping) and "dir" in job["checkpoint"]:
        filled["checkpoint"] = {**job["checkpoint"], "dir": plain(job["checkpoint"]["dir"])}
    if isinstance(job.get("resources"), Mapping) and "image" in job["resources"]:
        filled["resources"] = {**job["resources"], "image": plain(job["resources"]["image"])}
    return filled


def _substitute(text: Any, trial: Trial, used: set[str], write: Callable[[str], str]) -> Any:
    if not isinstance(text, str):
        return text

    def value(found: re.Match[str]) -> str:
        literal, name = found[1], found[2]
        if literal:
            return f"{{{literal}}}"
        if name not in trial:
            raise BadGrid(
                f"{{{name}}} is not defined.{did_you_mean(name, trial)} "
                f"Defined are {', '.join(f'{{{known}}}' for known in trial)}; write {{{{{name}}}}} for literal braces."
            )
        used.add(name)
        return write(trial[name])

    return _PLACEHOLDER.sub(value, text)


def _check_checkpoints(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Refuse trials that share a checkpoint folder, since they would overwrite each other."""
    folders = [job["checkpoint"].get("dir") for job in jobs if isinstance(job.get("checkpoint"), Mapping)]
    if any(folders) and len(set(folders)) < len(jobs):
        raise BadGrid("All jobs would save to the same checkpoint.dir: put {index} into it, or leave it out.")
