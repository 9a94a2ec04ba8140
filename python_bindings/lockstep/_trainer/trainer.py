"""`Trainer`: a model, a loss and an optimizer, trained by a store's workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import checks
from .._base.errors import Error
from .._checkpoint.checkpoint import on_all_ranks
from .._compile.compile import compile
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
)  # options that a model is compiled with, too


class Trainer:
    """Trains a model: a loop over batches, with evaluations between epochs. Every worker makes one, and all make the same calls.

    The step of all workers is one program, compiled with the collectives in it; the store says who they are. n workers compute
    what one would with the batches of all.

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
        uneven: bool | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
          model: what `load_onnx` makes, for the batch of all workers; or an ONNX file, or model.
          loss: of `lockstep.loss`.
          optimizer: one of `lockstep.optim`; or a name with MXNet's options, such as "sgd", "nag", "adam" or "rmsprop".
          optimizer_params: the options of a name, such as {"learning_rate": 0.1, "momentum": 0.9, "wd": 1e-4}. `lr_scheduler` is a function
            of the step. The formulas are those of `lockstep.optim`.
          kvstore: a store of `lockstep.kv`, or its kind, such as "dist_sync"; or the workers, a `Communicator`. None, "local" and
            "device" are this process alone, an error in a job of several, but for replicated=True.
          dims: as of `load_onnx`, for a file: {"batch": 128} is the batch of all workers.
          uneven: workers may have fewer rows than their share, or none, and each row counts once, as of `train_step`. False is for models
            whose rows see each other, and needs full batches; so do parameter servers, with which None is False, and else True.
          options: of `train_step`, such as `clip`, `groups` and `precision`, and of `compile`, such as `threads`, `wire` and `mesh`.
            strategy="parameter_server" lets the servers of a job update the weights: docs/parameter_servers.md.

        Raises:
          Error: naming what is wrong; TypeError of an option that neither has.
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
            raise Error("Trainer: dims is of a file; the model is a graph, whose extents are known")
        _checked("Trainer: loss", loss)
        step = train_step(model, loss, optimizer_of(optimizer, optimizer_params), uneven=self._uneven, **of_step)
        self._exe = compile(step, world=self._world, **of_compile)
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
        self._best: tuple[str, float] | None = None  # by what, and how good

    # --- What there is

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
        """How many epochs `fit` has behind it, those before `load_states` included."""
        return self._epoch

    @property
    def losses(self) -> list[float]:
        """The loss of each step of `fit`."""
        return list(self._losses)

    @property
    def history(self) -> list[Results]:
        """What `fit` returned, of all its calls."""
        return [dict(each) for each in self._history]

    @property
    def learning_rate(self) -> float:
        """That of the last step, or what was set since."""
        return self._exe.settings["optimizer/learning_rate"]

    def set_learning_rate(self, rate: float | Callable[[int], float]) -> None:
        """Sets the learning rate from the next step on, on all workers: a number, or a function of the step."""
        self._exe.settings["optimizer/learning_rate"] = rate

    # --- Training

    def step(self, batch: Any) -> float:
        """Makes one step, on all workers together, and returns its loss, the mean over the rows of all.

        Args:
          batch: this worker's rows: a tuple of the step's inputs in order, the model's and then the loss's, such as (image, label),
            and with one array more, f32[rows], a weight for each row; or the inputs by name. Empty, {}, for no rows.
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
    ) -> list[Results]:
        """Trains for so many epochs more.

        Args:
          train: a tuple of arrays, such as (images, labels), or a data set, all of it on every worker: it is shuffled in each epoch
            and cut into batches, which the workers share. Or this worker's part of a data set (`num_parts` of its reader); or an
            iterable of this worker's batches, as `step` takes them, such as a list of them. Or a function that gives one of these for the number of an epoch.
          validation: what `evaluate` gets after each epoch.
          epochs: how many.
          callbacks: each is called after an epoch as f(trainer, results). If one returns True, NumPy's too, on any worker, training ends on all.
          seed: of the shuffles, of which each epoch has another; None keeps the order.
          metrics: as of `evaluate`.
          progress: whether rank 0 shows a bar, if tqdm is installed; where stderr is no terminal, a line every ten seconds.
          curve: the file of a picture of losses and metrics that rank 0 writes, such as "loss.png".
          best: the file that has the states of the best epoch so far, as `save_states` writes them; `load_states` goes back to it.
          best_by: what the best epoch is of: "validation_loss", the lowest; the name of an `Accuracy`, the highest, or of a `Perplexity`,
            the lowest, among `metrics`; or a function of an epoch's results that is larger the better they are. An epoch for which it
            is no finite number is not the best. The best so far is that by the same name, which a function has from its definition; by
            another name there is none yet.

        Returns:
          For each epoch a dict: `epoch` from 1, `step`, and the mean `loss` over the rows that were trained on; with `validation`
          the `validation_loss`, and the metrics.
        """
        epochs = checks.integer("fit: epochs", epochs, 0)
        seed = None if seed is None else checks.integer("fit: seed", seed, 0)
        path = None if curve is None else checks.path(curve)
        best = None if best is None else checks.path(best)
        is_good = None
        if validation is not None:
            is_good = goodness(best_by, self._evaluation.metrics(metrics))  # says now what is wrong with them
        elif best is not None:
            raise Error("fit: best is of an evaluation after each epoch; give validation, too")
        begin = len(self._history)
        for _ in range(epochs):
            results = self._fit_epoch(train, seed, progress, f"epoch {self._epoch + 1}/{self._epoch + epochs}")
            self._epoch += 1
            results = {"epoch": self._epoch, "step": self._exe.step, **results}
            if validation is not None:
                found = self.evaluate(validation, metrics)
                results |= {"validation_loss": found.pop("loss"), **found}
                show_results(f"epoch {self._epoch}", results, progress and self._world.rank == 0)
                if best is not None:
                    self._keep_best(best, best_by, is_good, results)
            self._history.append(results)
            epochs -= 1
            if self._is_stopped(callbacks, results):
                break
        if path is not None:
            on_all_ranks(self._world, "fit() of a Trainer", lambda: self._draw(path))
        return [dict(each) for each in self._history[begin:]]

    def _fit_epoch(self, train: Any, seed: int | None, progress: bool, name: str) -> Results:
        if not self._losses:
            self._first = self._exe.step

        is_function = callable(train) and not hasattr(train, "__iter__") and not hasattr(train, "__getitem__")
        shuffle = None if seed is None else seed + self._epoch
        given = self._inputs.epoch(
            lambda: train(self._epoch) if is_function else train, shuffle, "pad" if self._uneven else "drop"
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
        if not losses:
            raise Error(
                f"fit: epoch {self._epoch + 1} has no batch; batches that can be iterated once are those of one epoch, and a function "
                "of the epoch gives others"
            )
        return {"loss": float(np.average(losses, weights=rows))}

    def _steps(self, given: Iterable[Any]) -> Iterator[dict[str, np.ndarray]]:
        """The results of a step with each batch; where rows may be missing, until the last worker has run out."""
        named = (self._checked(lambda batch=batch: self._inputs.by_name(batch)) for batch in self._guarded(given))
        if self._uneven:
            yield from self._exe.joined(named)
        else:
            yield from (self._exe(**batch) for batch in named)

    def _guarded(self, given: Iterable[Any]) -> Iterator[Any]:
        """The batches; what reading one meets, the other workers hear of, which wait for this one."""
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
        """Writes the states if the results are better than those before. Rank 0 decides."""
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
        """The loss and metrics of the model, over the samples of all workers, each of which counts once. With `average` it has the
        averaged weights.

        Args:
          data: as `train` of `fit`, but for functions. Batches may have fewer rows than a share.
          metrics: of `lockstep.metrics`, by name; they start anew. One gets the results that the loss is of, and its target; in a tuple
            with a function, as in (Mean(), f), what f(results, batch) gives for each row, both by name. None is the accuracy where
            the loss is of scores and labels, and nothing for others.

        Returns:
          `loss`, and each metric by its name.
        """
        chosen = self._evaluation.metrics(metrics)
        last = "pad" if self._evaluation.takes_part_of_a_batch else "drop"
        batches = self._guarded(self._inputs.epoch(lambda: data, None, last))
        states = self._exe.state.averaged() if self._is_averaged else self._exe.state
        return self._evaluation.run(states, batches, chosen, self._checked)

    # --- States

    def save_states(self, path: str | os.PathLike[str]) -> None:
        """Writes all states to a file: weights, what the optimizer keeps, the settings, the steps and epochs. All workers call it.

        The file appears complete or not at all; it is one of `Executable.save`, from which any number of workers goes on.
        """
        best = {} if self._best is None else {"best_by": self._best[0], "best": self._best[1]}
        self._exe.save(path, metadata={"epoch": self._epoch, **best})

    def load_states(self, path: str | os.PathLike[str]) -> None:
        """Goes on from such a file, with the batches that come next. All workers call it, and each reads the file.

        Raises:
          Error: as of `Executable.load`, before anything is changed.
        """
        metadata = self._exe.load(path)
        self._epoch = int(metadata.get("epoch", 0))
        self._best = (str(metadata["best_by"]), float(metadata["best"])) if "best" in metadata else None
        self._losses, self._history = [], []

    def __repr__(self) -> str:
        return f"<lockstep.Trainer @{self._name}, rank {self._world.rank} of {self._world.size}, step {self._exe.step}>"

    def _checked(self, body: Callable[[], Any]) -> Any:
        """What body() gives; what it raises, the other workers hear of, which wait for this one."""
        try:
            return body()
        except Exception as error:
            if self._world.size > 1:
                self._world.abort(str(error))
            raise


def _batch_of(model: Graph) -> int:
    """The global batch: the rows of the first input that the workers share."""
    for each in model.inputs:
        if each.placements.get("data") == "split(0)":
            return each.shape[0]
    raise Error(
        "Trainer: no input of the model is shared by the workers along dimension 0; `split` of load_onnx says which is"
    )
