"""The progress of `Trainer`: a bar on a terminal or in a notebook, otherwise a line every ten seconds; a line for each
evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from .scalars import numbers

_LINE_SECONDS = 10.0  # from line to line
_LINE = "{desc}: {percentage:3.0f}% {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
_LINE_WITHOUT_TOTAL = "{desc}: {n_fmt} [{elapsed}, {rate_fmt}{postfix}]"


def with_progress(
    each: Iterator[dict[str, Any]], name: str, total: int | None, size: int, shown: bool, loss: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """Yields the results of steps. Shows the number of steps, and the mean of the last losses."""
    if not shown:
        yield from each
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:  # training needs no bar
        yield from each
        return
    options: dict[str, Any] = {}
    # tqdm.auto imports tqdm.notebook, and with it ipywidgets, only in a notebook.
    notebook = sys.modules.get("tqdm.notebook")
    is_widget = notebook is not None and issubclass(tqdm, notebook.tqdm_notebook)
    if not sys.stderr.isatty() and not is_widget:
        line = _LINE if total is not None else _LINE_WITHOUT_TOTAL
        options = {"file": _Lines(sys.stderr), "mininterval": _LINE_SECONDS, "bar_format": line}
    with tqdm(each, desc=name, unit=" samples", unit_scale=size, total=total, **options) as progress:
        for result in progress:
            yield result
            progress.set_postfix(loss=f"{loss():.4f}", refresh=False)


def show_results(name: str, results: Mapping[str, Any], shown: bool) -> None:
    """Prints a line with the numbers of an evaluation."""
    if shown:
        told = ", ".join(f"{key} {value:.4f}" for key, value in numbers(results).items())
        print(f"{name}: {told}", file=sys.stderr)


class _Lines:
    """A file for tqdm, which redraws its bar. Each drawing becomes a line, unless it equals the previous one."""

    def __init__(self, to: TextIO) -> None:
        self._to, self._last = to, ""

    def write(self, drawn: str) -> None:
        line = drawn.strip("\r\n ")
        if line and line != self._last:
            self._to.write(line + "\n")
            self._last = line

    def flush(self) -> None:
        self._to.flush()
