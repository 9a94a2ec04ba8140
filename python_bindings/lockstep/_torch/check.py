"""Refuses modules that would train to other values, because torch's exporter silently omits something."""

from __future__ import annotations

import contextlib
import operator
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any

from .._base.errors import Error
from .draws import drawn_in_training, idle_dropout, write_feature_dropout
from .notes import argument, call_before, check_indices, graphs_of
from .places import is_of_torch, own_place, place_of

if TYPE_CHECKING:
    import torch


@dataclass
class Traced:
    """Findings about a module while it was traced. An exporter that tries several ways hides them."""

    refusals: list[Error] = field(default_factory=list)  # that were raised inside of torch.export.export
    conditions: list[str] = field(default_factory=list)  # on extents that were to be free, by which `forward` decides
    changed: dict[str, str] = field(default_factory=dict)  # attributes that change in `forward`, and to what
    drawn: list[str] = field(default_factory=list)  # in training mode only, beside dropout
    idle_dropout: list[str] = field(default_factory=list)  # of a module in evaluation mode


@contextlib.contextmanager
def checked_export(module: torch.nn.Module, ignores_own_gradients: bool) -> Iterator[Traced]:
    """Checks each program that torch traces in the meantime, before the exporter simplifies it, for features that the
    exporter omits, and marks values without gradient.

    Args:
      ignores_own_gradients: accept a program whose gradients differ from those of its operators.
    """
    import torch

    original, name = torch.export.export, type(module).__name__
    traced = Traced()

    def checked(*args: Any, **kwargs: Any) -> torch.export.ExportedProgram:
        if traced.refusals:
            raise traced.refusals[0]
        with (
            torch.enable_grad(),
            _own_functions(traced.changed) as functions,
            _left_out_of_trace(name) as left_out,
            _asked_of_one() as asked,
        ):
            try:
                program = original(*args, **kwargs)
            except torch._dynamo.exc.UserError as error:  # the exporter then narrows the extents or tries another way
                traced.conditions = traced.conditions or _conditions_of(str(error))
                raise
        traced.conditions = traced.conditions or asked or _asserted(program)
        try:
            if left_out:
                raise left_out[0]
            _check_program(name, program, functions, ignores_own_gradients)
            traced.idle_dropout = idle_dropout(module, program)
            write_feature_dropout(program)
            traced.drawn = drawn_in_training(module, program, lambda: original(*args, **kwargs))
            _write_detach(program)
            check_indices(program)
            _write_cosine_similarity(program)
        except Error as refusal:
            traced.refusals.append(refusal)
            raise
        return program

    torch.export.export = checked
    try:
        yield traced
    finally:
        torch.export.export = original


def _conditions_of(message: str) -> list[str]:
    """Returns the conditions of `forward` on extents, such as "x.shape[0] <= 4", from an error of torch."""
    text = re.sub(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]", r"\1.shape[\2]", message).replace("IntInfinity()", "inf")
    guards = re.findall(r"satisfy the generated guard (.+?)\.?(?:Specializations .*)?$", text, re.MULTILINE)
    constants = re.findall(r"You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)", text)
    return [*(f"{name} == {extent}" for name, extent in constants), *guards]


def _asserted(program: torch.export.ExportedProgram) -> list[str]:
    """Returns the conditions that torch would assert while the program runs and that the exporter omits, such as
    "Ne(Mod(s77, 4), 0)"."""
    import torch

    asserted = program.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_scalar.default)
    texts = (str(node.args[1]).removeprefix("Runtime assertion failed for expression ") for node in asserted)
    expressions = (text.partition(" on node ")[0] for text in texts)
    # PyTorch's own functions test for a single element, also of a concatenation, and for equal numbers of elements.
    harmless = re.compile(r"\w+ >= [012]|Ne\([\w +*]+, [01]\)|Eq\(s\d+, s\d+\)")
    return [each for each in expressions if not harmless.fullmatch(each)]


def _check_program(
    name: str, program: torch.export.ExportedProgram, functions: set[str], ignores_own_gradients: bool
) -> None:
    nodes = list(program.graph.nodes)
    for node in nodes:
        _check_options(name, node)
    if ignores_own_gradients:
        return
    _check_detached(name, program, nodes)
    way_out = (
        "ONNX cannot express that, and a training step would use the gradients of the operators; "
        'own_gradients="ignore" imports the module anyway, as for inference'
    )
    if functions:
        raise Error(f"from_torch: {name} has custom gradients, of {', '.join(sorted(functions))}; {way_out}")
    numbers = _numbers(program, nodes)
    if numbers:
        places = ", ".join(dict.fromkeys(place_of(node) for node in numbers[:3]))
        raise Error(f"from_torch: {name} reads values that have a gradient as numbers ({places}); {way_out}")


