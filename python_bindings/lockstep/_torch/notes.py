"""Notes about PyTorch operators that ONNX cannot express, written into the program and the file for the importer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def argument(node: torch.fx.Node, place: int, name: str, default: Any) -> Any:
    """Returns an argument of the node's operator, which is given by position or by name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def graphs_of(program: torch.export.ExportedProgram) -> Iterator[torch.fx.GraphModule]:
    """Yields the program's graph and its subgraphs, such as regions of no_grad(). Recompiles each afterwards."""
    import torch

    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield part
            part.recompile()


def call_before(node: torch.fx.Node, target: Any, *args: Any) -> torch.fx.Node:
    """Inserts a node before `node`, with the same place in the user's program."""
    with node.graph.inserting_before(node):
        new = node.graph.call_function(target, args)
    new.meta["stack_trace"] = node.meta.get("stack_trace")
    return new


def note_options(program: torch.onnx.ONNXProgram) -> None:
    """Notes what ONNX cannot express in nodes: that indices may not be negative, the padding row, which has no
    gradient, and label smoothing."""
    import torch

    aten = torch.ops.aten
    refusing = (
        aten.embedding.default,
        aten.index_select.default,
        aten.gather.default,
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter_add.default,
        aten.scatter_reduce.two,
    )
    for node in program.model.graph:
        traced = node.meta.get("node")
        target = getattr(traced, "target", None)
        if target in refusing and node.op_type in ("Gather", "GatherElements", "ScatterElements"):
            node.metadata_props["lockstep.indices"] = "not negative"
        if target is aten.embedding.default and (padding := argument(traced, 2, "padding_idx", -1)) >= 0:
            node.metadata_props["lockstep.padding_idx"] = str(padding)
        if target is aten.cross_entropy_loss.default:
            node.metadata_props["lockstep.label_smoothing"] = str(argument(traced, 5, "label_smoothing", 0.0))


def check_indices(program: torch.export.ExportedProgram) -> None:
    """Adds checks of indices for operators that refuse negative indices, and that the exporter decomposes into
    operators that do not. The index is replaced by `index_select` of it from 0, 1, 2, …, which returns the index
    itself."""
    import torch

    aten = torch.ops.aten
    places = {
        aten.index_add.default: (2, lambda node: node.args[0].meta["val"].shape[node.args[1]]),
        aten.index_copy.default: (2, lambda node: node.args[0].meta["val"].shape[node.args[1]]),
        aten.embedding_bag.default: (1, lambda node: node.args[0].meta["val"].shape[0]),
        aten.embedding_bag.padding_idx: (1, lambda node: node.args[0].meta["val"].shape[0]),
        aten.one_hot.default: (0, lambda node: argument(node, 1, "num_classes", -1)),
    }
    for part in graphs_of(program):
        for node in list(part.graph.nodes):
            place, extent_of = places.get(node.target, (0, None))
            extent = extent_of(node) if extent_of is not None else -1
            if not isinstance(extent, int) or extent < 0:  # the extent is that of the batch
                continue
            indices = node.args[place]
            count = call_before(node, aten.arange.default, extent)
            flat = call_before(node, aten.reshape.default, indices, [-1])
            chosen = call_before(node, aten.index_select.default, count, 0, flat)
            node.update_arg(place, call_before(node, aten.view_as.default, chosen, indices))
