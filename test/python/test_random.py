"""Random numbers: ONNX's operators and dropout, on any number of ranks, and continued from saved states."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lockstep as ls
from ranks import run_in_threads

FLOATS = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.FLOAT16: np.float16,
}
MANY = 40000


def raises(*parts: str) -> Any:
    """Expects an Error whose message contains all parts, in this order."""
    return pytest.raises(ls.Error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


def normals(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape).astype(np.float32)


def graph_of(
    nodes: list[Any],
    inputs: dict[str, list] | None = None,
    initializers: dict[str, np.ndarray] | None = None,
    elem_type: int = TensorProto.FLOAT,
    opset: int = 22,
) -> bytes:
    """A model from `inputs` to y."""
    takes = [helper.make_tensor_value_info(name, elem_type, dims) for name, dims in (inputs or {}).items()]
    gives = [onnx.ValueInfoProto(name="y")]
    tensors = [numpy_helper.from_array(value, name) for name, value in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", takes, gives, tensors)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def drawing(op: str, *names: str, **attributes: Any) -> Any:
    return helper.make_node(op, names, ["y"], name=f"/{op}", **attributes)


# --- Operators


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("like", [False, True])
def test_uniform(dtype: int, like: bool) -> None:
    attributes = {"low": -2.0, "high": 3.0}
    if like:
        model = ls.load_onnx(graph_of([drawing("RandomUniformLike", "x", **attributes)], {"x": [MANY]}, None, dtype))
    else:
        model = ls.load_onnx(graph_of([drawing("RandomUniform", shape=[MANY], dtype=dtype, **attributes)]))
    exe = ls.compile(model)
    y = exe(**({"x": np.zeros(MANY, FLOATS[dtype])} if like else {}))["y"]
    assert y.dtype == FLOATS[dtype] and y.shape == (MANY,)
    assert -2 <= y.min() < -1.99 and 2.99 < y.max() < 3
    assert abs(y.mean(dtype=float) - 0.5) < 4 * math.sqrt(25 / 12 / MANY)
    assert abs(y.var(dtype=float) - 25 / 12) < 0.05


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("like", [False, True])
def test_normal(dtype: int, like: bool) -> None:
    attributes = {"mean": 1.0, "scale": 2.0, "dtype": dtype}
    if like:  # also of integers, if the result is of floats
        model = ls.load_onnx(
            graph_of([drawing("RandomNormalLike", "x", **attributes)], {"x": [MANY]}, None, TensorProto.INT32)
        )
    else:
        model = ls.load_onnx(graph_of([drawing("RandomNormal", shape=[MANY], **attributes)]))
    y = ls.compile(model)(**({"x": np.zeros(MANY, np.int32)} if like else {}))["y"].astype(float)
    assert abs(y.mean() - 1) < 4 * 2 / math.sqrt(MANY)
    assert abs(y.var() - 4) < 0.12


def test_bernoulli() -> None:
    p = np.repeat(np.array([0, 0.2, 0.9, 1], np.float32), MANY // 4)
    for attributes, dtype in (
        ({}, np.float32),
        ({"dtype": TensorProto.BOOL}, bool),
        ({"dtype": TensorProto.INT8}, np.int8),
    ):
        exe = ls.compile(ls.load_onnx(graph_of([drawing("Bernoulli", "x", **attributes)], {"x": [MANY]})))
        y = exe(x=p)["y"]
        assert y.dtype == dtype
        means = y.reshape(4, -1).mean(axis=1, dtype=float)
        assert means[0] == 0 and means[3] == 1
        np.testing.assert_allclose(means, [0, 0.2, 0.9, 1], atol=4 * 0.4 / math.sqrt(MANY // 4))


@pytest.mark.parametrize(("attributes", "dtype"), [({}, np.int32), ({"dtype": TensorProto.INT64}, np.int64)])
def test_multinomial(attributes: dict, dtype: type) -> None:
    logits = np.log(np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-30]], np.float32))
    node = drawing("Multinomial", "x", sample_size=MANY, **attributes)
    y = ls.compile(ls.load_onnx(graph_of([node], {"x": [2, 3]})))(x=logits)["y"]
    assert y.dtype == dtype and y.shape == (2, MANY)
    for row, expected in zip(y, np.exp(logits), strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / MANY, expected, atol=4 * 0.5 / math.sqrt(MANY))
    one = graph_of([drawing("Multinomial", "x", **attributes)], {"x": [2, 3]})
    assert ls.compile(ls.load_onnx(one))(x=logits)["y"].shape == (2, 1)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (drawing("RandomUniform"), "attribute shape is missing"),
        (drawing("RandomUniform", shape=[-1]), "negative"),
        (drawing("RandomUniform", shape=[2], dtype=TensorProto.INT32), "is i32, expected floats"),
        (drawing("RandomUniform", shape=[2], dtype=99), "attribute dtype"),
        (drawing("RandomUniform", shape=[2], low=2.0, high=1.0), "attribute low is 2, expected at most high, 1"),
        (drawing("RandomUniform", shape=[2], high=math.inf), "attribute high is inf, which is not finite in f32"),
        (drawing("RandomUniform", shape=[2], high=1e6, dtype=TensorProto.FLOAT16), "not finite in f16"),
        (drawing("RandomNormal", shape=[2], scale=-1.0), "attribute scale is -1, expected at least 0"),
        (drawing("RandomNormal", shape=[2], mean=math.nan), "attribute mean is nan"),
        (drawing("RandomNormalLike", "i"), "is i64, expected floats"),
        (drawing("Bernoulli", "i"), "is i64, expected floats"),
        (drawing("Multinomial", "x"), "input 0 is f32[3], expected [rows, classes]"),
        (drawing("Multinomial", "z"), "input 0 is f32[2,0], expected [rows, classes]"),
        (drawing("Multinomial", "w", sample_size=0), "attribute sample_size is 0, expected at least 1"),
        (drawing("Multinomial", "w", dtype=TensorProto.FLOAT), "is f32, expected i32 or i64"),
    ],
)
def test_errors_name_the_operator_and_the_attribute(node: Any, message: str) -> None:
    tensors = {"i": np.arange(3), "z": np.zeros((2, 0), np.float32), "w": np.zeros((2, 2), np.float32)}
    with raises(node.op_type, message, f"/{node.op_type}"):
        ls.load_onnx(graph_of([node], {"x": [3]}, tensors))


def test_each_call_and_each_node_draws_anew() -> None:
    nodes = [
        helper.make_node("RandomUniform", [], ["a"], shape=[8]),
        helper.make_node("RandomUniform", [], ["b"], shape=[8]),
        helper.make_node("RandomUniform", [], ["c"], shape=[8], seed=3.0),
        helper.make_node("Concat", ["a", "b", "c"], ["y"], axis=0),
    ]
    model = ls.load_onnx(graph_of(nodes))
    assert [info.name for info in model.states] == ["random/seed", "random/step"]

    def first_calls(seed: int, count: int = 3) -> list[np.ndarray]:
        exe = ls.compile(model)
        exe.state["random/seed"] = np.int64(seed)
        return [exe()["y"].reshape(3, 8) for _ in range(count)]

    calls = first_calls(0)
    np.testing.assert_array_equal(calls, first_calls(0))
    np.testing.assert_array_equal(first_calls(0), [call.reshape(3, 8) for call in interpreted(model, 3)])
    drawn = np.concatenate([*calls, *first_calls(1)]).reshape(-1)
    assert len(set(drawn)) == len(drawn) == 6 * 24


def interpreted(model: ls.Graph, count: int) -> list[np.ndarray]:
    steps = [{"random/step": np.int64(step)} for step in range(count)]
    return [ls.interpret(model, [step])[0]["y"] for step in steps]


# --- Loops: each iteration draws its own numbers


def loop_of(node: Any, trips: int) -> bytes:
    """A loop that carries its argument through `node`, from x to d, and stacks the results."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["condition"], ["goes_on"]), node, helper.make_node("Identity", ["d"], ["each"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, [6]),
        ],
        [onnx.ValueInfoProto(name=name) for name in ("goes_on", "d", "each")],
    )
    loop = helper.make_node("Loop", ["trips", "", "s"], ["", "y"], name="/loop", body=body)
    scaled = helper.make_node("Mul", ["x", "w"], ["s"])
    return graph_of([scaled, loop], {"x": [6]}, {"trips": np.array(trips), "w": np.ones(6, np.float32)})


