"""Shared code of the examples: options, and a run with progress bar, checkpoints and a picture of its losses.

Training does not need it: examples/mnist/train.py is complete without.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import lockstep as ls


def parser(description: str, *, epochs: int, batch: int, out: str) -> argparse.ArgumentParser:
    """Returns a parser with the options that all examples have."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    add = options.add_argument
    add("--model", metavar="FILE", help="an ONNX file to train, in place of the example's own network")
    add("--epochs", type=at_least(1), default=epochs, help="passes over the training set")
    add("--batch", type=at_least(1), default=batch, help="global batch: the ranks split it")
    add("--seed", type=at_least(0), default=0, help="seed of weights, batches and all other random numbers")
    add("--out", type=Path, default=Path(out), metavar="DIR", help="where results are written")
    add("--checkpoints", type=Path, metavar="DIR", help="folder for checkpoints of the run")
    add("--checkpoint-every", type=at_least(1), default=200, metavar="STEPS", help="steps between checkpoints")
    add("--resume", action="store_true", help="continue from the last checkpoint, on any number of ranks")
    return options


def at_least(low: int) -> Callable[[str], int]:
    """Returns an argparse type for whole numbers from `low` on."""

    def whole(text: str) -> int:
        if int(text) < low:
            raise argparse.ArgumentTypeError(f"{text} is not at least {low}")
        return int(text)

    return whole


def parse(options: argparse.ArgumentParser) -> argparse.Namespace:
    arguments = options.parse_args()
    if arguments.resume and arguments.checkpoints is None:
        options.error("argument --resume: needs --checkpoints")
    return arguments


def start(main: Callable[[], None]) -> None:
    """Calls main(). A user's mistake ends the program on all ranks, with its message and without a traceback."""
    logging.basicConfig(format="%(message)s")
    try:
        main()
    except (ls.Error, OSError, ValueError) as error:
        # The hook that Communicator.from_environment() has set informs the other ranks. Users need the message, not the
        # traceback.
        sys.tracebacklimit = 0
        raise error from None


def batches_in(samples: int, arguments: argparse.Namespace) -> int:
    """Returns the number of batches of an epoch. Samples that do not fill a batch are left out."""
    if samples < arguments.batch:
        raise ls.Error(f"argument --batch: {arguments.batch} is more than the {samples} samples of the training set")
    return samples // arguments.batch


def groups_of(model: ls.Graph, patterns: Iterable[str], optimizer: ls.optim.Optimizer) -> dict[str, ls.optim.Optimizer]:
    """Returns `groups` of `ls.train_step`: the optimizer for each pattern that matches a state of the model. Other
    patterns, which `train_step` would reject, are left out, as a file of --model may not have all states."""
    names = [state.name for state in model.states]
    return {pattern: optimizer for pattern in patterns if any(fnmatch.fnmatchcase(name, pattern) for name in names)}


