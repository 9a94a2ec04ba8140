"""The models that onnx_gradients.py differentiates: ONNX's tests by operator, in f64, with a loss."""

from __future__ import annotations

import functools
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.model import collect_testcases as collect_models
from onnx.backend.test.case.node import collect_testcases as collect_nodes

sys.path.append(str(Path(__file__).parents[2] / "frontends"))
import export_node_cases

# Models for operators whose own cases have no float inputs.
MODELS = {
    "optional_that_is_full": """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[3] x) => (float[3] y) {
             o = Optional(x)
             full = OptionalHasElement(o)
             y0 = OptionalGetElement(o)
             y = Where(full, y0, x)
        }""",
    "branch_that_reads_from_around_it": """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[3] x) => (float[3] y) {
             yes = Constant <value = bool {1}> ()
             y = If (yes) <
                  then_branch = a () => (float[3] u) { u = Sin(x) },
                  else_branch = b () => (float[3] v) { v = Cos(x) }>
        }""",
    "constant_beside_an_input": """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[3] x) => (float[3] y) {
             c = Constant <value = float[3] {1.0, 2.0, 3.0}> ()
             y = Mul(x, c)
        }""",
}

# Models for operators that neither ONNX's tests nor its reference evaluator cover, each with a model of the same
# meaning that the reference evaluator runs.
MODELS_WITH_REFERENCE = {
    "global_lp_pool": (
        """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[2,3,4,5] x) => (float[2,3,1,1] y) { y = GlobalLpPool <p = 3> (x) }""",
        """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[2,3,4,5] x) => (float[2,3,1,1] y) {
             three = Constant <value = float {3.0}> ()
             axes = Constant <value = int64[2] {2, 3}> ()
             size = Abs(x)
             power = Pow(size, three)
             sum = ReduceSum(power, axes)
             third = Reciprocal(three)
             y = Pow(sum, third)
        }""",
    ),
    "max_roi_pool": (
        """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[1,2,4,4] x) => (float[1,2,1,1] y) {
             whole = Constant <value = float[1,5] {0.0, 0.0, 0.0, 3.0, 3.0}> ()
             y = MaxRoiPool <pooled_shape = [1, 1]> (x, whole)
        }""",
        """
        <ir_version: 9, opset_import: ["" : 18]>
        g (float[1,2,4,4] x) => (float[1,2,1,1] y) { y = GlobalMaxPool (x) }""",
    ),
}

NUMPY_TYPES = {"bfloat16", "bool", *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64))}
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
MAX_CASES = 12  # per operator
MAX_ELEMENTS = 2048  # of all inputs
MAX_BYTES = 1 << 20  # of a model: larger ones contain data


@dataclass
class Case:
    """One of ONNX's tests: a model, and its inputs by name."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]
    reference: onnx.ModelProto | None = None  # the model that the reference evaluator runs, if it is another one


@functools.cache
def node_tests() -> list[object]:
    """ONNX's node tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases test overflows
        return list(collect_nodes())


@functools.cache
def cases() -> dict[str, list[Case]]:
    """ONNX's tests by operator. Operators without a test of their own have models of several nodes."""
    found: dict[str, list[Case]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases test overflows
        for case in node_tests():
            if "_expanded" not in case.name and not case.model.graph.node[0].domain:
                add_case(found, case, {case.model.graph.node[0].op_type})
        for case in collect_models():
            if case.model is not None:
                types = {node.op_type for node in case.model.graph.node}
                add_case(found, case, {each for each in types if each not in found or "sequence" in case.name})
        for name, text in MODELS.items():
            add_text(found, name, text)
        for name, texts in MODELS_WITH_REFERENCE.items():
            add_text(found, name, *texts)
    return {op: spread(small(with_floats(op, each))) for op, each in found.items()}


def add_text(found: dict[str, list[Case]], name: str, text: str, reference: str | None = None) -> None:
    """Adds a model in text form, as a case of those of its operators whose other cases have no float inputs."""
    model = onnx.parser.parse_model(text)
    random = np.random.Generator(np.random.PCG64(2))
    shapes = {info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim] for info in model.graph.input}
    inputs = {each: random.normal(size=shape).astype(np.float32) for each, shape in shapes.items()}
    for op in {node.op_type for node in model.graph.node}:
        if not any(is_float(x) for case in found.get(op, []) for x in case.inputs.values()):
            other = onnx.parser.parse_model(reference) if reference else None
            found.setdefault(op, []).append(Case(name, model, inputs, other))


def with_floats(op: str, items: list[Case]) -> list[Case]:
    """The cases with float inputs; if there are none, all cases, with floats in place of integers where the operator
    accepts them.
    """
    chosen = [case for case in items if any(is_float(x) for x in case.inputs.values())]
    return chosen or [floated(op, case) for case in items]


