"""How a service goes on with a policy from outside that fails, and with one that cannot be created."""

from __future__ import annotations

import logging

import numpy as np

from horae.core.errors import UserError
from horae.core.memory import Memory, MemorySpec
from horae.core.reasons import Reason
from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes
from horae.policies.outside import CheckedPolicy

#: A policy from outside that failed is asked again after this long, even if nothing happens.
_RETRY_S = 60.0
_NO_ROWS = np.empty(0, np.int64)
_LOG = logging.getLogger(__name__)


class MissingPolicy:
    """Stands in for a policy that cannot be created: its file is gone or changed, or it is not installed here.

    Its recorded decisions are applied without it, so a service does not need a policy that it no longer uses, and
    the journal of another machine can be read.
    """

    def __init__(self, why: UserError) -> None:
        self.why, self.memory = why, MemorySpec()

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """Raise the error with which the policy could not be created."""
        raise self.why


class SteadyPolicy(CheckedPolicy):
    """A policy from outside in a live service. While it fails, jobs keep their GPUs, and no other job starts."""

    #: What is wrong with the policy; empty while all is well.
    trouble = ""

    def plan(self, now: Snapshot, memory: Memory) -> Wishes:
        """What the policy wishes, or nothing; it is asked again at the next event, or after a minute."""
        try:
            wishes = super().plan(now, memory)
        except UserError as error:
            _LOG.warning("%s No job is started or stopped until the policy answers.", error, exc_info=error.__cause__)
            self.trouble = str(error)
            return Wishes(_NO_ROWS, waiting=Reason.NOT_YET_CONSIDERED, wake_s=now.now_s + _RETRY_S)
        self.trouble = ""
        return wishes
