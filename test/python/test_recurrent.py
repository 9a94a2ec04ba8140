"""RNN, GRU and LSTM: values and gradients compared with PyTorch's, and rarely exported forms with ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lockstep

LENGTH, BATCH, INPUTS, HIDDEN = 20, 6, 5, 4
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def model(kind: str, weights: dict[str, np.ndarray], inputs: list[str], **attributes: Any) -> onnx.ModelProto:
    """A node of `kind`. The result `loss` is the sum of its weighted output, and `y` is the output."""
    directions = weights["W"].shape[0]
    node = helper.make_node(kind, inputs, ["y", "last"], name="rnn", hidden_size=HIDDEN, **attributes)
    nodes = [node, helper.make_node("Mul", ["y", "g"], ["weighted"]), helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0)]  # fmt: skip
    float_input = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [float_input("x", [LENGTH, BATCH, INPUTS]), float_input("g", [LENGTH, directions, BATCH, HIDDEN])],
        [float_input("loss", []), float_input("y", [LENGTH, directions, BATCH, HIDDEN])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    made.ir_version = 9
    return made


def random_weights(kind: str, directions: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    rows = GATES[kind] * HIDDEN
    draw = lambda *shape: random.uniform(-0.6, 0.6, shape).astype(np.float32)
    return {
        "W": draw(directions, rows, INPUTS),
        "R": draw(directions, rows, HIDDEN),
        "B": draw(directions, 2 * rows),
        "h0": draw(directions, BATCH, HIDDEN),
    }


def feeds(directions: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        "x": random.standard_normal((LENGTH, BATCH, INPUTS)).astype(np.float32),
        "g": random.standard_normal((LENGTH, directions, BATCH, HIDDEN)).astype(np.float32),
    }


def gates_of_torch(kind: str, weight: np.ndarray) -> np.ndarray:
    """Converts ONNX's order of gates, iofc and zrh, to PyTorch's, ifgo and rzn."""
    parts = np.split(weight, GATES[kind])
    order = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}[kind]
    return np.concatenate([parts[i] for i in order])


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_values_and_gradients_are_those_of_pytorch(kind: str, directions: int) -> None:
    torch = pytest.importorskip("torch")
    weights = random_weights(kind, directions)
    del weights["h0"]
    attributes: dict[str, Any] = {"direction": "bidirectional"} if directions == 2 else {}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    graph = lockstep.load_onnx(model(kind, weights, ["x", "W", "R", "B"], **attributes))
    executable = lockstep.compile(lockstep.gradients(graph, "loss", ["x", "W", "R", "B"]), threads=1)
    assert "steps.scan" in executable.steps
    data = feeds(directions)
    found = executable(**data)

    module = getattr(torch.nn, kind)(INPUTS, HIDDEN, bidirectional=directions == 2)
    x = torch.tensor(data["x"], requires_grad=True)
    names = {"W": "weight_ih_l0", "R": "weight_hh_l0"}
    for direction, suffix in enumerate(["", "_reverse"][:directions]):
        with torch.no_grad():
            for name, its in names.items():
                getattr(module, its + suffix).copy_(torch.tensor(gates_of_torch(kind, weights[name][direction])))
            for its, bias in zip(["bias_ih_l0", "bias_hh_l0"], np.split(weights["B"][direction], 2), strict=True):
                getattr(module, its + suffix).copy_(torch.tensor(gates_of_torch(kind, bias)))
    y = module(x)[0].reshape(LENGTH, BATCH, directions, HIDDEN).transpose(1, 2)
    (y * torch.tensor(data["g"])).sum().backward()
    np.testing.assert_allclose(found["y"], y.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(found["grad/x"], x.grad.numpy(), atol=1e-4)
    for direction, suffix in enumerate(["", "_reverse"][:directions]):
        for name, its in names.items():
            expected = getattr(module, its + suffix).grad.numpy()
            np.testing.assert_allclose(gates_of_torch(kind, found[f"grad/{name}"][direction]), expected, atol=2e-4)
        biases = [getattr(module, its + suffix).grad.numpy() for its in ("bias_ih_l0", "bias_hh_l0")]
        halves = [gates_of_torch(kind, half) for half in np.split(found["grad/B"][direction], 2)]
        np.testing.assert_allclose(np.concatenate(halves), np.concatenate(biases), atol=2e-4)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def cell(kind: str, w: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray, **how: Any) -> tuple:
    """The next h and c with one direction's weights, in f64, as ONNX's documentation of the operators defines them."""
    f, g = how.get("f", sigmoid), how.get("g", np.tanh)
    limit = how.get("clip", np.inf)
    f, g = (lambda a, f=f: f(np.clip(a, -limit, limit))), (lambda a, g=g: g(np.clip(a, -limit, limit)))
    wb, rb = np.split(w["B"], 2)
    ox, oh = x @ w["W"].T + wb, h @ w["R"].T + rb
    if kind == "RNN":
        return g(ox + oh), c
    n = HIDDEN
    if kind == "GRU":
        z, r = f(ox[:, :n] + oh[:, :n]), f(ox[:, n : 2 * n] + oh[:, n : 2 * n])
        before = r * oh[:, 2 * n :] if how.get("linear") else (r * h) @ w["R"][2 * n :].T + rb[2 * n :]
        return (1 - z) * g(ox[:, 2 * n :] + before) + z * h, c
    i, o, fg, k = np.split(ox + oh, 4, axis=1)
    pi, po, pf = np.split(w["P"], 3) if "P" in w else (0, 0, 0)
    i = f(i + pi * c)
    fg = 1 - i if how.get("coupled") else f(fg + pf * c)
    c = fg * c + i * g(k)
    return f(o + po * c) * g(c), c


def expected_outputs(kind: str, weights: dict[str, np.ndarray], x: np.ndarray, lengths: list[int], reverse: bool, **how: Any) -> np.ndarray:  # fmt: skip
    w = {name: value[0].astype(np.float64) for name, value in weights.items() if name != "lengths"}
    h, c = w["h0"], w.get("c0", np.zeros((BATCH, HIDDEN)))
    y = np.zeros((LENGTH, 1, BATCH, HIDDEN))
    for t in reversed(range(LENGTH)) if reverse else range(LENGTH):
        goes_on = (t < np.array(lengths))[:, None]
        next_h, next_c = cell(kind, w, x[t].astype(np.float64), h, c, **how)
        h, c = np.where(goes_on, next_h, h), np.where(goes_on, next_c, c)
        y[t, 0] = np.where(goes_on, next_h, 0)
    return y


def hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return np.clip(0.3 * x + 0.4, 0, 1)


def leaky_relu(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, 0.07 * x, x)


FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rnn_clipped_leaky": ("RNN", {"activations": ["LeakyRelu"], "activation_alpha": [0.07], "clip": 0.5}, {"g": leaky_relu, "clip": 0.5}),
    "gru_reset_first": ("GRU", {}, {}),
    "gru_linear_before_reset": ("GRU", {"linear_before_reset": 1}, {"linear": True}),
    "gru_hard_sigmoid": ("GRU", {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [0.3], "activation_beta": [0.4]}, {"f": hard_sigmoid}),
    "lstm_peepholes": ("LSTM", {}, {}),
    "lstm_coupled_and_clipped": ("LSTM", {"input_forget": 1, "clip": 0.4}, {"coupled": True, "clip": 0.4}),
}  # fmt: skip


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_with_sequences_of_different_lengths(name: str, reverse: bool) -> None:
    kind, attributes, how = FORMS[name]
    lengths = [20, 3, 0, 20, 7, 19]
    weights = random_weights(kind, 1) | {"lengths": np.array(lengths, np.int32)}
    inputs = ["x", "W", "R", "B", "lengths", "h0"]
    if kind == "LSTM":
        random = np.random.default_rng(2)
        weights["c0"] = random.uniform(-1, 1, (1, BATCH, HIDDEN)).astype(np.float32)
        weights["P"] = random.uniform(-1, 1, (1, 3 * HIDDEN)).astype(np.float32)
        inputs += ["c0", "P"]
    made = model(kind, weights, inputs, direction="reverse" if reverse else "forward", **attributes)
    executable = lockstep.compile(lockstep.load_onnx(made), threads=1)
    data = feeds(1)
    expected = expected_outputs(kind, weights, data["x"], lengths, reverse, **how)
    np.testing.assert_allclose(executable(**data)["y"], expected, atol=1e-5)
    assert np.abs(expected).max() > 0.1


def test_each_direction_has_activations_of_its_own() -> None:
    """Activations take parameters from the lists in order, each as many as it has."""
    weights = random_weights("GRU", 2)
    attributes = {
        "direction": "bidirectional",
        "activations": ["HardSigmoid", "ScaledTanh", "Sigmoid", "LeakyRelu"],
        "activation_alpha": [0.3, 1.5, 0.07],
        "activation_beta": [0.4, 0.8],
    }
    executable = lockstep.compile(
        lockstep.load_onnx(model("GRU", weights, ["x", "W", "R", "B", "", "h0"], **attributes)), threads=1
    )
    data = feeds(2)
    found = executable(**data)["y"]
    functions = [{"f": hard_sigmoid, "g": lambda x: 1.5 * np.tanh(0.8 * x)}, {"g": leaky_relu}]
    for direction, how in enumerate(functions):
        of_it = {name: value[direction : direction + 1] for name, value in weights.items()}
        expected = expected_outputs("GRU", of_it, data["x"], [LENGTH] * BATCH, direction == 1, **how)
        np.testing.assert_allclose(found[:, direction], expected[:, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"direction": "sideways"}, "attribute direction is 'sideways'"),
        ({"activations": ["Tanh", "Tanh"]}, "attribute activations names 2 functions, expected 3"),
        ({"activations": ["Sine", "Tanh", "Tanh"]}, "attribute activations names 'Sine'"),
        ({"clip": -1.0}, "attribute clip is -1"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    made = model("LSTM", random_weights("LSTM", 1), ["x", "W", "R", "B", "", "h0"], **change)
    with pytest.raises(lockstep.Error, match=message) as error:
        lockstep.load_onnx(made)
    assert "onnx:rnn" in str(error.value)


def test_lengths_beyond_the_sequence_and_wrong_shapes_are_named() -> None:
    weights = random_weights("GRU", 1) | {"lengths": np.full(BATCH, LENGTH + 1, np.int32)}
    with pytest.raises(lockstep.Error, match=r"input 4 \(sequence_lens\) has 21, expected 0 to 20"):
        lockstep.load_onnx(model("GRU", weights, ["x", "W", "R", "B", "lengths"]))
    weights = random_weights("GRU", 1)
    with pytest.raises(lockstep.Error, match=r"input 3 is f32\[1,16\], expected \[1, ?24\]"):
        lockstep.load_onnx(model("GRU", weights | {"B": np.zeros((1, 16), np.float32)}, ["x", "W", "R", "B"]))
