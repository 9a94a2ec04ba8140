"""Warnings and errors about likely mistakes in the use of a model, each with advice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from .._base.errors import Error
from .._base.log import warn_once
from .._lockstep import Graph
from ..loss import Loss


def warn_of_dropout(model: Graph, dropout: str) -> None:
    """Warns if the model has no dropout because it was imported in evaluation mode, and if dropout="off" leaves other random numbers on."""
    metadata = model._metadata
    if dropout == "on" and "idle_dropout" in metadata:
        warn_once(
            f'{metadata["idle_dropout"]} drops nothing in the training step either; import it in train() mode, or say dropout="off"'
        )
    if dropout == "off" and "drawn_in_training" in metadata:
        warn_once(f'{metadata["drawn_in_training"]}; dropout="off" does not turn these off')


def warn_of_draws(graph: Graph) -> None:
    """Warns if an evaluation draws random numbers because its model was imported in training mode."""
    metadata = graph._metadata
    if "drawn_in_training" in metadata:
        warn_once(
            f"{metadata['drawn_in_training']}, and so does this program, which does not train; import the module in eval() mode for "
            "evaluations and predictions (docs/frameworks.md)"
        )


def check_second_names(model: Graph, given: Mapping[str, Sequence[str]]) -> None:
    """Checks the names of shared parameters in options: the state has the name that the first module gives it.

    Raises:
      Error: if an option has the name that another module gives the parameter.
    """
    second = json.loads(model._metadata.get("second_names", "{}"))
    for option, names in given.items():
        for name in names:
            if name in second:
                raise Error(
                    f"{option}: {name} is another name of {second[name]}; the state is called {second[name]}, so give that name"
                )


def wrong_labels(model: Graph, loss: Loss) -> dict[str, tuple[list[int], str]]:
    """Finds losses whose labels may have a wrong shape, because the model gives scores with the classes in the last dimension.

    Returns:
      For each name of labels: the wrong shape, without dimension 0, and advice.
    """
    shapes = {result.name: list(result.shape) for result in model.results}
    found = {}
    for term in loss.terms:
        shape = shapes.get(term.predictions[0], [])
        if term.kind not in ("softmax_cross_entropy", "nll") or term.options.get("soft_targets") or len(shape) < 3:
            continue
        if shape[1:-1] != shape[2:]:
            last = len(shape) - 1
            advice = (
                f"the classes of {term.predictions[0]}, {shape}, are dimension 1; if the module gives them last, let it return "
                f"scores.flatten(0, {last - 1}) for flattened labels, or scores.movedim({last}, 1)"
            )
            found[term.inputs[0]] = (shape[1:-1], advice)
    return found