class Run:
    """A training run. All ranks make one after compiling the step; it continues from a checkpoint if requested. Rank 0
    prints.

    Args:
      data: values that determine the samples of a step, such as their number. A continued run must have the same.
    """

    def __init__(
        self, exe: ls.Executable, world: ls.Communicator, arguments: argparse.Namespace, data: Mapping[str, int | str]
    ) -> None:
        self._exe, self._world, self._arguments = exe, world, arguments
        self._data = {"batch": arguments.batch, "seed": arguments.seed, **data}
        self._checkpoints = ls.Checkpoints(arguments.checkpoints) if arguments.checkpoints else None
        self._losses: list[float] = []
        self._results: list[dict[str, float]] = []
        if world.rank == 0:
            arguments.out.mkdir(parents=True, exist_ok=True)
        plural = "s" if exe.threads > 1 else ""
        self.print(f"ranks        {world.size} ({world.transport}), {exe.threads} thread{plural} each")
        self.print(f"data         {', '.join(f'{name} {value}' for name, value in self._data.items())}")
        self._restore()
        self._first, self._begin = exe.step, time.perf_counter()

    def _restore(self) -> None:
        if self._checkpoints is None:
            return
        last = self._checkpoints.latest()
        if not self._arguments.resume:
            if last is not None:
                raise ls.Error(f"{last} is of an earlier run: --resume continues it")
            return
        self._checkpoints.restore(self._exe, expected=self._data)
        if self._exe.step > 0:
            self.print(f"continues after step {self._exe.step}")

    def print(self, text: str) -> None:
        """Prints on rank 0 only, above the progress bar."""
        if self._world.rank == 0:
            tqdm.write(text)
            sys.stdout.flush()

    def epochs(self, batches: int) -> Iterator[tuple[int, int]]:
        """Yields the remaining epochs of `batches` batches each, and for each the number of its batches already
        done."""
        for epoch in range(self._exe.step // batches, self._arguments.epochs):
            yield epoch, self._exe.step - epoch * batches

    def progress(self, epoch: int, first: int, total: int, batches: Any) -> Iterator[tuple[np.ndarray, ...]]:
        """Yields the batches of an epoch, with a progress bar that begins at `first`."""
        name, size = f"epoch {epoch + 1}/{self._arguments.epochs}", self._arguments.batch
        bar = {"desc": name, "unit": " samples", "unit_scale": size, "initial": first, "total": total}
        with tqdm(batches, **bar, disable=self._world.rank != 0) as progress:
            for batch in progress:
                yield batch
                progress.set_postfix(loss=f"{np.mean(self._losses[-20:]):.4f}", refresh=False)

    def add(self, loss: Any) -> None:
        """Records the loss of the last step. Saves the run every --checkpoint-every steps."""
        self._losses.append(float(loss))
        if self._checkpoints is not None and self._exe.step % self._arguments.checkpoint_every == 0:
            self._checkpoints.save(self._exe, metadata=self._data, background=True)

    def evaluated(self, epoch: int, **results: float) -> None:
        """Records the results of an evaluation after this epoch."""
        self._results.append({"step": self._exe.step, **results})
        losses = self._losses[-(self._exe.step // (epoch + 1)) :]
        shown = {"loss": np.mean(losses)} if losses else {}
        self.print(f"epoch {epoch + 1:3}: " + ", ".join(f"{k} {v:.4f}" for k, v in {**shown, **results}.items()))

    def finish(self) -> None:
        """Saves the run, compares the replicas, writes the losses and results, and draws them."""
        seconds = time.perf_counter() - self._begin
        if self._checkpoints is not None:
            self._checkpoints.save(self._exe, metadata=self._data)
        self._exe.check_replicas()  # fails unless all ranks have the same bits
        if self._losses:
            samples = len(self._losses) * self._arguments.batch / seconds
            self.print(f"{len(self._losses)} steps in {seconds:.1f} s, {samples:,.0f} samples/s with evaluations")
        if self._world.rank == 0:
            history = {"first": self._first, "losses": self._losses, "results": self._results}
            self.wrote("history.json", "the loss of each step, and the evaluations").write_text(json.dumps(history))
            self._draw(self.wrote("training.png", "a picture of them"))

    def wrote(self, name: str, what: str) -> Path:
        """Returns the path for a result of this run, and prints it."""
        path = self._arguments.out / name
        self.print(f"wrote {path}: {what}")
        return path

    def _draw(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")  # needs no screen
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
        steps, window = self._first + np.arange(len(self._losses)), max(1, min(50, len(self._losses) // 10))
        axes.plot(steps, self._losses, color="0.8", linewidth=0.8, label="loss of a step")
        if self._losses:
            smooth = np.convolve(self._losses, np.ones(window) / window, mode="valid")
            axes.plot(steps[window - 1 :], smooth, label=f"mean of {window} steps")
        axes.set(xlabel="step", ylabel="training loss (mean over the global batch)", ylim=(0, None))
        right = axes.twinx()
        names = dict.fromkeys(name for result in self._results for name in result if name != "step")
        for i, name in enumerate(names, 1):
            points = [(result["step"], result[name]) for result in self._results if name in result]
            right.plot(
                *zip(*points, strict=True), marker=".", color=f"C{i}", linestyle="--", label=name.replace("_", " ")
            )
        right.set(ylabel="evaluation", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=5)
        figure.savefig(path, dpi=120)
