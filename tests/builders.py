"""The builders of `horae.testing`, under the name by which tests know them."""

from horae.testing.builders import Cell, Script, cluster, ends, job, run, times

__all__ = ["Cell", "Script", "cluster", "ends", "job", "run", "times"]