@pytest.mark.parametrize("trips", [3, 40])
@pytest.mark.parametrize("input_name", ["x", "carried"])
def test_iterations_draw_anew(trips: int, input_name: str) -> None:
    node = helper.make_node("RandomUniformLike", [input_name], ["d"], name="/draw")
    y = ls.compile(ls.load_onnx(loop_of(node, trips)))(x=np.ones(6, np.float32))["y"]
    assert y.shape == (trips, 6) and len(set(y.reshape(-1))) == 6 * trips


def test_a_long_loop_that_draws_is_an_error() -> None:
    node = helper.make_node("RandomUniformLike", ["carried"], ["d"], name="/draw")
    with raises("Loop", "draws random numbers", "/draw"):
        ls.load_onnx(loop_of(node, 5000))


def test_dropout_in_loops() -> None:
    x = np.ones(6, np.float32)
    loss = ls.loss.mean_squared_error("y", "target")
    node = helper.make_node("Dropout", ["carried"], ["d"], name="/drop")
    for trips in (3, 40):
        model = ls.load_onnx(loop_of(node, trips))
        np.testing.assert_array_equal(ls.compile(model)(x=x)["y"], np.ones((trips, 6)))
        if trips == 3:
            y = ls.compile(ls.train_step(model, loss, ls.optim.SGD(0.0), keep_results=True))(
                x=x, target=np.ones((3, 6), np.float32)
            )
            assert set(y["y"].reshape(-1)) <= {0, 2, 4, 8} and np.any(y["y"] == 0)
            continue
        with raises("dropout", "onnx:/loop", "drop", "body of a loop", 'dropout="off"'):
            ls.train_step(model, loss, ls.optim.SGD(0.1))
        ls.compile(ls.train_step(model, loss, ls.optim.SGD(0.1), dropout="off"))(
            x=x, target=np.ones((40, 6), np.float32)
        )


