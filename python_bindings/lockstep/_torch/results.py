"""The names of a module's results: those that the caller gives, and the keys of a dict that `forward` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._base.errors import Error

if TYPE_CHECKING:
    import torch


def check_names(names: Sequence[str]) -> None:
    """Raises an Error if two results have the same name."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Error(f"from_torch: output_names has {twice[0]} twice")


def name_results(module: str, program: torch.onnx.ONNXProgram, names: Sequence[str]) -> None:
    """Names the results that have no name in `names` after the keys and fields under which `forward` returns them.

    A result keeps the exporter's name if its key is the name of an input, a state or another result.

    Args:
      module: the name of the module's class, for errors.
      names: the names of the first results, which the exporter has already set.

    Raises:
      Error: if one of `names` is the name of an input or a state.
    """
    import onnx_ir as ir

    graph = program.model.graph
    for kind, taken in (
        ("an input", [value.name for value in graph.inputs]),
        ("a parameter or buffer", graph.initializers),
    ):
        for name in names:
            if name in taken:
                raise Error(
                    f"from_torch: output_names has {name}, which is {kind} of {module}; give the result another name"
                )
    paths = _paths_of(program)
    if len(paths) != len(graph.outputs):
        return
    values = {value.name: value for node in graph for value in node.outputs}
    taken = {*names, *(value.name for value in graph.inputs), *graph.initializers}
    named = set(graph.outputs[: len(names)])
    for i, path in list(enumerate(paths))[len(names) :]:
        value = graph.outputs[i]
        if not path or path in taken:
            continue
        if value in named or value.producer() is None:  # another result, an input or a state
            copied = ir.node("Identity", [value])
            copied.outputs[0].shape, copied.outputs[0].type = value.shape, value.type
            graph.append(copied)
            graph.outputs[i] = value = copied.outputs[0]
        if path in values and values[path] is not value:  # a value in between
            values[path].name = f"{path}/value"
        value.name = path
        named.add(value)
        taken.add(path)


def _paths_of(program: torch.onnx.ONNXProgram) -> list[str]:
    """Returns the path of keys to each result, such as "logits"; "" for a result without keys."""
    from torch.utils._pytree import tree_unflatten

    exported = program.exported_program
    if exported is None or exported.call_spec.out_spec is None:
        return []
    spec = exported.call_spec.out_spec
    given = [index for index, name in enumerate(exported.graph_signature.user_outputs) if isinstance(name, str)]
    paths = dict(_paths(tree_unflatten(list(range(spec.num_leaves)), spec)))
    return [paths[index] for index in given]


def _paths(value: Any, path: str = "") -> Iterator[tuple[int, str]]:
    """Yields the leaves of a result, each with its path."""
    if isinstance(value, Mapping):
        parts = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, (list, tuple)):
        parts = [(str(index) if path else "", each) for index, each in enumerate(value)]
    else:
        yield value, path
        return
    for name, each in parts:
        yield from _paths(each, f"{path}.{name}" if path else name)
