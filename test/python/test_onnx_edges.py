"""Edge cases of ONNX operators: NaN and infinities, empty tensors, integers too large for a double, indices out of
range, defaults of every opset.

Expected values are written out, or come from another form of the same file. Values come once as data, and once as
initializers, with which the import computes.
"""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import lockstep as ls
import lockstep.onnx_backend as backend

NAN, INF, MOST = np.nan, np.inf, float(np.finfo(np.float32).max)
BIG = 2**53  # the integers after it are not exact in f64
HIGHEST = 2**63 - 1


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def i64(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def model_of(op: str, opset: int, inputs: list[Any], fixed: set[int], **attributes: Any) -> onnx.ModelProto:
    """A model of one node. The inputs in `fixed` are initializers; an input that is None is absent."""
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    given = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if name}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
        if int(name[1:]) not in fixed
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in given.items() if int(name[1:]) in fixed]
    outputs = [f"y{i}" for i in range(2 if op == "TopK" else 1)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, **attributes)],
        "edge",
        infos,
        [helper.make_empty_tensor_value_info(output) for output in outputs],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run(op: str, opset: int, inputs: list[Any], fixed: set[int], attributes: dict[str, Any]) -> list[np.ndarray]:
    prepared = backend.Prepared(model_of(op, opset, inputs, fixed, **attributes))
    data = [np.asarray(value) for i, value in enumerate(inputs) if value is not None and i not in fixed]
    return list(prepared.run(data))


# Operator, opset, inputs, attributes, outputs.
Row = tuple[str, int, list[Any], dict[str, Any], list[Any]]

FLOATS: list[Row] = [
    ("Softplus", 22, [f32(-INF, -200, 0, 200, INF, NAN)], {}, [f32(0, 0, np.log(2), 200, INF, NAN)]),
    ("Clip", 6, [f32(-INF, 2, INF, NAN)], {}, [f32(-MOST, 2, MOST, NAN)]),
    ("Clip", 13, [f32(-INF, 2, INF, NAN)], {}, [f32(-INF, 2, INF, NAN)]),
    ("Clip", 13, [f32(-INF, 2, INF, NAN), f32(1)[0], f32(0)[0]], {}, [f32(0, 0, 0, NAN)]),  # the maximum has precedence
    ("ReduceMax", 20, [f32([1, NAN, 3], [-INF, -INF, -INF]), i64(1)], {}, [f32([NAN], [-INF])]),
    ("ReduceMin", 20, [f32([1, 3, NAN], [INF, INF, INF]), i64(1)], {}, [f32([NAN], [INF])]),
    ("ReduceSum", 13, [f32([INF, -INF], [INF, 1]), i64(1)], {}, [f32([NAN], [INF])]),
    ("ReduceLogSumExp", 18, [f32([-INF, -INF], [INF, 1], [200, 200]), i64(1)], {}, [f32([-INF], [INF], [200 + np.log(2)])]),
    ("ArgMax", 13, [f32([1, NAN, INF, NAN], [2, 5, 5, 1])], {"axis": 1}, [i64([1], [1])]),
    ("ArgMin", 13, [f32([1, NAN, -INF, NAN], [2, 1, 5, 1])], {"axis": 1}, [i64([1], [1])]),
    ("TopK", 11, [f32(1, NAN, -INF, INF), i64(3)], {}, [f32(NAN, INF, 1), i64(1, 3, 0)]),
    ("TopK", 11, [f32(1, NAN, -INF, INF), i64(3)], {"largest": 0}, [f32(-INF, 1, INF), i64(2, 0, 3)]),
    ("MaxPool", 12, [f32([[1, NAN, 2, 3, -INF, -INF, -INF]])], {"kernel_shape": [2]}, [f32([[NAN, NAN, 3, 3, -INF, -INF]])]),
    ("MaxPool", 12, [f32([[-INF, -INF, 5]])], {"kernel_shape": [2], "pads": [1, 0]}, [f32([[-INF, -INF, 5]])]),
    ("Softmax", 13, [f32([-INF, 0, 0], [-INF, NAN, 0])], {}, [f32([0, 0.5, 0.5], [NAN, NAN, NAN])]),
    ("CumSum", 14, [f32(1, INF, -INF, 1), i64(0)], {}, [f32(1, INF, NAN, NAN)]),
    ("Cast", 13, [f32(NAN, INF, -INF, 3.9, -3.9)], {"to": TensorProto.INT32}, [i32(0, 2**31 - 1, -(2**31), 3, -3)]),
    ("Cast", 13, [f32(NAN, INF, -1, 300)], {"to": TensorProto.UINT8}, [np.array([0, 255, 0, 255], np.uint8)]),
    ("Resize", 13, [f32([1, INF, 1, 1]), None, f32(1, 2)], {"mode": "linear"}, [f32([NAN, INF, INF, INF, INF, NAN, NAN, NAN])]),
    ("Resize", 13, [f32([1], [INF], [1]), None, f32(2, 1)], {"mode": "linear"}, [f32([1], [INF], [INF], [INF], [INF], [1])]),
    ("Selu", 1, [f32(-1, 1)], {}, [f32(1.0507 * 1.6732 * (np.exp(-1) - 1), 1.0507)]),
    ("Selu", 6, [f32(-1, 1)], {}, [f32(1.05070102 * 1.67326319 * (np.exp(-1) - 1), 1.05070102)]),
]  # fmt: skip