# --- Training


def classifier(ratio: float = 0.4) -> ls.Graph:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio", "on"], ["d"], name="/drop1"),
        helper.make_node("Dropout", ["d", "ratio", "on"], ["e"], name="/drop2"),
        helper.make_node("MatMul", ["e", "w2"], ["y"]),
    ]
    tensors = {
        "w1": normals(5, 16, seed=1),
        "w2": normals(16, 3, seed=2),
        "ratio": np.float32(ratio),
        "on": np.array(True),
    }
    return ls.load_onnx(graph_of(nodes, {"x": ["n", 5]}, {k: np.asarray(v) for k, v in tensors.items()}), {"n": 12})


LOSS = ls.loss.softmax_cross_entropy("y", "label")
X = normals(12, 5)
LABELS = np.arange(12) % 3


def train(step: ls.Graph, world: ls.Communicator | None = None, steps: int = 4) -> tuple[list[float], dict[str, bytes]]:
    exe = ls.compile(step, world=world, threads=1)
    rank, size = (world.rank, world.size) if world else (0, 1)
    mine = slice(rank * 12 // size, (rank + 1) * 12 // size)
    losses = [float(exe(x=X[mine], label=LABELS[mine])["loss"]) for _ in range(steps)]
    return losses, {name: exe.state[name].tobytes() for name in exe.state}


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_ranks_drop_what_one_rank_would(n: int) -> None:
    step = ls.train_step(classifier(), LOSS, ls.optim.Adam(0.05), seed=7)
    expected, _ = train(step)
    results = run_in_threads(n, lambda world: (world.size, *train(step, world)))
    assert [result[0] for result in results] == [n] * n
    for _, losses, states in results:
        np.testing.assert_allclose(losses, expected, rtol=1e-6, atol=1e-6)
        assert states == results[0][2]


def test_seeds_and_steps() -> None:
    model = classifier()
    steps = [ls.train_step(model, LOSS, ls.optim.SGD(0.0), seed=seed) for seed in (0, 1, -(2**63), 2**63 - 1)]
    losses = [train(step)[0] for step in steps]
    assert len({loss for each in losses for loss in each}) == 16  # without learning, only the draws differ
    assert train(steps[0]) == train(steps[0])
    assert train(ls.train_step(model, LOSS, ls.optim.SGD(0.0)))[0] == losses[0]  # 0 is the default
    assert steps[1].initial_value("random/seed") == 1
    with raises("seed is 9223372036854775808"):
        ls.train_step(model, LOSS, ls.optim.SGD(0.1), seed=2**63)
    without = ls.train_step(model, LOSS, ls.optim.SGD(0.0), dropout="off", seed=3)
    assert not any(info.name.startswith("random/") for info in without.states)
    assert len(set(train(without)[0])) == 1


def test_saved_states_go_on_as_if_never_stopped(tmp_path: Path) -> None:
    step = ls.train_step(classifier(), LOSS, ls.optim.Adam(0.05), seed=5)
    exe = ls.compile(step)
    at_once = [float(exe(x=X, label=LABELS)["loss"]) for _ in range(6)]
    first = ls.compile(step)
    stopped = [float(first(x=X, label=LABELS)["loss"]) for _ in range(3)]
    ls.save_weights(first, tmp_path / "states.safetensors")
    other_seed = ls.train_step(classifier(), LOSS, ls.optim.Adam(0.05), seed=6)
    again = ls.compile(ls.load_weights(other_seed, tmp_path / "states.safetensors"))
    resumed = [float(again(x=X, label=LABELS)["loss"]) for _ in range(3)]
    assert stopped + resumed == at_once
    assert {name: again.state[name].tobytes() for name in again.state} == {
        name: exe.state[name].tobytes() for name in exe.state
    }


def test_the_step_is_that_of_pytorch_with_the_same_mask() -> None:
    torch = pytest.importorskip("torch")
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("Dropout", ["a", "ratio"], ["d", "mask"]),
        helper.make_node("MatMul", ["d", "w2"], ["z"]),
        helper.make_node("Identity", ["z"], ["y"]),
    ]
    w1, w2 = normals(5, 16, seed=1), normals(16, 3, seed=2)
    model = onnx.load_model_from_string(
        graph_of(nodes, {"x": [12, 5]}, {"w1": w1, "w2": w2, "ratio": np.asarray(0.4, np.float32)})
    )
    model.graph.output.append(onnx.ValueInfoProto(name="mask"))
    exe = ls.compile(ls.train_step(ls.load_onnx(model), LOSS, ls.optim.SGD(0.5), keep_results=True, seed=2))
    found = exe(x=X, label=LABELS)
    assert 0.2 < 1 - found["mask"].mean() < 0.6
    parameters = [torch.tensor(w1, requires_grad=True), torch.tensor(w2, requires_grad=True)]
    dropped = torch.tanh(torch.tensor(X) @ parameters[0]) * torch.tensor(found["mask"]) / (1 - 0.4)
    loss = torch.nn.functional.cross_entropy(dropped @ parameters[1], torch.tensor(LABELS))
    loss.backward()
    np.testing.assert_allclose(found["loss"], loss.item(), rtol=1e-6)
    for name, parameter in zip(("w1", "w2"), parameters, strict=True):
        expected = (parameter - 0.5 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(exe.state[name], expected, rtol=1e-5, atol=1e-6)


def test_a_module_of_pytorch_drops_in_training_and_nothing_in_inference() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
    x = torch.randn(4, 6, 16)
    model = ls.from_torch(layer.train(), x, dims={"batch": 4}, output_names=["y"])
    assert str(model).count(" = dropout ") == 4 and "random" not in str(model)  # one of them is in the attention
    np.testing.assert_allclose(
        ls.compile(model)(src=x.numpy())["y"], layer.eval()(x).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    loss = ls.loss.mean_squared_error("y", "target")
    exe = ls.compile(ls.train_step(model, loss, ls.optim.SGD(0.0), keep_results=True))
    first, second = (exe(src=x.numpy(), target=x.numpy())["y"] for _ in range(2))
    assert not np.allclose(first, second, atol=0.1)
    without = ls.compile(ls.train_step(model, loss, ls.optim.SGD(0.0), keep_results=True, dropout="off"))
    y = without(src=x.numpy(), target=x.numpy())["y"]
    np.testing.assert_allclose(y, layer(x).detach().numpy(), rtol=1e-4, atol=1e-5)
