"""A picture of a training run: the loss of each step, and the results of evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real

import numpy as np

from .._base.errors import Error


def draw(path: str, first: int, losses: Sequence[float], results: Sequence[Mapping[str, float]]) -> None:
    """Writes the picture in the format of the file name's suffix.

    Args:
      first: the number of the step of losses[0].
      results: each with its `step`.

    Raises:
      Error: names the file if it cannot be written, or if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import (
            FigureCanvasAgg,
        )  # needs no screen, and does not change the backend of pyplot
        from matplotlib.figure import Figure
    except ImportError:
        raise Error(f"{path}: drawing needs the Python package matplotlib") from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    steps, window = first + np.arange(len(losses)), max(1, min(50, len(losses) // 10))
    axes.plot(steps, losses, color="0.8", linewidth=0.8, label="loss of a step")
    if len(losses):
        smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
        axes.plot(steps[window - 1 :], smooth, label=f"mean of {window} steps")
    axes.set(xlabel="step", ylabel="training loss (mean over the global batch)", ylim=(0, None))
    names = dict.fromkeys(name for result in results for name, value in result.items() if isinstance(value, Real))
    names = [name for name in names if name not in ("step", "epoch", "loss")]
    if names:
        right = axes.twinx()
        for i, name in enumerate(names, 1):
            points = [(result["step"], result[name]) for result in results if name in result]
            right.plot(*zip(*points, strict=True), marker=".", color=f"C{i}", linestyle="--", label=name)
        right.set(ylabel="validation", ylim=(0, None))
    figure.legend(loc="outside lower center", ncols=5)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise Error(f"{path}: {getattr(error, 'strerror', None) or error}") from None
