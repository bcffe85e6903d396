"""Settings that name a file of numbers: the file is read here, and the policy gets the numbers.

Policies are pure. A service stores the numbers with the other settings, so that it needs the file only once.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from typing import Any

from horae.policies import POLICIES
from horae.policies.settings import BadSetting, file_columns


def with_files(policy: str | type[Any], settings: Mapping[str, str]) -> dict[str, str]:
    """Settings with the numbers of the files that they name in place of the files' names."""
    chosen = POLICIES.get(policy) if isinstance(policy, str) else policy
    columns = file_columns(chosen) if chosen else {}
    return {key: _numbers(key, text, columns.get(key.replace("_", "-"))) for key, text in settings.items()}


def _numbers(key: str, text: str, column: tuple[str, str] | None) -> str:
    """A value that is no file stays: the default, which is a word, and numbers."""
    if column is None or text.lower() == column[1] or not math.isnan(_number(text.split(","), 0)):
        return text
    return ",".join(repr(number) for number in read_column(key, text, column[0]))


def read_column(key: str, path: str, name: str) -> list[float]:
    """Numbers above 0 from a CSV file of one column, or with a column of a name."""
    lines = _lines(key, path)
    width = len(lines[0]) if lines else 0
    if width > 1 and name not in lines[0]:
        raise BadSetting(f"{key}={path} has {width} columns: name one of them {name}, or leave only one.")
    column = lines[0].index(name) if width > 1 else 0
    has_title = bool(lines) and math.isnan(_number(lines[0], column))
    rows = lines[has_title:]
    numbers = [_number(row, column) for row in rows]
    bad = next((row for row, number in zip(rows, numbers, strict=True) if not 0 < number < math.inf), None)
    if bad is not None:
        raise BadSetting(f"{key}={path} holds {','.join(bad)!r}, which gives no GPU-seconds above 0: correct it.")
    if not numbers:
        raise BadSetting(f"{key}={path} holds no numbers: write the GPU-seconds of one job on each line.")
    return numbers


def _lines(key: str, path: str) -> list[list[str]]:
    try:
        # A spreadsheet may begin its file with a mark of the byte order; a quote that never ends is a mistake.
        with open(path, encoding="utf-8-sig", newline="") as file:  # noqa: PTH123, a text that is no path is told below
            return [line for line in csv.reader(file.read().splitlines(), strict=True) if line]
    except (OSError, ValueError):
        raise BadSetting(f"{key}={path} is not a text file that can be read: name a CSV file.") from None
    except csv.Error as error:
        raise BadSetting(f"{key}={path} is not a CSV file ({error}): correct it.") from None


def _number(line: list[str], column: int) -> float:
    """The number in a column, or not a number."""
    try:
        return float(line[column])
    except (ValueError, IndexError):
        return math.nan
