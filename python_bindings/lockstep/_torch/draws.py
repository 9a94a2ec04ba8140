"""The random numbers that a module draws: with PyTorch's operators, and with generators that a trace does not show."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np

from .notes import argument, call_before, graphs_of
from .places import place_of

if TYPE_CHECKING:
    import torch


def write_feature_dropout(program: torch.export.ExportedProgram) -> None:
    """Replaces dropout of whole channels by a product with a dropout of ones, which the importer supports."""
    import torch

    aten = torch.ops.aten
    for part in graphs_of(program):
        for node in part.graph.find_nodes(op="call_function", target=aten.feature_dropout.default):
            x, p, training = node.args
            if not training:
                continue
            ones = call_before(node, aten.ones_like.default, x)
            for dim in range(2, x.meta["val"].dim()):
                ones = call_before(node, aten.slice.Tensor, ones, dim, 0, 1)
            result = call_before(node, aten.mul.Tensor, x, call_before(node, aten.dropout.default, ones, p, True))
            result.meta = dict(node.meta)
            node.replace_all_uses_with(result)
            part.graph.erase_node(node)
            if part is program.graph_module:
                program.graph_signature.replace_all_uses(node.name, result.name)


def drawn_in_training(
    module: torch.nn.Module, program: torch.export.ExportedProgram, trace: Callable[[], torch.export.ExportedProgram]
) -> list[str]:
    """Returns the draws, other than dropout, that the module makes only in training mode, such as "bernoulli_ at net.py:7".

    Args:
      program: the trace in the module's present mode.
      trace: a function that traces the module in the mode that it then has.
    """
    drawn = dict.fromkeys(_draws(program))
    if not module.training or not drawn:
        return []
    modes = {part: part.training for part in module.modules()}
    try:
        for part in modes:
            part.training = False
        with suppress(Exception):  # a module that cannot be traced in evaluation mode may draw nothing there
            for draw in _draws(trace()):
                drawn.pop(draw, None)
    finally:
        for part, mode in modes.items():
            part.training = mode
    return list(dict.fromkeys(f"{name} at {place}" for name, place, _ in drawn))


def _draws(program: torch.export.ExportedProgram) -> Iterator[tuple[str, str, str]]:
    """Yields each draw, except dropout that the importer supports: its operator, its place, and its numeric arguments."""
    import torch

    aten = torch.ops.aten
    for part in graphs_of(program):
        for node in part.graph.nodes:
            drawing = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if not drawing or node.target in (aten.dropout.default, aten.native_dropout.default):
                continue
            if "dropout_p" in _parameters(node) and not argument(node, 4, "dropout_p", 0.0):  # attention
                continue
            numbers = [each for each in node.args if not isinstance(each, torch.fx.Node)]
            yield node.target._schema.name.removeprefix("aten::"), place_of(node), repr(numbers)


def _parameters(node: torch.fx.Node) -> list[str]:
    return [each.name for each in node.target._schema.arguments]


def idle_dropout(module: torch.nn.Module, program: torch.export.ExportedProgram) -> list[str]:
    """Returns the dropout in a module that is in evaluation mode: places such as "net.py:7", and the names of attention and recurrent
    layers. Empty if a part of the module is in training mode.
    """
    import torch

    if any(part.training for part in module.modules()):
        return []
    aten = torch.ops.aten
    nodes = [node for part in graphs_of(program) for node in part.graph.nodes]
    dropouts = [node for node in nodes if node.target in (aten.dropout.default, aten.feature_dropout.default)]
    places = [place_of(node) for node in dropouts if node.args[1] > 0]
    kinds = (torch.nn.MultiheadAttention, torch.nn.RNNBase)
    parts = [name for name, part in module.named_modules() if isinstance(part, kinds) and part.dropout > 0]
    return list(dict.fromkeys([*places, *parts]))


@contextmanager
def watched_generators(module: torch.nn.Module) -> Iterator[list[str]]:
    """Finds the generators of Python and NumPy from which the module draws in the body of the `with` statement.

    Looks at the global generators, those in the module's attributes, and those in the globals of its classes' code. The list
    is filled when the body ends.
    """
    generators = _generators(module)
    before = {name: state() for name, state in generators.items()}
    drawn: list[str] = []
    yield drawn
    drawn.extend(name for name, state in generators.items() if state() != before[name])


def _generators(module: torch.nn.Module) -> dict[str, Callable[[], bytes]]:
    found: dict[str, Callable[[], bytes]] = {
        "Python's random": lambda: pickle.dumps(random.getstate()),
        "np.random": lambda: pickle.dumps(np.random.get_state()),
    }
    for path, part in module.named_modules():
        own = {f"{path}.{name}" if path else name: value for name, value in vars(part).items()}
        forward = getattr(type(part).forward, "__globals__", {})
        for name, value in (own | forward).items():
            if isinstance(value, np.random.Generator):
                found[name] = lambda value=value: pickle.dumps(value.bit_generator.state)
            elif isinstance(value, np.random.RandomState):
                found[name] = lambda value=value: pickle.dumps(value.get_state())
            elif isinstance(value, random.Random):
                found[name] = lambda value=value: pickle.dumps(value.getstate())
    return found