def _write_detach(program: torch.export.ExportedProgram) -> None:
    """Inserts detach(), which the exporter keeps, at each value without gradient. Regions of torch.no_grad() are
    subgraphs, and the exporter drops their meaning. It also omits detach_()."""
    import torch

    switch = torch.ops.higher_order.wrap_with_set_grad_enabled
    for part in graphs_of(program):
        for node in part.graph.find_nodes(op="call_function", target=torch.ops.aten.detach_.default):
            node.target = torch.ops.aten.detach.default
            node.args[0].replace_all_uses_with(node, delete_user_cb=lambda user, node=node: node < user)
        for node in part.graph.find_nodes(op="call_function", target=switch):
            for result in list(node.users):
                if node.args[0] or not _may_have_gradient(result):
                    continue
                with part.graph.inserting_after(result):
                    stop = part.graph.call_function(torch.ops.aten.detach.default, (result,))
                stop.meta = dict(result.meta)
                result.replace_all_uses_with(stop, delete_user_cb=lambda user, stop=stop: user is not stop)
                if part is program.graph_module:
                    program.graph_signature.replace_all_uses(result.name, stop.name)


def _write_cosine_similarity(program: torch.export.ExportedProgram) -> None:
    """Replaces cosine_similarity by the computation of PyTorch. A norm below eps counts as eps, and keeps the gradient
    of the norm. In the exporter's form it would have no gradient."""
    import torch

    aten = torch.ops.aten
    for part in graphs_of(program):
        for node in part.graph.find_nodes(op="call_function", target=aten.cosine_similarity.default):
            dim, eps = argument(node, 2, "dim", 1), argument(node, 3, "eps", 1e-8)
            call = partial(call_before, node)
            operands = call(aten.broadcast_tensors.default, list(node.args[:2]))
            units = []
            for place in range(2):
                x = call(operator.getitem, operands, place)
                norm = call(aten.linalg_vector_norm.default, x, 2.0, [dim], True)
                lacking = call(aten.clamp_min.default, call(aten.rsub.Scalar, norm, eps), 0.0)
                raised = call(aten.add.Tensor, norm, call(aten.detach.default, lacking))
                units.append(call(aten.div.Tensor, x, raised))
            result = call(aten.sum.dim_IntList, call(aten.mul.Tensor, *units), [dim])
            result.meta = dict(node.meta)
            node.replace_all_uses_with(result)
            part.graph.erase_node(node)
            if part is program.graph_module:
                program.graph_signature.replace_all_uses(node.name, result.name)


def check_after(module: torch.nn.Module, program: torch.export.ExportedProgram, known: set[str]) -> None:
    """Checks that `forward` changes no parameter, and no buffer on which results depend except the `known` ones."""
    signature = program.graph_signature
    for output in signature.output_specs:
        if output.kind.name == "PARAMETER_MUTATION":
            raise Error(
                f"from_torch: {type(module).__name__} changes its parameter {output.target} in forward, which a file cannot represent: "
                "make a new value of it there, or change the state of the executable between calls"
            )
    outputs = set(signature.user_outputs)
    needed = _reached([node for node in program.graph.nodes if node.name in outputs])
    placeholders = {target: name for name, target in signature.inputs_to_buffers.items()}
    read = {node.name for node in needed}
    for buffer in signature.buffers_to_mutate.values():
        if buffer not in known and placeholders.get(buffer) in read:
            raise Error(
                f"from_torch: {type(module).__name__} changes its buffer {buffer} in forward, which a file cannot represent: "
                "put that part in evaluation mode, or give the value as an input"
            )


@contextlib.contextmanager
def _own_functions(changed: dict[str, str]) -> Iterator[set[str]]:
    """What has gradients of its own meanwhile: the names of the subclasses of torch.autograd.Function that are applied, hooks, and
    inference_mode. Puts numbers that modules keep from call to call into `changed`."""
    import torch

    names: set[str] = set()
    set_attribute = torch.nn.Module.__setattr__
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
        if not is_of_torch(sys._getframe(1).f_code.co_filename):  # torch itself enters it while tracing
            names.add("inference_mode")
        return inference_mode(mode)

    def attribute_set(part: torch.nn.Module, name: str, value: Any) -> None:
        is_number = isinstance(value, Number) and isinstance(getattr(part, name, None), Number)
        if is_number and value != getattr(part, name) and not is_of_torch(sys._getframe(1).f_code.co_filename):
            changed[f"{type(part).__name__} changes its attribute {name} in forward ({own_place()})"] = str(value)
        set_attribute(part, name, value)

    torch.nn.Module.__setattr__ = attribute_set
    torch.autograd.Function.apply = classmethod(noted)
    torch.Tensor.register_hook, torch.inference_mode.__enter__ = hooked, entered
    try:
        yield names
    finally:
        torch.nn.Module.__setattr__ = set_attribute
        torch.autograd.Function.apply = original
        torch.Tensor.register_hook, torch.inference_mode.__enter__ = register_hook, inference_mode


