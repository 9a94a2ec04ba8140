"""ONNX's backend tests over lockstep.onnx_backend, as ONNX prescribes, compiled for the CPU.

Tests listed in onnx_not_passing.toml must fail, so that the list stays true, except those that depend on the processor.
"""

from __future__ import annotations

import unittest

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lockstep as ls
import lockstep.onnx_backend as backend
import onnx_cases
from test_errors import raises

_REASONS = onnx_cases.not_passing()
_CASES = onnx_cases.all_cases()


def _marked(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    for name in onnx_cases.names_of(case):
        if name in _REASONS:
            reason = _REASONS[name]
            mark = pytest.mark.xfail(reason=reason, strict=not onnx_cases.may_pass(reason))
            setattr(case, name, mark(getattr(case, name)))
    return case


globals().update({name: _marked(case) for name, case in _CASES.items()})


def test_the_list_names_tests_that_there_are() -> None:
    names = {name for case in _CASES.values() for name in onnx_cases.names_of(case)}
    assert _REASONS.keys() <= names


def reshape_model() -> onnx.ModelProto:
    """y = x * 2 in the shape given by the second input, and that shape."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["sum"]),
        helper.make_node("Reshape", ["sum", "shape"], ["y"]),
        helper.make_node("Identity", ["shape"], ["again"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None]),
        helper.make_tensor_value_info("shape", TensorProto.INT64, [None]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, None]),
        helper.make_tensor_value_info("again", TensorProto.INT64, [None]),
    ]
    return helper.make_model(
        helper.make_graph(nodes, "reshape", inputs, outputs), opset_imports=[helper.make_opsetid("", 20)]
    )


def test_inputs_that_decide_shapes_come_with_each_call() -> None:
    prepared = backend.prepare(reshape_model())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for shape in ([6, 1], [3, 2], [1, 6], [3, 2]):
        y, again = prepared.run([x, np.array(shape)])
        np.testing.assert_array_equal(y, 2 * x.reshape(shape))
        assert again.tolist() == shape
    assert prepared.run({"shape": np.array([4, 1]), "x": x[:2, :2]}).y.shape == (4, 1)


def test_programs_are_kept() -> None:
    prepared = backend.prepare(reshape_model())
    x = np.ones((2, 3), np.float32)
    for shape in ([6, 1], [3, 2], [6, 1], [3, 2]):
        prepared.run([x, np.array(shape)])
    [(_, programs)] = prepared._programs.values()
    assert len(programs) == 2


def test_an_initializer_may_be_overridden() -> None:
    model = reshape_model()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 2]), "shape"))
    prepared = backend.prepare(model)
    x = np.ones((2, 3), np.float32)
    assert prepared.run([x]).y.shape == (3, 2)
    assert prepared.run([x, np.array([6, 1])]).y.shape == (6, 1)
    assert prepared.run([x]).y.shape == (3, 2)


def test_a_large_initializer_may_be_overridden_too() -> None:
    weight = np.ones((40, 30), np.float32)
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in (("x", [2, 40]), ("w", [40, 30]))
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 30])]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", infos, outputs, [onnx.numpy_helper.from_array(weight, "w")])
    prepared = backend.prepare(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]))
    x = np.ones((2, 40), np.float32)
    for values, expected in (([x], 40), ([x, 3 * weight], 120), ([x], 40)):
        assert np.all(prepared.run(values).y == expected)


def test_wrong_inputs_are_errors() -> None:
    prepared = backend.prepare(reshape_model())
    x, shape = np.ones((2, 3), np.float32), np.array([6])
    with raises("run: 1 inputs, expected 2: x, shape"):
        prepared.run([x])
    with raises("run: there is no input 'z'; the model's inputs are x, shape"):
        prepared.run({"x": x, "shape": shape, "z": x})
    with raises("run: input 'shape' is missing"):
        prepared.run({"x": x})
    with raises("run: there is no option 'threads'"):
        prepared.run([x, shape], threads=2)
    with raises("run: input 'x' is a list, expected an array"):
        prepared.run([[x, x], shape])
    with raises("prepare: there is no device 'TPU'; there is CPU"):
        backend.prepare(reshape_model(), device="TPU")
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA")


def test_values_of_inputs_become_constants_only_where_that_is_needed() -> None:
    x, shape = np.ones((2, 3), np.float32), np.array([3, 2])
    model = reshape_model()
    graph = ls.load_onnx(model, dims={"x:0": 2, "x:1": 3, "shape:0": 2}, split={}, values={"x": x, "shape": shape})
    assert graph.fixed_inputs == ["shape"]
    assert [info.name for info in graph.inputs] == ["x"]
    assert graph.results[0].shape == (3, 2)
    with raises("values: there is no input 'z'; the model's inputs are x, shape"):
        ls.load_onnx(model, dims={"x:0": 2, "x:1": 3, "shape:0": 2}, values={"z": x})
    with raises("values: input 'shape' is i64[2], its value f32[2,3]"):
        ls.load_onnx(model, dims={"x:0": 2, "x:1": 3, "shape:0": 2}, values={"shape": x})
    with raises("must be known before the program runs"):
        ls.load_onnx(model.SerializeToString(), dims={"x:0": 2, "x:1": 3, "shape:0": 2})


def test_one_node_runs_on_its_own() -> None:
    x = np.array([[1.0, -2.0]], np.float32)
    (y,) = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(y, [[1.0, 0.0]])
    # Before opset 13 Softmax is over all dimensions from the axis on, here 1.
    x = np.ones((2, 3, 4), np.float32)
    for opset, share in ((11, 1 / 12), (13, 1 / 4)):
        (y,) = backend.run_node(helper.make_node("Softmax", ["x"], ["y"]), [x], opset_version=opset)
        np.testing.assert_allclose(y, np.full(x.shape, share), rtol=1e-6)
