"""Programs that evaluate a model: its loss and metrics, for one batch or many."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._base.named_inputs import by_name
from .._compile.mistakes import wrong_labels
from .._lockstep import Graph
from ..loss import Loss
from ..metrics import Accuracy

if TYPE_CHECKING:
    import numpy as np

    from .._lockstep import Executable


def evaluation(
    model: Graph,
    loss: Loss,
    metrics: Mapping[str, Accuracy | Loss] | None = None,
    *,
    keep_results: bool = False,
    uneven: bool = True,
) -> Graph:
    """Makes a program that evaluates a model: its loss and metrics, without gradients and without an optimizer.

    Batch normalisation uses its running statistics, and dropout drops nothing. Other random numbers that `forward` draws in training mode
    are drawn here too, which is a warning: import the module in eval() mode for an evaluation then. The states have the names that they have in the training
    step, so that one line moves the weights: `evaluation.state.assign(exe.state)`, or `exe.state.averaged()`. The batch is that of the
    model, shared by all ranks; `model.with_dims(batch=1000)` is the model with another.

    Args:
      model: a graph from `load_onnx` or `from_torch`.
      loss: a loss of `lockstep.loss`, or a sum, as for `train_step`.
      metrics: by the name of their result: a `lockstep.metrics.Accuracy`, which compares the scores and the target of
        the first loss, or a loss. If None, "accuracy" if the first loss is the cross-entropy or the `nll` of labels,
        and otherwise nothing.
      keep_results: keep the model's own results, for metrics that the program cannot compute, such as a
        `ConfusionMatrix`.
      uneven: batches need not be full, as for `train_step`. A rank may call the program with fewer rows than its share,
        or with none, and each existing row counts once. The program gets the input `rows`, f32[batch]. False requires
        full batches. It is needed for models that mix rows, and for a loss that the model computes itself.

    Returns:
      A graph with these results, each a scalar over the batch of all ranks: `loss`, each metric, and `rows`, the number
      of rows. `loss/0/sum` and `loss/0/count` are the numerator and the denominator of the first term of the loss.
      There is no count if the reduction is "sum". Other terms and metrics have such results too. `Executable.evaluate`
      sums them over batches.

    Raises:
      Error: names the loss or metric, and its wrong result, input or option.

    Example:
      >>> loss = lockstep.loss.softmax_cross_entropy("logits", "label")
      >>> evaluation = lockstep.compile(lockstep.evaluation(model.with_dims(batch=1000), loss), world=world)
      >>> evaluation.state.assign(exe.state)
      >>> evaluation.evaluate(lockstep.data.batches(images, labels, size=1000, world=world, last="pad"))
      {'loss': 0.2952, 'accuracy': 0.8931, 'rows': 10000}
    """
    checks.graph("the model", model)
    expected = "one of lockstep.loss, such as lockstep.loss.softmax_cross_entropy()"
    checks.instance("loss", loss, Loss, expected)
    if metrics is None:
        metrics = default_metrics(loss)
    if not isinstance(metrics, Mapping):
        raise Error(f"metrics is {metrics!r}, expected metrics by name")
    choices = [(checked_name("evaluation", name), _choices(name, each, loss)) for name, each in metrics.items()]
    keep_results, uneven = checks.flag("keep_results", keep_results), checks.flag("uneven", uneven)
    program = _lockstep._evaluation(model, loss._choices(), choices, keep_results, uneven)
    program._wrong_labels = wrong_labels(model, loss)
    return program


def default_metrics(loss: Loss) -> dict[str, Accuracy]:
    """Returns the accuracy if the first loss compares scores with labels; otherwise nothing."""
    first = loss.terms[0]
    if first.kind not in ("softmax_cross_entropy", "nll") or first.options.get("soft_targets"):
        return {}
    return {"accuracy": Accuracy(ignore_index=first.options.get("ignore_index"))}


def checked_name(caller: str, name: Any) -> str:
    """Returns the name of a metric.

    Raises:
      Error: the name is that of another result.
    """
    if checks.text(f"{caller}: the name of a metric", name) in ("loss", "rows"):
        raise Error(f"{caller}: a metric is named {name!r}, which is the name of another result; give it another name")
    return name


def _choices(name: str, metric: Any, loss: Loss) -> list[tuple[str, list[str], list[str], dict[str, Any], float]]:
    """The terms of a metric, as the extension module takes them."""
    if isinstance(metric, Loss):
        return metric._choices()
    if not isinstance(metric, Accuracy):
        raise Error(
            f"metric {name} is {metric!r}, expected lockstep.metrics.Accuracy() or one of lockstep.loss; compute others from "
            "the model's results, with keep_results=True"
        )
    first = loss.terms[0]
    if not first.inputs:
        raise Error(f"metric {name}: the loss {first.kind} has no target to compare scores with")
    return [("accuracy", [first.predictions[0]], [first.inputs[0]], metric._options(), 1.0)]


def evaluate(executable: Executable, batches: Iterable[Any]) -> dict[str, float]:
    """See Executable.evaluate."""
    totals = Totals(executable.graph)
    for results in calls(executable, totals.uneven, _by_name(executable, totals, batches)):
        totals.add(results)
    return totals.results()


def calls(
    executable: Executable, uneven: bool, batches: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the results of a call with each batch. If rows may be missing, calls until no rank has batches left."""
    if uneven:
        yield from executable.joined(batches)
    else:
        yield from (executable(**batch) for batch in batches)