@contextlib.contextmanager
def _left_out_of_trace(name: str) -> Iterator[list[Error]]:
    """Collects operations of the module `name` that no trace shows. `.data` becomes detach(), which the exporter knows:
    the same values without gradient, in the same memory."""
    import torch

    functional, tensor = torch.nn.functional, torch.Tensor
    original, data, cdist = functional.handle_torch_function, tensor.data, torch._VF.cdist
    left_out: list[Error] = []

    def handled(function: Any, operands: Any, *args: Any, **kwargs: Any) -> Any:
        # torch 2.13 does not pass on the weight of l1_loss.
        if function is functional.l1_loss and len(operands) == 3 and operands[2] is not None and "weight" not in kwargs:
            left_out.append(
                Error(
                    f"from_torch: {name} has l1_loss with weight ({own_place()}), which torch's exporter leaves out; write it as "
                    "(w * (x - y).abs()).sum() / w.sum()"
                )
            )
        return original(function, operands, *args, **kwargs)

    def get(value: torch.Tensor) -> torch.Tensor:
        return data.__get__(value) if is_of_torch(sys._getframe(1).f_code.co_filename) else value.detach()

    def put(value: torch.Tensor, other: torch.Tensor) -> None:
        if not is_of_torch(sys._getframe(1).f_code.co_filename):
            left_out.append(
                Error(
                    f"from_torch: {name} assigns to .data of a tensor in forward ({own_place()}), which torch's exporter leaves out; "
                    "make a new value, such as other.detach()"
                )
            )
        data.__set__(value, other)

    def distances(one: torch.Tensor, other: torch.Tensor, p: float, mode: int | None) -> torch.Tensor:
        # The exporter has cdist only as products of matrices. How it is computed shall not depend on the number of rows.
        rows = [each.shape[-2] for each in (one, other)]
        is_large = all(isinstance(each, int) for each in rows) and max(rows) > 25
        if p == 2 and (mode == 1 or (mode is None and is_large)):
            return cdist(one, other, p, mode)
        return torch.linalg.vector_norm(one.unsqueeze(-2) - other.unsqueeze(-3), ord=p, dim=-1)

    functional.handle_torch_function, tensor.data = handled, property(get, put)
    torch._VF.cdist = distances
    try:
        yield left_out
    finally:
        functional.handle_torch_function = original
        del tensor.data, torch._VF.cdist  # they are inherited


@contextlib.contextmanager
def _asked_of_one() -> Iterator[list[str]]:
    """Collects conditions of the user's code on extents whose answer differs for an extent of 1, such as whether there
    is more than one row. torch silently takes the answer for all extents. Its own conditions are right for 1 too."""
    import torch

    original = torch.SymBool.__bool__
    asked: list[str] = []

    def answered(question: torch.SymBool) -> bool:
        expression = question.node.expr
        answer = original(question)
        of_one = expression.subs(dict.fromkeys(expression.free_symbols, 1))
        if bool(of_one) != answer and not is_of_torch(sys._getframe(1).f_code.co_filename):
            asked.append(f"{expression} at {own_place()}")
        return answer

    torch.SymBool.__bool__ = answered
    try:
        yield asked
    finally:
        torch.SymBool.__bool__ = original


def _check_detached(name: str, program: torch.export.ExportedProgram, nodes: list[torch.fx.Node]) -> None:
    """Refuses an in-place change without gradient, through detach(), .data or in no_grad(), of a value that is used
    later. PyTorch keeps the value's gradient, but the exporter uses the gradient of the changed value, which is none.
    `check_after` refuses all changes of parameters and buffers."""
    import torch

    trained = _trained(program)
    kept = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    for node in nodes:
        for by, written, is_detached, is_result in _written(node, program.graph_module):
            for value in _aliases(written):
                used = is_result or any(node < user for user in value.users)
                is_lost = is_detached and used and value.name not in kept
                if is_lost and _may_have_gradient(value) and any(each.name in trained for each in _reached([value])):
                    raise Error(
                        f"from_torch: {name} changes a value in place without gradient, through detach(), .data or in no_grad() "
                        f"({place_of(by)}), and uses it later, where torch's exporter leaves out its gradient; make a new value"
                    )
                is_detached |= value.target is torch.ops.aten.detach.default


