"""Likely mistakes in the use of a model, and the advice for each: random numbers, second names, labels of a wrong shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from .._base.errors import Error
from .._base.log import warn_once
from .._lockstep import Graph
from ..loss import Loss


def warn_of_dropout(model: Graph, dropout: str) -> None:
    """Warns of dropout that is off because its module was in evaluation mode, and of random numbers that stay on."""
    said = model._metadata
    if dropout == "on" and "idle_dropout" in said:
        warn_once(
            f'{said["idle_dropout"]} drops nothing in the training step either; import it in train() mode, or say dropout="off"'
        )
    if dropout == "off" and "drawn_in_training" in said:
        warn_once(f'{said["drawn_in_training"]}; dropout="off" does not turn these off')


def warn_of_draws(graph: Graph) -> None:
    """Warns of random numbers that a model or its evaluation draws because its module was in training mode."""
    said = graph._metadata
    if "drawn_in_training" in said:
        warn_once(
            f"{said['drawn_in_training']}, and so does this program, which does not train; import the module in eval() mode for "
            "evaluations and predictions (docs/frameworks.md)"
        )


def check_second_names(model: Graph, given: Mapping[str, Sequence[str]]) -> None:
    """Checks that no option names a parameter that two modules share by the name that is not the state's."""
    second = json.loads(model._metadata.get("second_names", "{}"))
    for option, names in given.items():
        for name in names:
            if name in second:
                raise Error(f"{option}: {name} is another name of {second[name]}, as which it is a state; name that")


def wrong_labels(model: Graph, loss: Loss) -> dict[str, tuple[list[int], str]]:
    """By target: the shape, behind dimension 0, of labels for scores whose last dimension is the classes, and advice."""
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
