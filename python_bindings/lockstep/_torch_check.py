"""What torch's exporter leaves out of a module without saying so: refused here, as the module would train to other values."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._errors import Error

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("lockstep")


def check_before(module: torch.nn.Module, inputs: Mapping[str, Any], differentiate_all: bool) -> None:
    """Checks what only a trace shows, before the exporter simplifies it: options that get lost; and, unless `differentiate_all`,
    what PyTorch differentiates otherwise than the file says.

    A module that cannot be traced is left to the exporter, which says why.
    """
    with _own_functions() as functions:
        program = _traced(module, inputs)
    if program is None:
        return
    name = type(module).__name__
    nodes = list(program.graph.nodes)
    for node in nodes:
        _check_options(name, node)
    if differentiate_all:
        return
    _warn_of_padding(program, nodes)
    way_out = (
        'ONNX has no word for that, and a training step would differentiate them as they stand; detach="off" imports the '
        "module all the same, as for inference"
    )
    if functions:
        raise Error(f"from_torch: {name} has gradients of its own, of {', '.join(sorted(functions))}; {way_out}")
    stops = _stops(program, nodes)
    if stops:
        places = ", ".join(dict.fromkeys(place_of(node) for node in stops[:3]))
        raise Error(f"from_torch: {name} has values without gradient (detach() or no_grad(): {places}); {way_out}")


def check_after(module: torch.nn.Module, program: torch.export.ExportedProgram, known: set[str]) -> None:
    """Checks that no buffer which the results depend on changes in `forward`, but for the `known` ones."""
    signature = program.graph_signature
    outputs = set(signature.user_outputs)
    needed = _reached([node for node in program.graph.nodes if node.name in outputs])
    placeholders = {target: name for name, target in signature.inputs_to_buffers.items()}
    read = {node.name for node in needed}
    for buffer in signature.buffers_to_mutate.values():
        if buffer not in known and placeholders.get(buffer) in read:
            raise Error(
                f"from_torch: {type(module).__name__} changes its buffer {buffer} in forward, and a file cannot say that: "
                "put that part in evaluation mode, or give the value as an input"
            )


def note_indices(program: torch.onnx.ONNXProgram) -> None:
    """Notes in the nodes of operators that refuse negative indices that they do: ONNX counts those from the end."""
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
        is_indexing = node.op_type in ("Gather", "GatherElements", "ScatterElements")
        if is_indexing and getattr(node.meta.get("node"), "target", None) in refusing:
            node.metadata_props["lockstep.indices"] = "not negative"


def _traced(module: torch.nn.Module, inputs: Mapping[str, Any]) -> torch.export.ExportedProgram | None:
    import torch

    for strict in (False, True):  # the first is quicker, and cannot trace what the second can
        with contextlib.suppress(Exception):
            return torch.export.export(module, (), dict(inputs), strict=strict)
    return None


@contextlib.contextmanager
def _own_functions() -> Iterator[set[str]]:
    """What has gradients of its own meanwhile: the names of the subclasses of torch.autograd.Function that are applied, hooks, and
    inference_mode."""
    import torch

    names: set[str] = set()
    original = torch.autograd.Function.__dict__["apply"]
    register_hook, inference_mode = torch.Tensor.register_hook, torch.inference_mode.__enter__

    def noted(function: Any, *args: Any, **kwargs: Any) -> Any:
        names.add(function.__qualname__)
        return original.__func__(function, *args, **kwargs)

    def hooked(tensor: torch.Tensor, hook: Any) -> Any:
        if not is_of_torch(sys._getframe(1).f_code.co_filename):
            names.add("a hook of a tensor")
        return register_hook(tensor, hook)

    def entered(mode: Any) -> Any:
        if not is_of_torch(sys._getframe(1).f_code.co_filename):  # which enters it itself while it traces
            names.add("inference_mode")
        return inference_mode(mode)

    torch.autograd.Function.apply = classmethod(noted)
    torch.Tensor.register_hook, torch.inference_mode.__enter__ = hooked, entered
    try:
        yield names
    finally:
        torch.autograd.Function.apply = original
        torch.Tensor.register_hook, torch.inference_mode.__enter__ = register_hook, inference_mode


def is_of_torch(path: str) -> bool:
    """Whether a source file is of the package torch."""
    import torch

    return Path(path).resolve().is_relative_to(Path(torch.__file__).resolve().parent)


def _check_options(name: str, node: torch.fx.Node) -> None:
    import torch

    aten = torch.ops.aten
    if node.target is aten.cross_entropy_loss.default:
        smoothing = _argument(node, 5, "label_smoothing", 0.0)
        if smoothing != 0:
            raise Error(
                f"from_torch: {name} has cross_entropy with label_smoothing = {smoothing} ({place_of(node)}), which torch's "
                "exporter leaves out; write it as (1 - s) * cross_entropy(x, y) - s * log_softmax(x, 1).mean()"
            )
    if node.target in (aten.avg_pool2d.default, aten.avg_pool3d.default):
        divisor = _argument(node, 6, "divisor_override", None)
        if divisor is not None:
            raise Error(
                f"from_torch: {name} has an average pooling with divisor_override = {divisor} ({place_of(node)}), which torch's "
                "exporter leaves out; scale the pooled values"
            )
    if node.target in (
        aten.embedding.default,
        aten.embedding_bag.padding_idx,
        aten.embedding_bag.default,
    ) and _argument(node, 3, "scale_grad_by_freq", False):
        raise Error(
            f"from_torch: {name} has an embedding with scale_grad_by_freq ({place_of(node)}), which torch's exporter leaves out; "
            "leave it out"
        )
    if node.target is aten.embedding_renorm_.default:
        raise Error(
            f"from_torch: {name} has an embedding with max_norm ({place_of(node)}), which torch's exporter leaves out; leave it out"
        )
    if node.target is aten.multilabel_margin_loss.default:
        raise Error(
            f"from_torch: {name} has multilabel_margin_loss ({place_of(node)}), in whose place torch's exporter writes another "
            "function where a row of the target ends with -1; write it as a sum of relu(1 - (x[target] - x))"
        )
    if node.target is aten.scatter_reduce.two and _argument(node, 4, "reduce", "") == "mean":
        raise Error(
            f'from_torch: {name} has scatter_reduce with reduce = "mean" ({place_of(node)}), which ONNX does not have; '
            "divide a sum by the counts"
        )


def _warn_of_padding(program: torch.export.ExportedProgram, nodes: list[torch.fx.Node]) -> None:
    import torch

    parameters = program.graph_signature.inputs_to_parameters
    for node in nodes:
        row = _argument(node, 2, "padding_idx", -1) if node.target is torch.ops.aten.embedding.default else -1
        table = parameters.get(node.args[0].name) if row >= 0 else None
        if table is not None and dict(program.named_parameters())[table].requires_grad:
            _log.warning(f"{table}: row {row}, its padding_idx, is trained as the others are")


def _argument(node: torch.fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _stops(program: torch.export.ExportedProgram, nodes: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes at which a gradient on its way from the results to a parameter ends."""
    import torch

    aten = torch.ops.aten
    ends = (aten.detach.default, aten.detach_.default, aten.item.default, aten._local_scalar_dense.default)
    trained = {name for name, parameter in program.named_parameters() if parameter.requires_grad}
    parameters = {name for name, target in program.graph_signature.inputs_to_parameters.items() if target in trained}
    depends: set[torch.fx.Node] = set()  # on a parameter, by a way that a gradient goes
    stops = set()
    for node in nodes:
        if node.name in parameters:
            depends.add(node)
        elif any(operand in depends for operand in node.all_input_nodes):
            has_no_grad = node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and node.args[0] is False
            (stops if has_no_grad or node.target in ends else depends).add(node)
    needed = _reached([node for node in nodes if node.op == "output"], through=_may_have_gradient)
    return [node for node in nodes if node in stops and node in needed]


def _reached(ends: list[torch.fx.Node], through: Any = lambda node: True) -> set[torch.fx.Node]:
    """What `ends` depend on, themselves included."""
    reached, open_nodes = set(), list(ends)
    while open_nodes:
        node = open_nodes.pop()
        if node not in reached and through(node):
            reached.add(node)
            open_nodes.extend(node.all_input_nodes)
    return reached


def _may_have_gradient(node: torch.fx.Node) -> bool:
    import torch

    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()


def place_of(node: torch.fx.Node) -> str:
    """Where the node is in the user's program: "model.py:12"; its name if nobody knows."""
    frames = re.findall(r'File "([^"]*)", line (\d+)', node.meta.get("stack_trace") or "")
    users = node.users if not frames else {}
    for user in users:  # a group of nodes has no place of its own; what is taken of it has
        frames = frames or re.findall(r'File "([^"]*)", line (\d+)', user.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not is_of_torch(frame[0])] or frames
    return f"{own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else node.name