HALF = np.float16
HALVES: list[Row] = [
    *[
        (op, 18, [np.ones((1, 1, 300, 300), HALF), *axes], {}, [np.ones((1, 1, 1, 1), HALF)])
        for op, axes in (("GlobalAveragePool", []), ("ReduceMean", [i64(2, 3)]))
    ],
    (
        "LRN",
        13,
        [np.full((1, 1, 1, 2), 300, HALF)],
        {"size": 1, "alpha": 1.0, "beta": 0.5},
        [np.ones((1, 1, 1, 2), HALF)],
    ),
    ("ReduceMean", 18, [np.full((2, 3), 60000, HALF), i64(1)], {}, [np.full((2, 1), 60000, HALF)]),
    ("LayerNormalization", 17, [np.array([[30000, -30000]], HALF), np.ones(2, HALF)], {}, [np.array([[1, -1]], HALF)]),
]

EMPTY = np.zeros((2, 0), np.float32)
EMPTIES: list[Row] = [
    ("ReduceSum", 13, [EMPTY, i64(1)], {}, [f32([0], [0])]),
    ("ReduceProd", 18, [EMPTY, i64(1)], {}, [f32([1], [1])]),
    ("ReduceMax", 18, [EMPTY, i64(1)], {}, [f32([-INF], [-INF])]),
    ("ReduceMin", 18, [EMPTY.astype(np.int64), i64(1)], {}, [i64([HIGHEST], [HIGHEST])]),
    ("ReduceMean", 18, [EMPTY, i64(1)], {}, [f32([NAN], [NAN])]),
    ("ReduceSum", 13, [EMPTY, i64(0)], {}, [np.zeros((1, 0), np.float32)]),
    ("ReduceMax", 18, [f32(5)[0]], {}, [f32(5)[0]]),  # a scalar
    ("ReduceSumSquare", 18, [f32([-1, 2])], {"noop_with_empty_axes": 1}, [f32([1, 4])]),
    ("TopK", 11, [EMPTY, i64(0)], {}, [EMPTY, np.zeros((2, 0), np.int64)]),
    ("MatMul", 13, [EMPTY, np.zeros((0, 3), np.float32)], {}, [np.zeros((2, 3), np.float32)]),
    ("Gather", 13, [EMPTY, np.zeros((0, 4), np.int64)], {"axis": 1}, [np.zeros((2, 0, 4), np.float32)]),
    ("Concat", 13, [EMPTY, f32([1], [2])], {"axis": 1}, [f32([1], [2])]),
    ("Softmax", 13, [EMPTY], {}, [EMPTY]),
    ("LayerNormalization", 17, [EMPTY.T, f32(1, 1)], {}, [EMPTY.T]),
    ("MaxPool", 12, [np.zeros((0, 1, 4), np.float32)], {"kernel_shape": [2]}, [np.zeros((0, 1, 3), np.float32)]),
    ("Range", 11, [i64(5)[0], i64(0)[0], i64(3)[0]], {}, [i64()]),
]

