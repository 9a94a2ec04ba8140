"""What `Trainer.evaluate` does: the model as it is, without the loss, over batches, and metrics of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from . import _check
from ._compile import compile
from ._errors import Error
from ._lockstep import Communicator, Executable, Graph
from ._trainer_data import Inputs
from .loss import Loss
from .metrics import Accuracy, Metric

Arrays = Mapping[str, np.ndarray]
Measured = Metric | tuple[Metric, Callable[[Arrays, Arrays], Any]]


class Evaluation:
    """A model that is compiled when it is first evaluated, since some are never."""

    def __init__(
        self, model: Graph, loss: Loss, inputs: Inputs, world: Communicator, options: Mapping[str, Any]
    ) -> None:
        """`options` are of `compile`."""
        self._model, self._term, self._inputs = model, loss.terms[0], inputs
        self._world, self._options = world, dict(options)
        self._compiled: Executable | None = None

    def metrics(self, given: Mapping[str, Measured] | None) -> dict[str, Measured]:
        """The metrics, without anything added; of a softmax cross-entropy None is the accuracy.

        Raises:
          Error: naming what is no metric, or stages, into which no model is cut.
        """
        if (self._options.get("mesh") or {}).get("stage", 1) > 1:
            raise Error(
                f"Trainer: the mesh {self._options['mesh']} has stages, into which training steps alone are cut: leave out validation "
                "and evaluate; a step with lockstep.optim.SGD(0.0) on the same mesh computes a loss and changes nothing "
                "(docs/pipeline.md)"
            )
        term = self._term
        if given is None:
            if term.kind != "softmax_cross_entropy" or term.options.get("soft_targets"):
                raise Error(f"Trainer: metrics says what an evaluation computes, as the loss is {term.kind}")
            return {"accuracy": Accuracy(ignore_index=term.options.get("ignore_index"))}
        if not isinstance(given, Mapping):
            raise Error(f"Trainer: metrics is {given!r}, expected metrics by name")
        for name, each in given.items():
            _check.text("Trainer: the name of a metric", name)
            is_pair = isinstance(each, tuple) and len(each) == 2 and callable(each[1])
            expected = "one of lockstep.metrics, or a tuple of one and a function"
            _check.instance(f"Trainer: metric {name}", each[0] if is_pair else each, Metric, expected).reset()
        return dict(given)

    def run(
        self,
        states: Arrays,
        batches: Iterable[Any],
        metrics: Mapping[str, Measured],
        checked: Callable[[Callable[[], Any]], Any],
    ) -> dict[str, Any]:
        """What the metrics come to over all workers' batches; `checked` tells the other workers what a function raises."""
        if self._compiled is None:
            # What training has accepted is no less shared in an evaluation.
            self._compiled = compile(self._model, world=self._world, replicated=True, **self._options)
        model = self._compiled
        model.state.update({name: states[name] for name in model.state})
        names = [each.name for each in self._model.inputs]
        for batch in batches:
            inputs = checked(lambda batch=batch: self._inputs.padded(self._inputs.by_name(batch)))
            results = model(**{name: inputs[name] for name in names})
            checked(lambda results=results, inputs=inputs: self._add(metrics, results, inputs))
        mesh = self._options.get("mesh")
        return {name: _metric(each).compute(self._world, mesh) for name, each in metrics.items()}

    def _add(self, metrics: Mapping[str, Measured], results: Arrays, batch: Arrays) -> None:
        for each in metrics.values():
            if isinstance(each, tuple):
                each[0].add(each[1](results, batch), batch["rows"])
            else:
                each.add(results[self._term.predictions[0]], batch[self._term.inputs[0]], batch["rows"])


def _metric(measured: Measured) -> Metric:
    return measured[0] if isinstance(measured, tuple) else measured
