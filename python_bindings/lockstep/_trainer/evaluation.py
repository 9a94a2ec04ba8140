"""What `Trainer.evaluate` does: the loss and metrics of the model as it is, over batches; and which epoch's are best."""

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
_RESULTS = ("epoch", "step", "validation_loss")  # of fit, beside loss and metrics


class Evaluation:
    """The evaluation of a model, which is compiled when it is first needed, since some never are."""

    def __init__(
        self,
        model: Graph,
        loss: Loss,
        inputs: Inputs,
        world: Communicator,
        uneven: bool,
        options: Mapping[str, Any],
    ) -> None:
        """`uneven` says whether training takes batches that are not full; `options` are of `compile`."""
        self._model, self._loss, self._inputs = model, loss, inputs
        self._world, self._uneven, self._options = world, uneven, dict(options)
        self._program: Graph | None = None
        self._compiled: Executable | None = None

    def metrics(self, given: Mapping[str, Measured] | None) -> dict[str, Measured]:
        """The metrics, without anything added; those of `lockstep.evaluation` for None.

        Raises:
          Error: naming what is no metric, or stages, into which no model is cut.
        """
        if (self._options.get("mesh") or {}).get("stage", 1) > 1:
            raise Error(
                f"Trainer: the mesh {self._options['mesh']} has stages, into which training steps alone are cut: leave out validation "
                "and evaluate; a step with lockstep.optim.SGD(0.0) on the same mesh computes a loss and changes nothing "
                "(docs/pipeline.md)"
            )
        if given is None:
            return default_metrics(self._loss)
        if not isinstance(given, Mapping):
            raise Error(f"Trainer: metrics is {given!r}, expected metrics by name")
        for name, each in given.items():
            if checked_name("Trainer", name) in _RESULTS:
                raise Error(f"Trainer: a metric is named {name!r}, as a result of fit; give it another name")
            is_pair = isinstance(each, tuple) and len(each) == 2 and callable(each[1])
            expected = "one of lockstep.metrics, or a tuple of one and a function"
            checks.instance(f"Trainer: metric {name}", each[0] if is_pair else each, Metric, expected).reset()
        return dict(given)

    @property
    def takes_part_of_a_batch(self) -> bool:
        """Whether batches may have fewer rows than the workers' shares."""
        return any(each.name == "rows" for each in self._graph().inputs)

    def run(
        self,
        states: Arrays,
        batches: Iterable[Any],
        metrics: Mapping[str, Measured],
        checked: Callable[[Callable[[], Any]], Any],
    ) -> Results:
        """The loss over all workers' batches, and what the metrics come to; `checked` tells the other workers what a function
        raises."""
        if self._compiled is None:
            # What training has accepted is no less shared in an evaluation.
            self._compiled = compile(self._graph(), world=self._world, replicated=True, **self._options)
        totals = Totals(self._graph())
        given: list[Batch] = [{}]  # of the call that is made
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
        """The program. Where training takes full batches alone, it does so if rows see each other."""
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
                f"Trainer: a batch of an evaluation has not {self._inputs.share} rows, and those of this model see each other: it takes "
                "full batches alone"
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
    """A function of an epoch's results that is larger the better they are.

    Raises:
      Error: of a name that does not say whether more is better.
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
        "function of an epoch's results that is larger the better they are"
    )
