"""Policies written outside of Horae: what they wish is checked before anything is placed by it.

Placement is compiled code without bounds checks, so a row that does not exist must not reach it.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from horae.core.arrays import Ints
from horae.core.errors import UserError
from horae.core.memory import Memory, MemorySpec
from horae.core.policy import Policy
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.pin_checks import problem_of_pins
from horae.policies.settings import build

#: Folder of Horae's own modules.
_HERE = __file__.rpartition("/policies/")[0]

#: Columns of wishes, and their types.
_INTS = ("job", "gpu_type", "gpus_min", "gpus_max", "partner")
_FLOATS = ("key", "wake_if_stopped_s", "unkept_key", "key_per_s")
#: What a policy may offer beside `plan`; see `horae.core.policy`.
_EXTRAS = (
    "check",
    "relaxed",
    "counters",
    "space_sharing",
    "shares_gpus",
    "type_aware",
    "aware",
    "preempts",
    "chooses_machines",
)


class BadPolicy(UserError):
    """A policy from outside that cannot be used, or that fails."""


def is_built_in(policy: type[Any] | None) -> bool:
    """Whether a class is one of Horae's own policies."""
    return policy is not None and policy.__module__.startswith("horae.policies.")


def make_of(name: str, chosen: type[Any], settings: Mapping[str, str]) -> Policy:
    """The policy of a class with these settings. What goes wrong in a class from outside is one sentence."""
    if is_built_in(chosen):
        built: Policy = build(name, chosen, settings)
        return built
    try:
        return CheckedPolicy(name, build(name, chosen, settings))
    except UserError:
        raise
    except Exception as error:
        raise BadPolicy(f"Policy {name!r} cannot be made: {_in_words(error)}.") from error


def checked(name: str, policy: Any) -> Policy:
    """A policy that was made: as it is, if it is one of Horae's own; else with its wishes checked."""
    if isinstance(policy, type) or not callable(getattr(policy, "plan", None)):
        raise BadPolicy(f"{policy!r} is no policy: give a name, a class or an object with plan(self, now, memory).")
    if is_built_in(type(policy)):
        built: Policy = policy
        return built
    return CheckedPolicy(name, policy)


class CheckedPolicy:
    """A policy from outside. A mistake of its author is a `BadPolicy` that names the place."""

    def __init__(self, name: str, policy: Any) -> None:
        self.name, self.inner = name, policy
        self.memory: MemorySpec = getattr(policy, "memory", MemorySpec())
        if not isinstance(self.memory, MemorySpec):
            raise BadPolicy(f"Policy {name!r} has a memory that is no MemorySpec: declare it, or leave it out.")
        for extra in _EXTRAS:
            if hasattr(policy, extra):
                setattr(self, extra, getattr(policy, extra))

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """What the policy wishes, checked."""
        try:
            wishes = self.inner.plan(now, memory)
        except UserError:
            raise
        except Exception as error:
            raise BadPolicy(f"Policy {self.name!r} failed: {_in_words(error)}.") from error
        return self._checked(now, wishes)

    def _checked(self, now: Snapshot, wishes: object) -> Wishes:
        if not isinstance(wishes, Wishes):
            raise BadPolicy(f"Policy {self.name!r} returned {type(wishes).__name__}: plan must return horae.Wishes.")
        try:
            ints: dict[str, Any] = {
                name: np.asarray(getattr(wishes, name)).astype(np.int64, casting="same_kind") for name in _INTS
            }
            floats: dict[str, Any] = {name: np.asarray(getattr(wishes, name), np.float64) for name in _FLOATS}
            typed = wishes._replace(**ints, **floats)
            typed.check_lengths()
        except AssertionError as error:
            raise BadPolicy(f"Policy {self.name!r} returned wishes with {error}.") from error
        except (TypeError, ValueError) as error:
            raise BadPolicy(f"Policy {self.name!r} returned wishes that are no columns of numbers: {error}.") from error
        if problem := _problem(now, typed):
            raise BadPolicy(f"Policy {self.name!r} returned wishes that {problem}.")
        return typed


def _problem(now: Snapshot, wishes: Wishes) -> str:
    """The first thing wrong with wishes, or an empty string."""
    columns = [getattr(wishes, name) for name in (*_INTS, *_FLOATS)]
    if any(column.ndim != 1 for column in columns):
        return "have a column of more than one dimension: give one number a wish"
    if not _are_rows(now, wishes.job):
        return "name rows that no waiting or running job has: take them from now.rows"
    if not _are_rows(now, wishes.partner[wishes.partner != -1]):
        return "name partners that no waiting or running job is: take them from now.rows, or -1"
    if any(np.isnan(keys).any() for keys in (wishes.key, wishes.unkept_key, wishes.key_per_s)):
        return "have a key that is not a number (NaN): give every wish a number"
    if ((wishes.gpu_type < 0) | (wishes.gpu_type >= len(now.cluster.gpu_types))).any():
        return f"name a GPU type that is none of the cluster's {len(now.cluster.gpu_types)}: use their numbers, from 0"
    return _problem_of_counts(now, wishes) or problem_of_pins(now, wishes)


def _problem_of_counts(now: Snapshot, wishes: Wishes) -> str:
    if (wishes.gpus_min < 1).any() or (wishes.gpus_max < 1).any():
        return "ask for no GPUs: give at least 1 to every wish"
    if len(wishes.gpus_min) and len(wishes.gpus_max) and (wishes.gpus_min > wishes.gpus_max).any():
        return "have a gpus_min above gpus_max: correct them"
    if problem := _problem_of_nodes(now, wishes):
        return problem
    if not wishes.wake_s > now.now_s or (wishes.wake_if_stopped_s <= now.now_s).any():
        return f"ask to be woken at {wishes.wake_s:g}, and it is {now.now_s:g} already: name a later moment"
    return ""


def _problem_of_nodes(now: Snapshot, wishes: Wishes) -> str:
    """What is wrong with wishes for jobs that ask for a number of nodes: these have one GPU count, and never share."""
    nodes, gpus = now.table.nodes, now.table.gpus
    for column in (wishes.gpus_min, wishes.gpus_max):
        wrong = wishes.job[(nodes[wishes.job] > 0) & (gpus[wishes.job] != column)] if len(column) else column
        if len(wrong):
            job = now.table.specs[int(wrong[0])]
            return f"give job {job.id!r} another GPU count than {job.gpus}, and it asks for {job.nodes} nodes, alike"
    paired = np.flatnonzero(wishes.partner != -1)
    if (nodes[wishes.job[paired]] > 0).any() or (nodes[wishes.partner[paired]] > 0).any():
        return "pair jobs that ask for a number of nodes, which never share GPUs: take those with job_kind above -1"
    return ""


def _are_rows(now: Snapshot, rows: Ints) -> bool:
    return bool(np.isin(rows, now.rows).all())


def _in_words(error: Exception) -> str:
    """What went wrong, and where in the author's file."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    # The mistake is most often in the author's own lines, even where a library found it.
    own = [place for place in lines if "site-packages" not in place[0] and not place[0].startswith(_HERE)]
    where = f" (line {own[-1][1]} of {own[-1][0].rpartition('/')[2]})" if own else ""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}{f': {message}' if message else ''}{where}"
