"""`Trainer`: a model, a loss and an optimizer, trained by a store's workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import checks
from .._base.errors import Error
from .._checkpoint.checkpoint import on_all_ranks
from .._compile.compile import compile
from .._compile.joined import joined
from .._compile.placements import choices, chosen
from .._compile.plan import Plan
from .._compile.strategy import expanded
from .._graph.graphs import load_onnx
from .._graph.train_step import train_step
from .._lockstep import Communicator, Executable, Graph
from ..loss import Loss, _checked
from . import loss_curve
from .data import Inputs
from .evaluation import Evaluation, Measured, goodness
from .options import check_is_no_optimizer, divided, optimizer_of, uneven_of, world_of
from .progress import show_results, with_progress
from .scalars import Scalars, checked_scalars

if TYPE_CHECKING:
    from ..optim import Optimizer

Data = Any  # a tuple of arrays, a Dataset, or an iterable of batches
Results = dict[str, Any]
Callback = Callable[["Trainer", Results], Any]
_EVALUATED = (
    "backend",
    "mesh",
    "threads",
    "isa",
    "tf32",
    "tune",
)  # options of compile that also apply to the evaluation

_STEPS_BETWEEN_MEASUREMENTS = 50  # of shares


class Trainer:
    """Trains a model: a loop over batches, with evaluations between epochs. All workers make the same calls.

    The step of all workers is one program, which contains the collectives. The store names the workers. n workers
    compute the same as one worker with all their batches.

    Example:
      >>> store = lockstep.kv.create("dist_sync")
      >>> model = lockstep.load_onnx("lenet.onnx", dims={"batch": 128})  # of all workers together
      >>> loss = lockstep.loss.softmax_cross_entropy("logits", "label")
      >>> trainer = lockstep.Trainer(model, loss, "sgd", {"learning_rate": 0.1}, kvstore=store)
      >>> trainer.fit((images, labels), validation=(test_images, test_labels), epochs=4)
      [{'epoch': 1, 'step': 469, 'loss': 0.6137, 'validation_loss': 0.4702, 'accuracy': 0.8367}, ...
    """

    def __init__(
        self,
        model: Graph | str | os.PathLike[str] | Any,
        loss: Loss,
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Mapping[str, Any] | None = None,
        *,
        kvstore: Any = None,
        dims: Mapping[str, int] | None = None,
        uneven: bool | str | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
          model: a graph of `load_onnx` for the batch of all workers, or an ONNX file or model.
          loss: of `lockstep.loss`.
          optimizer: one of `lockstep.optim`, or a name with MXNet's options, such as "sgd", "nag", "adam" or "rmsprop".
          optimizer_params: the options of a named optimizer, such as {"learning_rate": 0.1, "momentum": 0.9, "wd":
            1e-4}. `lr_scheduler` is a function of the step. The formulas are those of `lockstep.optim`.
          kvstore: a store of `lockstep.kv`, or its kind, such as "dist_sync"; or a `Communicator` of the workers. None,
            "local" and "device" mean this process alone, which in a job of several processes is an error unless
            replicated=True.
          dims: as for `load_onnx`, for a file: {"batch": 128} is the batch of all workers.
          uneven: workers may have fewer rows than their share, or none, and each row counts once, as for `train_step`.
            False requires full batches. Models that mix rows and parameter servers need it. None is False with
            parameter servers, and otherwise True. "measured": the same as True, and workers have shares of each batch
            by their speeds, which `fit` measures every 50 steps (`Executable.balance`). It requires that each worker
            passes all samples.
          options: of `train_step`, such as `clip`, `groups` and `precision`, and of `compile`, such as `threads`,
            `wire` and `mesh`. With strategy="parameter_server" the servers of a job update the weights:
            docs/parameter_servers.md.

        Raises:
          Error: names the wrong argument. TypeError: neither function has an option of this name.
        """
        check_is_no_optimizer(loss)
        of_step, of_compile = divided(expanded(options), train_step, compile)
        placements = of_compile.get("placements")
        if isinstance(placements, Plan) and of_compile.get("mesh") is None:
            of_compile["mesh"] = placements.mesh
        strategy = of_compile.get("strategy")
        self._uneven = uneven_of(uneven, strategy)
        self._world = world_of(kvstore, strategy, of_compile.get("replicated", False))
        if not isinstance(model, Graph):
            model = load_onnx(model, dims=dims)
        elif dims is not None:
            raise Error("Trainer: dims is only for a file; the model is a graph, whose extents are known")
        _checked("Trainer: loss", loss)
        kind = "measured" if isinstance(uneven, str) else self._uneven
        step = train_step(model, loss, optimizer_of(optimizer, optimizer_params), uneven=kind, **of_step)
        if not self._uneven and any(each.name == "rows" for each in step.inputs):
            raise Error(f"Trainer: @{step.name} has an input %rows, the name of weights of rows: give it another name")
        self._exe = compile(step, world=self._world, **of_compile)
        self._measures_shares = kind == "measured" and self._world.size > 1
        self._name, self._is_averaged = model.name, options.get("average") is not None
        dimensions = {each.name: len(each.shape) for each in step.inputs if each.name != "rows"}
        self._inputs = Inputs(dimensions, _batch_of(model), self._world, of_compile.get("mesh"))
        evaluated = {name: value for name, value in of_compile.items() if name in _EVALUATED}
        placed = chosen(
            choices(of_compile.get("split"), placements), [each.name for each in (*model.inputs, *model.states)]
        )
        evaluated |= {"split": placed} if placed else {}
        self._evaluation = Evaluation(model, loss, self._inputs, self._world, self._uneven, evaluated)
        self._epoch, self._first = 0, 0
        self._losses: list[float] = []
        self._history: list[Results] = []
        self._best: tuple[str, float] | None = None  # the criterion and its value

    # --- Properties

    @property
    def executable(self) -> Executable:
        """The compiled training step, with all states: for `save_onnx`, `check_replicas()`, `report()`."""
        return self._exe

    @property
    def world(self) -> Communicator:
        """The workers."""
        return self._world

    @property
    def epoch(self) -> int:
        """The number of epochs that `fit` has finished, including those before `load_states`."""
        return self._epoch

    @property
    def losses(self) -> list[float]:
        """The loss of each step of `fit`."""
        return list(self._losses)

    @property
    def history(self) -> list[Results]:
        """The results of all calls of `fit`."""
        return [dict(each) for each in self._history]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the last step, or the value set since then."""
        return self._exe.settings["optimizer/learning_rate"]

    def set_learning_rate(self, rate: float | Callable[[int], float]) -> None:
        """Sets the learning rate from the next step on, on all workers: a number, or a function of the step."""
        self._exe.settings["optimizer/learning_rate"] = rate

    # --- Training

    def step(self, batch: Any) -> float:
        """Runs one step on all workers together. Returns its loss, the mean over the rows of all workers.

        Args:
          batch: this worker's rows: a tuple of the inputs of the model and then of the loss, such as (image, label),
            with an optional further array f32[rows] of weights; or the inputs by name. Empty, {}, for no rows.
        """
        inputs = self._checked(lambda: self._inputs.by_name(batch))
        return float(self._exe(**inputs)["loss"])

    def fit(
        self,
        train: Data | Callable[[int], Data],
        validation: Data | None = None,
        epochs: int = 1,
        callbacks: Sequence[Callback] = (),
        *,
        seed: int | None = 0,
        metrics: Mapping[str, Measured] | None = None,
        progress: bool = True,
        curve: str | os.PathLike[str] | None = None,
        best: str | os.PathLike[str] | None = None,
        best_by: str | Callable[[Results], float] = "validation_loss",
        scalars: Any = None,
    ) -> list[Results]:
        """Trains for `epochs` further epochs.

        Args:
          train: a tuple of arrays, such as (images, labels), or a data set, complete on every worker. It is shuffled in
            each epoch and cut into batches, which the workers share. Or this worker's part of a data set (`num_parts`
            of its reader); or an iterable of this worker's batches in the form of `step`, such as a list. Or a function
            that returns one of these for the number of an epoch.
          validation: data for `evaluate` after each epoch.
          epochs: the number of epochs.
          callbacks: called after each epoch as f(trainer, results). If one returns True (or NumPy's) on any worker,
            training ends on all workers.
          seed: of the shuffles, which differ between epochs. None keeps the order.
          metrics: as for `evaluate`.
          progress: rank 0 shows a bar if tqdm is installed, or a line every ten seconds if stderr is neither a terminal
            nor a notebook's.
          curve: the file of a picture of losses and metrics, written by rank 0, such as "loss.png".
          best: the file for the states of the best epoch so far, in the format of `save_states`. `load_states` restores
            them.
          best_by: the criterion of the best epoch: "validation_loss" (lowest), the name of an `Accuracy` (highest) or a
            `Perplexity` (lowest) in `metrics`, or a function of an epoch's results that is larger for better results.
            An epoch for which it is not a finite number is not the best. Epochs of earlier calls count only if their
            criterion had the same name; the name of a function is that of its definition.
          scalars: a folder in which rank 0 writes a file for TensorBoard, if tensorboardX is installed; or an object with
            `add_scalar(name, value, step)`, such as PyTorch's `SummaryWriter`, to which rank 0 gives the same:
            `train/loss` and `train/learning_rate` of each step, other settings, such as `train/momentum`, when they
            change, and the numbers of each epoch, such as `epoch/loss` and `epoch/accuracy`. Every ten seconds and
            after each epoch, `time/samples_per_second`, and the mean seconds of a step as in `Executable.report`:
            `time/total`, `time/compute`, `time/exposed`, `time/waiting`, `time/other`, `time/hidden`, `time/between`.

        Returns:
          A dict for each epoch: `epoch` from 1, `step`, and the mean `loss` over the trained rows. With `validation`,
          also `validation_loss` and the metrics.
        """
        epochs = checks.integer("fit: epochs", epochs, 0)
        seed = None if seed is None else checks.integer("fit: seed", seed, 0)
        path = None if curve is None else checks.path(curve)
        best = None if best is None else checks.path(best)
        scalars = checked_scalars(scalars)
        is_good = None
        if validation is not None:
            is_good = goodness(best_by, self._evaluation.metrics(metrics))  # checks them before training
        elif best is not None:
            raise Error("fit: best requires an evaluation after each epoch; pass validation too")
        begin = len(self._history)
        with self._writing(scalars) as written:
            for _ in range(epochs):
                name = f"epoch {self._epoch + 1}/{self._epoch + epochs}"
                results = self._fit_epoch(train, seed, progress, name, written)
                self._epoch += 1
                results = {"epoch": self._epoch, "step": self._exe.step, **results}
                if validation is not None:
                    found = self.evaluate(validation, metrics)
                    results |= {"validation_loss": found.pop("loss"), **found}
                    show_results(f"epoch {self._epoch}", results, progress and self._world.rank == 0)
                    if best is not None:
                        self._keep_best(best, best_by, is_good, results)
                if written is not None:
                    self._checked(lambda results=results: written.add_epoch(results))
                self._history.append(results)
                epochs -= 1
                if self._is_stopped(callbacks, results):
                    break
        if path is not None:
            on_all_ranks(self._world, "fit() of a Trainer", lambda: self._draw(path))
        return [dict(each) for each in self._history[begin:]]

    @contextlib.contextmanager
    def _writing(self, scalars: Any) -> Iterator[Scalars | None]:
        """Yields what writes the numbers of the run: None on other ranks than 0, or if nothing is to be written."""
        if scalars is None or self._world.rank != 0:
            yield None
            return
        with contextlib.closing(self._checked(lambda: Scalars(scalars, self._exe))) as written:
            yield written

    def _fit_epoch(self, train: Any, seed: int | None, progress: bool, name: str, scalars: Scalars | None) -> Results:
        if not self._losses:
            self._first = self._exe.step
        if scalars is not None:
            scalars.begin()
        is_function = callable(train) and not hasattr(train, "__iter__") and not hasattr(train, "__getitem__")
        shuffle = None if seed is None else seed + self._epoch
        given = self._inputs.epoch(
            lambda: train(self._epoch) if is_function else train,
            shuffle,
            "pad" if self._uneven else "drop",
            self._exe if self._measures_shares else None,
        )
        total = len(given) if hasattr(given, "__len__") else None
        shown = checks.flag("fit: progress", progress) and self._world.rank == 0
        losses, rows = [], []
        bar = with_progress(
            self._steps(given), name, total, self._inputs.size, shown, lambda: float(np.mean(losses[-20:]))
        )
        for result in bar:
            losses.append(float(result["loss"]))
            rows.append(float(result.get("rows", 1)))
            self._losses.append(losses[-1])
            if scalars is not None:
                size = float(result.get("rows", self._inputs.size))
                self._checked(lambda size=size: scalars.add_step(losses[-1], size))
        if scalars is not None:
            self._checked(scalars.add_times)
        if not losses:
            raise Error(
                f"fit: epoch {self._epoch + 1} has no batch; an iterator of batches is used up after one epoch, so pass a function "
                "of the epoch"
            )
        return {"loss": float(np.average(losses, weights=rows))}

    def _steps(self, given: Iterable[Any]) -> Iterator[dict[str, np.ndarray]]:
        """Yields the results of a step with each batch. With uneven batches, steps until no worker has batches left."""
        named = (self._checked(lambda batch=batch: self._inputs.by_name(batch)) for batch in self._guarded(given))
        if self._uneven:
            yield from joined(self._exe, named, _STEPS_BETWEEN_MEASUREMENTS if self._measures_shares else None)
        else:
            yield from (self._exe(**batch) for batch in named)

    def _guarded(self, given: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches. An exception while reading one aborts the other workers, which wait for this one."""
        remaining = iter(given)
        end = object()
        while (batch := self._checked(lambda: next(remaining, end))) is not end:
            yield batch

    def _is_stopped(self, callbacks: Sequence[Callback], results: Results) -> bool:
        if not callbacks:
            return False

        def call() -> str:
            answers = [callback(self, dict(results)) for callback in callbacks]
            return "stop" if any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers) else ""

        return "stop" in on_all_ranks(self._world, "the callbacks of fit() of a Trainer", call)

    def _keep_best(
        self,
        path: str,
        best_by: str | Callable[[Results], float],
        goodness: Callable[[Results], float],
        results: Results,
    ) -> None:
        """Writes the states if the results are the best so far. Rank 0 decides."""
        by = best_by if isinstance(best_by, str) else f"{getattr(best_by, '__qualname__', type(best_by).__name__)}()"
        told = on_all_ranks(
            self._world,
            "fit() of a Trainer",
            lambda: repr(checks.number("fit: what best_by gives", goodness(dict(results)))),
        )
        value = float(told[0])
        if np.isfinite(value) and (self._best is None or self._best[0] != by or value > self._best[1]):
            self._best = (by, value)
            self.save_states(path)

    def _draw(self, path: str) -> str:
        if self._world.rank == 0:
            loss_curve.draw(path, self._first, self._losses, self._history)
        return ""

    # --- Evaluation

    def evaluate(self, data: Data, metrics: Mapping[str, Measured] | None = None) -> Results:
        """Returns the loss and metrics of the model over the samples of all workers, each counted once. With `average`,
        the averaged weights are used.

        Args:
          data: as `train` of `fit`, except functions. Batches may have fewer rows than a share.
          metrics: of `lockstep.metrics`, by name; they are reset. A metric gets the results that the loss reads, and
            its target. In a tuple with a function, as in (Mean(), f), it gets the value of f(results, batch) for each
            row; both arguments are by name. None is the accuracy if the loss compares scores with labels, and otherwise
            nothing.

        Returns:
          `loss`, and each metric by name.
        """
        chosen = self._evaluation.metrics(metrics)
        last = "pad" if self._evaluation.takes_part_of_a_batch else "drop"
        batches = self._guarded(self._inputs.epoch(lambda: data, None, last))
        states = self._exe.state.averaged() if self._is_averaged else self._exe.state
        return self._evaluation.run(states, batches, chosen, self._checked)

    # --- States

    def save_states(self, path: str | os.PathLike[str]) -> None:
        """Writes all states to a file: weights, optimizer states, settings, numbers of steps and epochs. Collective.

        The file appears complete or not at all. It has the format of `Executable.save`, so any number of workers can
        continue from it.
        """
        best = {} if self._best is None else {"best_by": self._best[0], "best": self._best[1]}
        self._exe.save(path, metadata={"epoch": self._epoch, **best})

    def load_states(self, path: str | os.PathLike[str]) -> None:
        """Restores the states from such a file, to continue with the batches that follow. Collective; all workers read.

        Raises:
          Error: as for `Executable.load`, before anything is changed.
        """
        metadata = self._exe.load(path)
        self._epoch = int(metadata.get("epoch", 0))
        self._best = (str(metadata["best_by"]), float(metadata["best"])) if "best" in metadata else None
        self._losses, self._history = [], []

    def __repr__(self) -> str:
        return f"<lockstep.Trainer @{self._name}, rank {self._world.rank} of {self._world.size}, step {self._exe.step}>"

    def _checked(self, body: Callable[[], Any]) -> Any:
        """Returns body(). An exception aborts the other workers, which wait for this one."""
        try:
            return body()
        except Exception as error:
            if self._world.size > 1:
                self._world.abort(str(error))
            raise


def _batch_of(model: Graph) -> int:
    """Returns the global batch: the number of rows of the first input that the workers share."""
    for each in model.inputs:
        if each.placements.get("data") == "split(0)":
            return each.shape[0]
    raise Error(
        "Trainer: the workers share no input of the model along dimension 0; choose one with `split` of load_onnx"
    )
