"""Gradients of ONNX operators: each is compared with differences of ONNX's reference evaluator, or listed with the
reason.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lockstep as ls
import onnx_gradient_cases
import onnx_gradients
from onnx_gradients import CHECKED, STEPS

_EXPECTED = onnx_gradients.expected()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", onnx_gradients.operators())
def test_gradient(op: str) -> None:
    verdict = onnx_gradients.examine(op)
    kind, reason = _EXPECTED.kind_of(op)
    assert verdict.kind == kind, f"{verdict.reason}; if this is correct, run: python test/python/onnx_gradients.py"
    assert kind in (CHECKED, STEPS) or reason
    for finding in verdict.findings:
        assert not finding.refused or "onnx:" in finding.refused, f"no operator is named: {finding.refused}"


def test_every_operator_has_one_verdict() -> None:
    lists = [_EXPECTED.checked, _EXPECTED.steps, _EXPECTED.none.keys(), _EXPECTED.fails.keys()]
    assert sorted(op for each in lists for op in each) == onnx_gradients.operators()


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    [case, *_] = onnx_gradient_cases.cases()["Tanh"]
    differences = onnx_gradients.Differences(case, in_f32=False)
    comparison = onnx_gradients.Comparison(case, differences, is_wide=True)
    x = case.inputs["x"].astype(np.float64)
    [weight] = differences.weights.values()
    right = weight * (1 - np.tanh(x) ** 2)
    assert not comparison._compare("x", right).wrong
    assert comparison._compare("x", right).agree == x.size
    for wrong in (0 * x, weight, right * 1.001, -right):
        assert comparison._compare("x", wrong).wrong


def test_kinks_and_jumps_are_left_out() -> None:
    def find(op: str, values: list[float]) -> onnx_gradients.Finding:
        x = np.array(values)
        info = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, x.shape) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
        [finding] = onnx_gradients.findings_of(onnx_gradient_cases.Case(op, model, {"x": x}), in_f32=False)
        assert not finding.wrong and not finding.refused and not finding.unused
        return finding

    assert (find("Abs", [-1, 0, 1e-7, 2]).agree, find("Abs", [-1, 0, 1e-7, 2]).skipped) == (2, 2)
    assert (find("Sign", [-1, 0, 1e-7, 2]).agree, find("Sign", [-1, 0, 1e-7, 2]).skipped) == (2, 2)
    assert find("Floor", [0.5, 1.5]).largest == 0


@pytest.mark.parametrize(
    ("op", "slope", "attributes"),
    [
        ("Softplus", 0.5, {}),
        ("Mish", np.tanh(np.log(2)), {}),
        ("Elu", 1, {}),
        ("Elu", 0.5, {"alpha": 0.5}),
        ("Celu", 1, {"alpha": 2.0}),
        ("Selu", 1.7580993408473766, {}),
        ("Sigmoid", 0.25, {}),
        ("Softsign", 1, {}),
        ("Relu", 0, {}),
        ("LeakyRelu", 0.25, {"alpha": 0.25}),
        ("HardSigmoid", 0, {"beta": 0.0}),
        ("HardSigmoid", 0, {"beta": 1.0}),
        ("HardSwish", 0.5, {}),
    ],
)
def test_slopes_at_zero_are_those_of_pytorch(op: str, slope: float, attributes: dict[str, float]) -> None:
    info = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]), helper.make_tensor_value_info("y", 1, [])]
    nodes = [
        helper.make_node(op, ["x"], ["z"], **attributes),
        helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=8)
    step = ls.gradients(ls.load_onnx(model), "y", ["x"])
    found = ls.compile(step)(x=np.array([0.0, -0.0, 40.0], np.float32))["grad/x"]
    np.testing.assert_allclose(found[:2], slope, rtol=1e-6)


def test_nothing_fails() -> None:
    """A bug that is not fixed at once may be listed, but the list may only become shorter."""
    assert not _EXPECTED.fails