DIGITS: list[Row] = [
    ("Range", 11, [i64(BIG + 1)[0], i64(BIG + 5)[0], i64(2)[0]], {}, [i64(BIG + 1, BIG + 3)]),
    ("Range", 11, [i64(-(2**63))[0], i64(HIGHEST)[0], i64(2**62 + 1)[0]], {}, [i64(-(2**63), 1 - 2**62, 2, 2**62 + 3)]),
    ("Range", 11, [i64(BIG + 1)[0], i64(BIG - 2)[0], i64(-2)[0]], {}, [i64(BIG + 1, BIG - 1)]),
    ("Pad", 13, [i64(BIG + 3), i64(1, 1), i64(BIG + 1)[0]], {}, [i64(BIG + 1, BIG + 3, BIG + 1)]),
    ("Pad", 13, [i64(1, 2, 3), i64(-1, 1), i64(HIGHEST - 1)[0]], {}, [i64(2, 3, HIGHEST - 1)]),
    ("Add", 14, [i64(BIG, HIGHEST), i64(1, 1)], {}, [i64(BIG + 1, -(2**63))]),
    ("Mul", 14, [i64(BIG + 1), i64(3)], {}, [i64(3 * BIG + 3)]),
    ("Div", 14, [i64(BIG + 1, -(2**63), -7), i64(1, -1, 2)], {}, [i64(BIG + 1, -(2**63), -3)]),
    ("Mod", 13, [i64(BIG + 1, -(2**63), -7), i64(BIG, -1, 2)], {}, [i64(1, 0, 1)]),
    ("Max", 13, [i64(BIG), i64(BIG + 1)], {}, [i64(BIG + 1)]),
    ("Less", 13, [i64(BIG, BIG + 1), i64(BIG + 1, BIG)], {}, [np.array([True, False])]),
    ("Equal", 13, [i64(BIG + 1), i64(BIG)], {}, [np.array([False])]),
    ("Clip", 13, [i64(BIG + 1, BIG + 9), i64(BIG + 3)[0], i64(BIG + 5)[0]], {}, [i64(BIG + 3, BIG + 5)]),
    ("ReduceSum", 13, [i64([BIG, 1]), i64(1)], {}, [i64([BIG + 1])]),
    ("ReduceMax", 18, [i64([BIG, BIG + 1]), i64(1)], {}, [i64([BIG + 1])]),
    ("ReduceMean", 18, [i64([BIG + 1, BIG + 1]), i64(1)], {}, [i64([BIG + 1])]),
    ("CumSum", 14, [i64(BIG, 1, 1), i64(0)], {}, [i64(BIG, BIG + 1, BIG + 2)]),
    ("ArgMax", 13, [i64([BIG, BIG + 1])], {"axis": 1}, [i64([1])]),
    ("TopK", 11, [i64(BIG, BIG + 1, BIG + 2), i64(2)], {}, [i64(BIG + 2, BIG + 1), i64(2, 1)]),
    ("Gather", 13, [i64(BIG, BIG + 1), i64(-1)], {}, [i64(BIG + 1)]),
    ("ScatterElements", 18, [i64(BIG, 1), i64(0), i64(BIG + 1)], {"reduction": "max"}, [i64(BIG + 1, 1)]),
    ("ScatterElements", 18, [i64(BIG, 1), i64(0), i64(1)], {"reduction": "add"}, [i64(BIG + 1, 1)]),
    ("MatMul", 13, [i64([BIG + 1, 2]), i64([1], [1])], {}, [i64([BIG + 3])]),
    ("Cast", 13, [np.array([2**64 - 1], np.uint64)], {"to": TensorProto.INT64}, [i64(-1)]),
    ("Pow", 13, [i32(5001, 3, 7), f32(2, 2.5, 1)], {}, [i32(5001**2, 15, 7)]),
    ("Pow", 13, [i64(2**31 + 1), f32(1)], {}, [i64(2**31 + 1)]),
    ("Pow", 13, [f32(-1, -1, 2), i64(2**24 + 1, 2**24, -1)], {}, [f32(-1, 1, 0.5)]),
    ("OneHot", 9, [i64(-1, 1, 3), i64(3)[0], i64(BIG, BIG + 1)], {}, [i64([BIG] * 3, [BIG, BIG + 1, BIG], [BIG] * 3)]),
    ("OneHot", 11, [i64(-1, -4), i64(3)[0], i64(BIG, BIG + 1)], {}, [i64([BIG, BIG, BIG + 1], [BIG] * 3)]),
]

