"""A progress bar for whoever waits at a terminal, and for nobody else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from horae.cli.output import Output

#: Told how much of the whole is done.
Advance = Callable[[float, float], None]


@contextmanager
def progress_bar(label: str, output: Output) -> Iterator[Advance]:
    """Yield a function that moves a bar on stderr; silent unless a person looks on and wants a table or CSV."""
    if output is Output.JSON or not sys.stderr.isatty():
        yield lambda done, whole: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)