def _written(
    node: torch.fx.Node, module: torch.fx.GraphModule
) -> Iterator[tuple[torch.fx.Node, torch.fx.Node, bool, bool]]:
    """Yields the in-place changes of a node: the operator, the changed value, whether the change has no gradient, and
    whether later uses read a result of the node. A region of no_grad() is one node."""
    import torch

    if _writes(node):
        yield node, node.args[0], False, False
    if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not node.args[0]:
        inner = list(getattr(module, node.args[1].target).graph.nodes)
        given = dict(zip((each for each in inner if each.op == "placeholder"), node.args[2:], strict=True))
        results = {value for result in inner[-1].all_input_nodes for value in _aliases(result)}
        for each in filter(_writes, inner):
            yield from ((each, given[value], True, value in results) for value in _aliases(each) if value in given)


def _aliases(value: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yields the value, the value of which it is a view, and so on."""
    while value is not None:
        yield value
        value = _base_of(value)


def _writes(node: torch.fx.Node) -> bool:
    """True if the operator changes its first operand in place."""
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    is_written = bool(arguments) and arguments[0].alias_info is not None and arguments[0].alias_info.is_write
    return is_written and bool(node.args) and hasattr(node.args[0], "users")  # not a list


def _base_of(node: torch.fx.Node) -> torch.fx.Node | None:
    """The operand whose memory a node's result may share."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    is_alias = node.target is operator.getitem or (bool(returns) and returns[0].alias_info is not None)
    if not is_alias or not node.args or not hasattr(node.args[0], "users"):
        return None
    dtype, dtype_of_base = (getattr(each.meta.get("val"), "dtype", None) for each in (node, node.args[0]))
    return None if dtype and dtype_of_base and dtype != dtype_of_base else node.args[0]


def _check_options(name: str, node: torch.fx.Node) -> None:
    import torch

    aten = torch.ops.aten
    if node.target in (aten.avg_pool2d.default, aten.avg_pool3d.default):
        divisor = argument(node, 6, "divisor_override", None)
        if divisor is not None:
            raise Error(
                f"from_torch: {name} has an average pooling with divisor_override = {divisor} ({place_of(node)}), which torch's "
                "exporter leaves out; scale the pooled values"
            )
    if node.target in (
        aten.embedding.default,
        aten.embedding_bag.padding_idx,
        aten.embedding_bag.default,
    ) and argument(node, 3, "scale_grad_by_freq", False):
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
            f"from_torch: {name} has multilabel_margin_loss ({place_of(node)}), for which torch's exporter writes another "
            "function if a row of the target ends with -1; write it as a sum of relu(1 - (x[target] - x))"
        )
    if node.target is aten.scatter_reduce.two and argument(node, 4, "reduce", "") == "mean":
        raise Error(
            f'from_torch: {name} has scatter_reduce with reduce = "mean" ({place_of(node)}), which ONNX does not have; '
            "divide a sum by the counts"
        )


def _numbers(program: torch.export.ExportedProgram, nodes: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """Returns the nodes that read values as numbers, such as item(), between a parameter and the results."""
    import torch

    aten = torch.ops.aten
    parameters = _trained(program)
    depends: set[torch.fx.Node] = set()
    numbers = set()
    for node in nodes:
        if node.name in parameters:
            depends.add(node)
        elif any(operand in depends for operand in node.all_input_nodes):
            is_number = node.target in (aten.item.default, aten._local_scalar_dense.default)
            (numbers if is_number else depends).add(node)
    needed = _reached([node for node in nodes if node.op == "output"])
    return [node for node in nodes if node in numbers and node in needed]


def _trained(program: torch.export.ExportedProgram) -> set[str]:
    """The names of the nodes that are trained parameters."""
    trained = {name for name, parameter in program.named_parameters() if parameter.requires_grad}
    return {name for name, target in program.graph_signature.inputs_to_parameters.items() if target in trained}


def _reached(ends: list[torch.fx.Node]) -> set[torch.fx.Node]:
    """Returns the nodes on which `ends` depend, including `ends`."""
    reached, open_nodes = set(), list(ends)
    while open_nodes:
        node = open_nodes.pop()
        if node not in reached:
            reached.add(node)
            open_nodes.extend(node.all_input_nodes)
    return reached


def _may_have_gradient(node: torch.fx.Node) -> bool:
    import torch

    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()