# Inputs that an operator must know when it is imported.
KNOWN = {
    "Resize": {2},
    "Range": {0, 1, 2}, "Pad": {1, 2}, "OneHot": {1}, "CumSum": {1}, "TopK": {1}, "ReduceSum": {1}, "ReduceMax": {1},
    "ReduceMin": {1}, "ReduceMean": {1}, "ReduceProd": {1}, "ReduceLogSumExp": {1},
}  # fmt: skip


@pytest.mark.parametrize("row", [*FLOATS, *HALVES, *EMPTIES, *DIGITS], ids=lambda row: f"{row[0]}-{row[1]}")
@pytest.mark.parametrize("folded", [False, True], ids=["run", "known"])
def test_at_the_edges(row: Row, folded: bool) -> None:
    op, opset, inputs, attributes, expected = row
    floats = [i for i, value in enumerate(inputs) if value is not None and np.asarray(value).dtype.kind == "f"]
    # Float initializers would be parameters, also in a graph without inputs.
    fixed = {i for i in range(len(inputs)) if i not in floats} if folded else KNOWN.get(op, set())
    found = run(op, opset, inputs, fixed, attributes)
    assert len(found) == len(expected)
    for value, wanted in zip(found, expected, strict=True):
        assert (value.dtype, value.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(value, wanted, rtol=1e-6)
        else:
            np.testing.assert_array_equal(value, wanted)


WRONG: list[tuple[str, int, list[Any], dict[str, Any], str]] = [
    ("SoftmaxCrossEntropyLoss", 13, [f32([0, 0], [0, 0]), i64(1, 5)], {}, "label 5 at position [1] is outside [0, 2)"),
    ("SoftmaxCrossEntropyLoss", 13, [f32([0, 0], [0, 0]), i64(1, 5)], {"reduction": "none"}, "label is outside [0, 2)"),
    ("Range", 11, [i64(0)[0], i64(0)[0], i64(0)[0]], {}, "Range: the range from 0 to 0 in steps of 0 is not finite"),
    (
        "Range",
        11,
        [f32(0)[0], f32(3)[0], f32(NAN)[0]],
        {},
        "Range: the range from 0 to 3 in steps of nan is not finite",
    ),
    ("Pad", 13, [i64(1), i64(1, 1), f32(0.5)[0]], {}, "Pad: constant_value is f32[], expected one element of i64"),
    ("Gemm", 13, [i32([7]), i32([3])], {"alpha": 0.5}, "Gemm: attributes alpha 0.5 and beta 1 of integers, i32[1,1]"),
    ("Mean", 13, [i32(3), i32(4)], {}, "i32 cannot represent the value 0.5, at onnx:Mean_0"),
    ("LeakyRelu", 16, [i32(-3)], {}, "i32 cannot represent the value 0.009"),
    ("Split", 13, [f32(1, 2, 3)], {}, "Split: extent 3 in 2 equal parts, and no sizes are given"),
    ("Reshape", 13, [np.zeros((0, 3), np.float32), i64(0, -1)], {}, "Reshape: the -1 of [0, -1] may be any number"),
    ("ArgMax", 13, [EMPTY], {"axis": 1}, "argmax (C2): dimension 1 of f32[2,0] is empty"),
    ("TopK", 11, [f32(1, 2), i64(3)], {}, "top_k (C2): k is 3 for dimension 0 of f32[2]"),
    ("Div", 14, [i64(1), i64(0)], {}, "integer division by zero"),
    ("Mod", 13, [i64(1), i64(0)], {}, "integer division by zero"),
    ("Gather", 13, [f32(1, 2), i64(2)], {}, "index 2 is outside extent 2"),
    ("GatherElements", 13, [f32(1, 2), i64(-3)], {}, "index -3 at position [0] is outside [-2, 2)"),
    ("GatherND", 13, [f32([1, 2]), i64([0, 2])], {}, "is outside [-2, 2)"),
    ("ScatterElements", 18, [f32(1, 2), i64(2), f32(3)], {}, "index 2 at position [0] is outside [-2, 2)"),
    ("ScatterND", 18, [f32([1, 2]), i64([-2, 0]), f32(1)], {}, "is outside [-2, 2)"),
    ("Gather", 13, [np.zeros((0, 2), np.float32), i64(0)], {}, "index 0 is outside extent 0"),
]


@pytest.mark.parametrize("row", WRONG, ids=lambda row: row[0])
def test_what_has_no_meaning_is_an_error(row: tuple) -> None:
    op, opset, inputs, attributes, message = row
    fixed = KNOWN.get(op, {1} if op in ("Gather", "Reshape") else set())
    if op == "Split":
        model = model_of(op, opset, inputs, fixed, **attributes)
        model.graph.node[0].output.append("y1")
        prepared = backend.Prepared(model)
        with pytest.raises(ls.Error, match=re.escape(message)):
            prepared.run(inputs)
        return
    with pytest.raises(ls.Error, match=re.escape(message)):
        run(op, opset, inputs, fixed, attributes)


# Operators whose kernels check data, if the import has not seen it.
WHEN_RUN = {"Div", "Mod", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "SoftmaxCrossEntropyLoss"}


@pytest.mark.parametrize("row", [row for row in WRONG if row[0] in WHEN_RUN], ids=lambda row: row[0])
def test_data_that_has_no_meaning_is_an_error_when_it_comes(row: tuple) -> None:
    op, opset, inputs, attributes, message = row
    program = ls.compile(ls.load_onnx(model_of(op, opset, inputs, set(), **attributes), split={}), threads=1)
    data = {f"x{i}": value for i, value in enumerate(inputs)}
    with pytest.raises(ls.Error, match=re.escape(message)):
        program(**data)


def test_errors_of_what_an_operator_is_made_of_name_the_operator() -> None:
    model = model_of("ReduceL2", 18, [i64(3)], set())
    model.graph.node[0].name = "/norm/node"
    with pytest.raises(ls.Error, match=r"^<model>: ReduceL2: sqrt \(C1\): operand i64.*, at onnx:/norm/node$"):
        ls.load_onnx(model)


def test_a_file_has_one_opset_of_a_domain() -> None:
    model = model_of("Clip", 6, [f32(1)], set())
    model.opset_import.append(helper.make_opsetid("ai.onnx", 13))
    with pytest.raises(ls.Error, match="imports the domain ai.onnx in opsets 6 and 13"):
        ls.load_onnx(model)


def test_a_file_has_one_opset_of_another_domain() -> None:
    model = model_of("Clip", 6, [f32(1)], set())
    model.opset_import.extend([helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("com.microsoft", 2)])
    with pytest.raises(ls.Error, match="imports the domain com.microsoft in opsets 1 and 2"):
        ls.load_onnx(model)


def test_a_function_has_one_opset_of_a_domain() -> None:
    model = model_of("Clip", 6, [f32(1)], set())
    imports = [helper.make_opsetid("", 6), helper.make_opsetid("", 13)]
    node = helper.make_node("Identity", ["a"], ["b"])
    model.functions.append(helper.make_function("house", "same", ["a"], ["b"], [node], imports))
    model.opset_import.append(helper.make_opsetid("house", 1))
    model.graph.node[0].CopyFrom(helper.make_node("same", ["x0"], ["y0"], domain="house"))
    with pytest.raises(ls.Error, match="house.same imports the domain ai.onnx in opsets 6 and 13"):
        ls.load_onnx(model)


def test_an_exponent_that_is_given_stays_an_input() -> None:
    """`values` fixes only inputs that an operator must know at import; Pow does not need its exponent."""
    model = model_of("Pow", 13, [f32(2, 3), f32(2, 2)], set())
    graph = ls.load_onnx(model, values={"x1": f32(2, 2)})
    assert (graph.fixed_inputs, [info.name for info in graph.inputs]) == ([], ["x0", "x1"])
    np.testing.assert_array_equal(ls.compile(graph)(x0=f32(2, 3), x1=f32(3, 1))["y0"], f32(8, 3))


def test_the_gradient_of_softplus_at_zero_is_a_half_also_in_a_cell() -> None:
    weights = {
        "w": np.zeros((1, 1, 1), np.float32),
        "r": np.zeros((1, 1, 1), np.float32),
        "b": np.zeros((1, 2), np.float32),
    }
    node = helper.make_node("RNN", ["x", *weights], ["", "h"], hidden_size=1, activations=["Softplus"])
    total = helper.make_node("ReduceSum", ["h"], ["y"], keepdims=0)
    graph = helper.make_graph(
        [node, total],
        "cell",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = ls.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    gradient = ls.compile(ls.gradients(model, "y", ["b"]))(x=np.ones((1, 1, 1), np.float32))["grad/b"]
    np.testing.assert_allclose(gradient, [[0.5, 0.5]])


# Defaults of attributes, by ONNX's own schemas


def schemas() -> dict[str, list[Any]]:
    """The imported versions of each operator of the default domain, in order."""
    imported = {name for name, _, _ in ls._lockstep._onnx_operators()[""]}
    found: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.name in imported:
            found.setdefault(schema.name, []).append(schema)
    return {name: sorted(versions, key=lambda each: each.since_version) for name, versions in found.items()}


def in_version(case: Any, schema: Any, opset: int) -> onnx.ModelProto:
    """The case's model in an older opset, without the parts that its schema lacks."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = 10
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    node = model.graph.node[0]
    kept = [attribute for attribute in node.attribute if attribute.name in schema.attributes]
    del node.attribute[:], node.input[schema.max_input :], node.output[schema.max_output :]
    node.attribute.extend(kept)
    for infos, names in ((model.graph.input, node.input), (model.graph.output, node.output)):
        used = [info for info in infos if info.name in names]
        del infos[:]
        infos.extend(used)
    return model


def text_of(model: onnx.ModelProto, case: Any) -> str | None:
    """The imported graph, or None if the import fails, as for a case that this opset did not have."""
    inputs = dict(zip([info.name for info in case.model.graph.input], case.data_sets[0][0], strict=False))
    named = {info.name for info in model.graph.input}
    try:
        return str(ls.load_onnx(model, split={}, values={name: inputs[name] for name in named}))
    except ls.Error:
        return None


def cases_of_one_node() -> dict[str, list[Any]]:
    cases: dict[str, list[Any]] = {}
    for case in collect_testcases():
        if (
            case.model is None
            or len(case.model.graph.node) != 1
            or case.model.graph.node[0].domain
            or not case.data_sets
        ):
            continue
        numbers = all(isinstance(x, np.ndarray) and x.dtype.kind in "fiub" for x in case.data_sets[0][0])
        cases.setdefault(case.model.graph.node[0].op_type, []).extend([case] if numbers else [])
    return cases


# Mistakes in ONNX's schemas: a misspelt default, and a default for two directions where the default is one direction.
SLIPS = {("GRU", "direction"), ("RNN", "activations")}


@pytest.mark.filterwarnings("ignore")  # overflows that some cases test
def test_an_attribute_that_is_absent_is_what_the_schema_of_its_opset_says() -> None:
    """A file with an explicit default is the same program as one without, for each version of each operator."""
    cases, compared, wrong = cases_of_one_node(), set(), []
    for op, versions in schemas().items():
        ends = [schema.since_version - 1 for schema in versions[1:]] + [onnx.defs.onnx_opset_version()]
        for schema, opset in zip(versions, ends, strict=True):
            defaults = [each.default_value for each in schema.attributes.values() if each.default_value.type]
            for case, default in itertools.product(cases.get(op, [])[:4], defaults):
                if schema.deprecated or (op, default.name) in SLIPS:
                    continue
                model = in_version(case, schema, opset)
                attributes = model.graph.node[0].attribute
                others = [attribute for attribute in attributes if attribute.name != default.name]
                del attributes[:]
                attributes.extend(others)
                absent = text_of(model, case)
                attributes.append(default)
                attributes[-1].name = default.name
                present = text_of(model, case)
                if absent is not None:
                    compared.add((op, schema.since_version, default.name))
                if absent != present:
                    wrong.append(f"{op} of opset {schema.since_version}: {default.name}")
    assert not wrong, ", ".join(sorted(set(wrong)))
    assert len(compared) > 400, len(compared)


# Data in other files


def external(tmp_path: Path, location: str) -> Path:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "external",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    graph.initializer.append(tensor)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = tmp_path / "models" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "location", ["w.bin", "./w.bin", "sub/../w.bin", "link.bin", "sub/up/w.bin", "../models/w.bin"]
)
def test_external_data_may_be_anywhere_beside_the_model(location: str, tmp_path: Path) -> None:
    path = external(tmp_path, location)
    (path.parent / "sub").mkdir()
    (path.parent / "w.bin").write_bytes(f32(3, 4).tobytes())
    (path.parent / "link.bin").symlink_to("w.bin")
    (path.parent / "sub" / "up").symlink_to("..")
    np.testing.assert_array_equal(ls.load_onnx(path).initial_value("w"), f32(3, 4))


def test_external_data_may_be_a_link_beside_the_model_to_anywhere(tmp_path: Path) -> None:
    """For example a cache that keeps the files of all models in one folder, and a folder of links for each model."""
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for location in ("w.bin", "sub/w.bin"):
        path = external(tmp_path, location)
        path.rename(blobs / "1234")
        (blobs / "5678").write_bytes(f32(3, 4).tobytes())
        (path.parent / location).parent.mkdir(exist_ok=True)
        (path.parent / location).symlink_to(blobs / "5678")
        path.symlink_to("../blobs/1234")
        other = tmp_path / "current.onnx"  # a link to a link, with the data beside that one
        other.unlink(missing_ok=True)
        other.symlink_to("models/model.onnx")
        for each in (path, other):
            np.testing.assert_array_equal(ls.load_onnx(each).initial_value("w"), f32(3, 4))
        (blobs / "5678").unlink()
        with pytest.raises(
            ls.Error, match=f"initializer 'w': external data: {location} is not a file beside the model"
        ):
            ls.load_onnx(path)
        path.unlink()


def test_external_data_may_be_beside_what_the_model_is_a_link_to(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    (path.parent / "w.bin").write_bytes(f32(3, 4).tobytes())
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "model.onnx"
    link.symlink_to(path)
    np.testing.assert_array_equal(ls.load_onnx(link).initial_value("w"), f32(3, 4))
    (link.parent / "w.bin").write_bytes(f32(5, 6).tobytes())  # data beside the given path has precedence
    np.testing.assert_array_equal(ls.load_onnx(link).initial_value("w"), f32(5, 6))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("/dev/zero", "/dev/zero is outside the model's directory"),
        ("../w.bin", "../w.bin is outside the model's directory"),
        ("up/w.bin", "up/w.bin is outside the model's directory"),
        ("zero", "zero is not a file beside the model"),
        ("loop.bin", "external data: loop.bin"),
        ("pipe", "pipe is not a file beside the model"),
        (".", "is not a file beside the model"),
        ("sub", "sub is not a file beside the model"),
    ],
)
def test_external_data_that_is_elsewhere_or_no_file(location: str, message: str, tmp_path: Path) -> None:
    path = external(tmp_path, location)
    (tmp_path / "w.bin").write_bytes(f32(3, 4).tobytes())
    (path.parent / "sub").mkdir()
    (path.parent / "up").symlink_to("..")
    (path.parent / "zero").symlink_to("/dev/zero")
    (path.parent / "loop.bin").symlink_to("loop.bin")
    os.mkfifo(path.parent / "pipe")  # reading it would wait for a writer
    with pytest.raises(ls.Error, match=re.escape("initializer 'w': ") + ".*" + re.escape(message)):
        ls.load_onnx(path)