def _by_name(executable: Executable, totals: Totals, batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yields the batches by input names. An exception while reading one aborts the other ranks, which wait."""
    try:
        if not isinstance(batches, Iterable):
            raise Error(f"evaluate: batches is {batches!r}, expected batches, such as those of lockstep.data.batches")
        for batch in batches:
            named = by_name("evaluate", totals.inputs, batch)
            if "rows" in named and not totals.uneven and "rows" not in totals.inputs:
                raise Error(
                    "evaluate: a batch has weights of rows, and may be padded, but the program, with uneven=False, takes only full "
                    'batches; lockstep.data.batches(last="drop") makes these'
                )
            yield named
    except Exception as error:
        world = executable._world()
        if world.size > 1:
            world.abort(str(error))
        raise


class Totals:
    """The sums of an evaluation's results over several batches."""

    def __init__(self, graph: Graph) -> None:
        """
        Raises:
          Error: the graph is not an evaluation.
        """
        names = [each.name for each in graph.inputs]
        self.uneven = graph._is_uneven
        self.inputs = [name for name in names if name != "rows" or not self.uneven]
        results = [each.name for each in graph.results]  # in this order
        if "loss/0/sum" not in results:
            raise Error(f"evaluate: @{graph.name} is not an evaluation; lockstep.evaluation(model, loss) makes one")
        self._terms: dict[str, list[str]] = {}
        for name in results:
            measured = name.removesuffix("/0/sum")
            if measured != name:
                terms = (f"{measured}/{i}" for i in itertools.count())
                self._terms[measured] = list(itertools.takewhile(lambda term: f"{term}/sum" in results, terms))
        parts = [f"{term}/{part}" for terms in self._terms.values() for term in terms for part in ("sum", "count")]
        self._sums = dict.fromkeys([part for part in parts if part in results], 0.0)
        if self.uneven:
            self._sums["rows"] = 0.0

    def add(self, results: Mapping[str, Any]) -> None:
        """Adds the results of a call."""
        for name in self._sums:
            self._sums[name] += float(results[name])

    def results(self) -> dict[str, float]:
        """Returns the loss, the metrics and, if batches need not be full, the number of rows."""
        found: dict[str, float] = {name: sum(map(self._value, terms)) for name, terms in self._terms.items()}
        return found | ({"rows": int(self._sums["rows"])} if self.uneven else {})

    def _value(self, term: str) -> float:
        total, count = self._sums[f"{term}/sum"], self._sums.get(f"{term}/count", 1.0)
        return total / count if count else math.nan
