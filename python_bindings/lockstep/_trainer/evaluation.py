"""Implements `Trainer.evaluate`: the loss and metrics of the current model, and the choice of the best epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .._base import checks
from .._base.errors import Error
from .._compile.compile import compile
from .._graph.evaluation import Totals, calls, checked_name, default_metrics, evaluation
from .._lockstep import Communicator, Executable, Graph
from ..loss import Loss
from ..metrics import Accuracy, Metric, Perplexity
from .data import Batch, Inputs

Arrays = Mapping[str, np.ndarray]
Results = dict[str, Any]
Measured = Metric | tuple[Metric, Callable[[Arrays, Arrays], Any]]
_RESULTS = ("epoch", "step", "validation_loss")  # of fit, in addition to loss and metrics


class Evaluation:
    """The evaluation of a model. It is compiled at its first use."""

    def __init__(
        self,
        model: Graph,
        loss: Loss,
        inputs: Inputs,
        world: Communicator,
        uneven: bool,
        options: Mapping[str, Any],
    ) -> None:
        """`uneven` is true if training takes batches that are not full. `options` are those of `compile`."""
        self._model, self._loss, self._inputs = model, loss, inputs
        self._world, self._uneven, self._options = world, uneven, dict(options)
        self._program: Graph | None = None
        self._compiled: Executable | None = None

    def metrics(self, given: Mapping[str, Measured] | None) -> dict[str, Measured]:
        """Returns the given metrics, reset; those of `lockstep.evaluation` for None.

        Raises:
          Error: names a value that is not a metric; or the mesh has stages, into which models are not cut.
        """
        if (self._options.get("mesh") or {}).get("stage", 1) > 1:
            raise Error(
                f"Trainer: the mesh {self._options['mesh']} has stages, which are only for training steps: leave out validation "
                "and evaluate; a step with lockstep.optim.SGD(0.0) on the same mesh computes a loss and changes nothing "
                "(docs/pipeline.md)"
            )
        if given is None:
            return default_metrics(self._loss)
        if not isinstance(given, Mapping):
            raise Error(f"Trainer: metrics is {given!r}, expected metrics by name")
        for name, each in given.items():
            if checked_name("Trainer", name) in _RESULTS:
                raise Error(
                    f"Trainer: a metric is named {name!r}, which is the name of a result of fit; give it another name"
                )
            is_pair = isinstance(each, tuple) and len(each) == 2 and callable(each[1])
            expected = "one of lockstep.metrics, or a tuple of one and a function"
            checks.instance(f"Trainer: metric {name}", each[0] if is_pair else each, Metric, expected).reset()
        return dict(given)

    @property
    def takes_part_of_a_batch(self) -> bool:
        """True if batches may have fewer rows than the workers' shares."""
        return self._graph()._is_uneven

    def run(
        self,
        states: Arrays,
        batches: Iterable[Any],
        metrics: Mapping[str, Measured],
        checked: Callable[[Callable[[], Any]], Any],
    ) -> Results:
        """Returns the loss over all workers' batches, and the values of the metrics. `checked` calls a function, and
        reports its exceptions to the other workers."""
        if self._compiled is None:
            # replicated=True skips the check that ranks share a batch. The training step has passed it.
            self._compiled = compile(self._graph(), world=self._world, replicated=True, **self._options)
        totals = Totals(self._graph())
        given: list[Batch] = [{}]  # the batch of the current call
        self._compiled.state.assign(states)

        def named() -> Iterator[Batch]:
            for batch in batches:
                given[0] = checked(lambda batch=batch: self._padded(batch, totals.uneven))
                yield {name: array for name, array in given[0].items() if name != "rows" or totals.uneven}
            given[0] = {}

        for results in calls(self._compiled, totals.uneven, named()):
            totals.add(results)
            if given[0]:
                checked(lambda results=results: self._add(metrics, results, given[0]))
        mesh = self._options.get("mesh")
        found = {name: metric_of(each).compute(self._world, mesh) for name, each in metrics.items()}
        return {"loss": totals.results()["loss"], **found}

    def _graph(self) -> Graph:
        """Returns the program. It takes full batches only if training does and the model mixes rows."""
        if self._program is None:
            try:
                self._program = evaluation(self._model, self._loss, {}, keep_results=True)
            except Error:
                if self._uneven:
                    raise
                self._program = evaluation(self._model, self._loss, {}, keep_results=True, uneven=False)
        return self._program

    def _padded(self, batch: Any, uneven: bool) -> Batch:
        named = self._inputs.by_name(batch)
        if uneven and all(np.shape(array)[:1] == (0,) for array in named.values()):
            return {}
        inputs = self._inputs.padded(named)
        if not uneven and not np.all(inputs["rows"]):
            raise Error(
                f"Trainer: a batch of an evaluation does not have {self._inputs.share} rows, but this model mixes rows, so it takes "
                "only full batches"
            )
        return inputs

    def _add(self, metrics: Mapping[str, Measured], results: Arrays, batch: Arrays) -> None:
        term = self._loss.terms[0]
        for each in metrics.values():
            if isinstance(each, tuple):
                each[0].add(each[1](results, batch), batch["rows"])
            else:
                each.add(results[term.predictions[0]], batch[term.inputs[0]], batch["rows"])


def metric_of(measured: Measured) -> Metric:
    return measured[0] if isinstance(measured, tuple) else measured


def goodness(best_by: str | Callable[[Results], float], metrics: Mapping[str, Measured]) -> Callable[[Results], float]:
    """Returns a function of an epoch's results whose value is larger for better results.

    Raises:
      Error: `best_by` is a name for which it is unknown whether more is better.
    """
    if callable(best_by):
        return best_by
    metric = metric_of(metrics[best_by]) if best_by in metrics else None
    if isinstance(metric, Accuracy):
        return lambda results: results[best_by]
    if best_by == "validation_loss" or isinstance(metric, Perplexity):
        return lambda results: -results[best_by]
    raise Error(
        f'fit: best_by is {best_by!r}, expected "validation_loss", the name of an accuracy or a perplexity among metrics, or a '
        "function of an epoch's results that is larger for better results"
    )
