"""Samples of total service from a file: the one thing outside that a policy can be told to look at.

It is read when a policy is built. Planning reads nothing.
"""

from __future__ import annotations

import csv
import math

import numpy as np
from numpy.typing import NDArray

from horae.policies.settings import BadSetting

#: The column to take where there are several; `horae simulate --jobs-csv` writes one of this name.
_COLUMN = "gpu_seconds"


def read_samples(path: str) -> NDArray[np.float64]:
    """GPU-seconds that jobs took in all, from a CSV file of one column or with one called gpu_seconds."""
    lines = _lines(path)
    width = len(lines[0]) if lines else 0
    if width > 1 and _COLUMN not in lines[0]:
        raise BadSetting(f"samples={path} has {width} columns: name one of them {_COLUMN}, or leave only one.")
    column = lines[0].index(_COLUMN) if width > 1 else 0
    has_title = bool(lines) and math.isnan(_number(lines[0], column))
    samples = np.array([_number(line, column) for line in lines[has_title:]])
    bad = np.flatnonzero(~(samples > 0) | np.isinf(samples))
    if len(bad):
        line = ",".join(lines[has_title:][bad[0]])
        raise BadSetting(f"samples={path} holds {line!r}, which gives no GPU-seconds above 0: correct it.")
    if len(samples) == 0:
        raise BadSetting(f"samples={path} holds no numbers: write the GPU-seconds of one job on each line.")
    return samples


def _lines(path: str) -> list[list[str]]:
    try:
        # A spreadsheet may begin its file with a mark of the byte order; a quote that never ends is a mistake.
        text = np.fromfile(path, np.uint8).tobytes().decode("utf-8-sig")
        return [line for line in csv.reader(text.splitlines(), strict=True) if line]
    except (OSError, UnicodeDecodeError):
        raise BadSetting(f"samples={path} is not a text file that can be read: name a CSV file.") from None
    except csv.Error as error:
        raise BadSetting(f"samples={path} is not a CSV file ({error}): correct it.") from None


def _number(line: list[str], column: int) -> float:
    """The number in a column, or not a number."""
    try:
        return float(line[column])
    except (ValueError, IndexError):
        return math.nan