def floated(op: str, case: Case) -> Case:
    opset = next(each.version for each in case.model.opset_import if not each.domain)
    [node] = [each for each in case.model.graph.node if each.op_type == op][:1]
    schema = onnx.defs.get_schema(op, opset)
    kinds = {each.type_param_str: each.allowed_type_strs for each in schema.type_constraints}
    random = np.random.Generator(np.random.PCG64(5))
    model, inputs = onnx.ModelProto(), dict(case.inputs)
    model.CopyFrom(case.model)
    for name, formal in zip(node.input, schema.inputs, strict=False):
        if "tensor(double)" in kinds.get(formal.type_str, []) and name in inputs and inputs[name].dtype.kind in "iu":
            inputs[name] = inputs[name] + random.uniform(-0.4, 0.4, inputs[name].shape)
    for info in model.graph.input:
        if is_float(inputs[info.name]):
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    return Case(case.name + " in f64", model, inputs)


def small(items: list[Case]) -> list[Case]:
    """The cases with few elements, which the reference evaluator runs quickly; all if there are none."""
    return [case for case in items if sum(x.size for x in case.inputs.values()) <= MAX_ELEMENTS] or items


def spread(items: list[Case]) -> list[Case]:
    """At most MAX_CASES, evenly from the list."""
    step = max(1.0, len(items) / MAX_CASES)
    return [items[int(i * step)] for i in range(min(len(items), MAX_CASES))]


def add_case(found: dict[str, list[Case]], case: object, types: set[str]) -> None:
    if case.model.ByteSize() > MAX_BYTES or not case.data_sets:
        return
    inputs, outputs = case.data_sets[0]
    model, inputs, outputs = export_node_cases.with_tensors_only(case.model, inputs, outputs)
    if None in inputs or None in outputs:
        return  # strings, or a type that NumPy lacks
    arrays = [numpy_helper.to_array(tensor) for tensor in inputs]
    if any(array.dtype.name not in NUMPY_TYPES for array in arrays):
        return  # numbers of 8 bits or fewer that Lockstep has no dtype for
    names = [info.name for info in model.graph.input]
    for each in types:
        found.setdefault(each, []).append(Case(case.name, model, dict(zip(names, arrays, strict=False))))


# The model that is differentiated


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with f64 in place of the other float types."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    widen_graph(wide.graph)
    for function in wide.functions:
        widen_nodes(function.node)
    return wide


def widen_graph(graph: onnx.GraphProto) -> None:
    for info in [*graph.input, *graph.output, *graph.value_info]:
        widen_type(info.type)
    for tensor in graph.initializer:
        widen_tensor(tensor)
    widen_nodes(graph.node)


def widen_nodes(nodes: list[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in FLOATS:
                attribute.i = TensorProto.DOUBLE
            if attribute.HasField("t"):
                widen_tensor(attribute.t)
            if attribute.HasField("tp"):
                widen_type(attribute.tp)
            if attribute.HasField("g"):
                widen_graph(attribute.g)
        if node.op_type == "SequenceEmpty" and not node.attribute:
            node.attribute.append(helper.make_attribute("dtype", TensorProto.DOUBLE))
        if node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats", "value_int"):
            # As tensor attributes, which all opsets have.
            array = np.array(helper.get_attribute_value(node.attribute[0]))
            node.attribute[0].CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def widen_type(kind: onnx.TypeProto) -> None:
    for name in ("sequence_type", "optional_type"):
        if kind.HasField(name):
            widen_type(getattr(kind, name).elem_type)
    if kind.HasField("tensor_type") and kind.tensor_type.elem_type in FLOATS:
        kind.tensor_type.elem_type = TensorProto.DOUBLE


def widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in FLOATS:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def is_float(array: np.ndarray) -> bool:
    return array.dtype.name in ("float64", "float32", "float16", "bfloat16")


def tamed(array: np.ndarray) -> np.ndarray:
    """The array with finite numbers in place of infinities and NaN."""
    return np.where(np.isfinite(array), array, array.dtype.type(0.75)) if is_float(array) else array


def takes_f64(model: onnx.ModelProto) -> bool:
    """True if the schemas of the model's operators allow f64 wherever they allow f32."""
    opset = next(each.version for each in model.opset_import if not each.domain)
    for node in model.graph.node:
        if node.domain or not onnx.defs.has(node.op_type, opset):
            continue
        for constraint in onnx.defs.get_schema(node.op_type, opset).type_constraints:
            types = constraint.allowed_type_strs
            if "tensor(float)" in types and "tensor(double)" not in types:
                return False
    return True


def with_loss(model: onnx.ModelProto, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """The model with one output: the sum of its outputs times `weights`."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes, graph = changed.graph.node, changed.graph
    total = ""
    for i, (name, weight) in enumerate(weights.items()):
        nodes.append(helper.make_node("Cast", [name], [f"oracle/wide{i}"], to=TensorProto.DOUBLE))
        nodes.append(helper.make_node("Constant", [], [f"oracle/weight{i}"], value=numpy_helper.from_array(weight)))
        nodes.append(helper.make_node("Mul", [f"oracle/wide{i}", f"oracle/weight{i}"], [f"oracle/product{i}"]))
        nodes.append(helper.make_node("ReduceSum", [f"oracle/product{i}"], [f"oracle/sum{i}"], keepdims=0))
        if total:
            nodes.append(helper.make_node("Add", [total, f"oracle/sum{i}"], [f"oracle/total{i}"]))
        total = f"oracle/total{i}" if total else f"oracle/sum{i}"
    nodes.append(helper.make_node("Identity", [total], ["oracle"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("oracle", TensorProto.DOUBLE, []))
    return changed
