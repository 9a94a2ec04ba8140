"""Several forms of the same ONNX file: fixed batches, dropout, learnt scalars, old opsets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import lockstep as ls
from ranks import run_in_threads

MLP = Path(__file__).resolve().parents[1] / "models/mlp.onnx"
CROSS_ENTROPY = ls.loss.softmax_cross_entropy("logits", "label")
SGD = ls.optim.SGD(0.1)
LABELS = np.array([0, 1, 2, 3, 4, 0])


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape).astype(np.float32)


def raises(*parts: str) -> Any:
    """Expects an Error whose message contains all parts, in this order."""
    return pytest.raises(ls.Error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


def save(
    path: Path, nodes: list[Any], opset: int, shapes: dict[str, list], initializers: dict[str, Any] | None = None
) -> Path:
    """Writes a model with the input x (and others of `shapes`) and the output y."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in shapes.items() if name != "y"
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes.get("y"))
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [output], tensors)
    # IR version 8 requires opset 9 or later in each file; ONNX Runtime still reads it with every opset.
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


# A batch size that is fixed in the file


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """The MLP for 6 samples, as exported without a dynamic batch."""
    model = onnx.load(MLP)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.shape.dim and value.type.tensor_type.shape.dim[0].dim_param:
            value.type.tensor_type.shape.dim[0].dim_value = 6
    onnx.save(model, tmp_path / "fixed.onnx")
    return tmp_path / "fixed.onnx"


def losses(model: ls.Graph, n: int, batch: int, **options: Any) -> list[Any]:
    """The losses of three steps on each of n ranks, or the rank's error."""
    x, labels = random(batch, 12), np.arange(batch) % 5
    step = ls.train_step(model, CROSS_ENTROPY, SGD)

    def body(world: ls.Communicator) -> list[float]:
        exe = ls.compile(step, world=world, threads=1, **options)
        if not exe.graph.inputs[0].placements:
            return [float(exe(x=x, label=labels)["loss"]) for _ in range(3)]
        share = slice(world.rank * batch // n, (world.rank + 1) * batch // n)
        return [float(exe(x=x[share], label=labels[share])["loss"]) for _ in range(3)]

    return run_in_threads(n, body)


def test_ranks_that_would_train_alone_are_an_error(fixed: Path) -> None:
    results = losses(ls.load_onnx(fixed), 2, 6)
    assert [type(result) for result in results] == [ls.Error] * 2, results
    for error in results:
        for part in (
            "@",
            "2 ranks",
            "x f32[6,12]",
            "label i64[6]",
            'dims={"x:0": 128}',
            'split={"x": 0}',
            "replicated",
        ):
            assert part in str(error)
    local = ls.distribute(ls.train_step(ls.load_onnx(fixed), CROSS_ENTROPY, SGD), {"data": 2})
    for error in run_in_threads(2, lambda world: ls.compile(local, world=world, threads=1)):
        assert "none of its inputs is split" in str(error)


def test_one_rank_and_a_graph_without_inputs_need_no_split(fixed: Path) -> None:
    assert losses(ls.load_onnx(fixed), 1, 6)[0][2] > 0
    text = "graph @c() -> (y: f32[]) {\n  %y = constant {value=dense<f32[]: 2.0>} : f32[]\n  return %y\n}\n"
    for result in run_in_threads(2, lambda world: ls.compile(ls.parse(text), world=world, threads=1)()["y"]):
        assert result == 2


@pytest.mark.parametrize(
    ("options", "batch"), [({"dims": {"x:0": 12}}, 12), ({"dims": {"x:0": 6}}, 6), ({"split": {"x": 0}}, 6)]
)
def test_two_ranks_share_a_batch_that_the_file_fixes(options: dict[str, Any], batch: int, fixed: Path) -> None:
    model = ls.load_onnx(fixed, **options)
    assert model.inputs == [ls.ValueInfo("x", "f32", (batch, 12), {"data": "split(0)"})]
    (whole,) = losses(ls.load_onnx(MLP, dims={"batch": batch}), 1, batch)
    assert whole[0] != whole[1]
    for result in losses(model, 2, batch):
        np.testing.assert_allclose(result, whole, rtol=1e-5)


def test_nothing_is_split_on_purpose(fixed: Path) -> None:
    (whole,) = losses(ls.load_onnx(fixed), 1, 6)
    for model in (ls.load_onnx(fixed), ls.load_onnx(MLP, dims={"batch": 6}, split={})):
        assert model.inputs[0].placements == {}
        for result in losses(model, 2, 6, replicated=True):
            np.testing.assert_allclose(result, whole, rtol=1e-5)


def test_dims_and_split_that_name_nothing(fixed: Path) -> None:
    with raises(str(fixed), "no symbolic dimension 'x:2'", "x:0, x:1"):
        ls.load_onnx(fixed, dims={"x:2": 6})
    with raises(str(fixed), "'x:0' is 0", "at least 1"):
        ls.load_onnx(fixed, dims={"x:0": 0})
    with raises(str(fixed), "split", "no input 'image'", "x"):
        ls.load_onnx(fixed, split={"image": 0})
    with raises(str(fixed), "split", "'x' is f32[6,12]", "dimension 2"):
        ls.load_onnx(fixed, split={"x": 2})
    with raises("split", "whole numbers"):
        ls.load_onnx(fixed, split={"x": "0"})


def test_a_dimension_without_extent_and_name_is_given_by_its_place(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], 17, {"x": [None, 3], "y": [None, 3]})
    with raises("dimension 0", 'dims={"x:0": 128}'):
        ls.load_onnx(path)
    assert ls.load_onnx(path, dims={"x:0": 4}).inputs == [ls.ValueInfo("x", "f32", (4, 3), {"data": "split(0)"})]


# Dropout


def dropout_model(path: Path, opset: int, inputs: dict[str, Any], **attributes: Any) -> Path:
    nodes = [
        helper.make_node("Dropout", ["x", *inputs], ["d"], name="/drop/Dropout", **attributes),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    return save(path, nodes, opset, {"x": ["n", 4], "y": ["n", 3]}, {**inputs, "w": random(4, 3)})


F = np.float32
DROPS = [
    (9, {}, {}, "0.5"),
    (9, {}, {"ratio": 0.25}, "0.25"),
    (10, {}, {"ratio": 0.1}, "0.1"),
    (12, {}, {}, "0.5"),
    (13, {"ratio": F(0.25)}, {}, "0.25"),
    (13, {"ratio": F(0.25), "training": np.array(True)}, {}, "0.25"),
    (22, {"ratio": F(0.25), "training": np.array(True)}, {"seed": 3}, "0.25"),
]
KEEPS = [
    (9, {}, {"ratio": 0.0}),
    (13, {"ratio": F(0)}, {}),
    (13, {"ratio": F(0), "training": np.array(True)}, {}),
    (13, {"ratio": F(0.25), "training": np.array(False)}, {}),
    (22, {"ratio": F(0.25), "training": np.array(False)}, {"seed": 3}),
]


@pytest.mark.parametrize(("opset", "inputs", "attributes", "ratio"), DROPS)
def test_dropout_drops_in_training_alone(
    opset: int, inputs: dict, attributes: dict, ratio: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    model = ls.load_onnx(dropout_model(path, opset, inputs, **attributes), dims={"n": 6})
    assert any("Dropout (onnx:/drop/Dropout)" in note and f"ratio {ratio};" in note for note in model.notes)
    loss, x = ls.loss.softmax_cross_entropy("y", "label"), random(6, 4, seed=1)
    assert str(ls.parse(str(model))) == str(model)
    step = ls.train_step(model, loss, SGD, keep_results=True)
    assert {"random/seed", "random/step"} <= {info.name for info in step.states}
    exe = ls.compile(step, threads=1)
    w = exe.state["w"]
    results = exe(x=x, label=LABELS % 3)
    # In at least one of the six rows an element was dropped.
    assert not np.allclose(results["y"], x @ w, rtol=1e-3)
    assert exe.state["random/step"] == 1
    np.testing.assert_allclose(ls.compile(model, threads=1)(x=x)["y"], x @ w, rtol=1e-5, atol=1e-6)
    w = exe.state["w"]
    ls.save_onnx(exe, tmp_path / "trained.onnx")
    (found,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(["y"], {"x": x})
    np.testing.assert_allclose(found, x @ w, rtol=1e-5, atol=1e-6)  # inference drops nothing


@pytest.mark.parametrize(("opset", "inputs", "attributes", "ratio"), DROPS)
def test_dropout_can_be_off(opset: int, inputs: dict, attributes: dict, ratio: str, tmp_path: Path) -> None:
    model = ls.load_onnx(dropout_model(tmp_path / "m.onnx", opset, inputs, **attributes), dims={"n": 6})
    loss, x = ls.loss.softmax_cross_entropy("y", "label"), random(6, 4, seed=1)
    with raises("dropout is 'of'", '"off"'):
        ls.train_step(model, loss, SGD, dropout="of")
    step = ls.train_step(model, loss, SGD, keep_results=True, dropout="off", seed=5)
    assert "dropout" not in str(step).replace("/drop/Dropout", "") and "random" not in str(step)
    exe = ls.compile(step, threads=1)
    w = exe.state["w"]
    np.testing.assert_allclose(exe(x=x, label=LABELS % 3)["y"], x @ w, rtol=1e-5, atol=1e-6)
    assert np.any(exe.state["w"] != w)


@pytest.mark.parametrize(("opset", "inputs", "attributes"), KEEPS)
def test_dropout_that_never_drops_is_trained(opset: int, inputs: dict, attributes: dict, tmp_path: Path) -> None:
    model = ls.load_onnx(dropout_model(tmp_path / "m.onnx", opset, inputs, **attributes), dims={"n": 6})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("y", "label"), SGD)
    assert step.trained == ["w"]
    assert any("/drop/Dropout" in note for note in step.notes)


def test_a_ratio_that_is_computed_counts(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["ratio"], keepdims=0),
        helper.make_node("Dropout", ["x", "ratio"], ["d", "mask"], name="drop"),
        helper.make_node("Cast", ["mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["d", "w"], ["weighted"]),
        helper.make_node("Mul", ["weighted", "kept"], ["y"]),
    ]
    path = save(tmp_path / "m.onnx", nodes, 17, {"x": [50, 40], "y": [50, 40]}, {"w": np.ones((50, 40), F)})
    model = ls.load_onnx(path)
    assert any("a ratio that the model computes" in note for note in model.notes)
    exe = ls.compile(ls.train_step(model, ls.loss.mean_squared_error("y", "target"), SGD, keep_results=True))
    for ratio in (0.25, 1.0):
        x = np.full((50, 40), ratio, F)
        y = exe(x=x, target=x)["y"]
        assert abs(np.mean(y == 0) - ratio) < 0.04, ratio
    np.testing.assert_array_equal(ls.compile(model)(x=x)["y"], x)  # the mask is also only for training


@pytest.mark.parametrize("ratio", [-0.1, 1.5, np.nan])
def test_a_ratio_that_is_none_is_an_error(ratio: float, tmp_path: Path) -> None:
    with raises("Dropout", "the ratio is", "expected 0 to 1", "/drop/Dropout"):
        ls.load_onnx(dropout_model(tmp_path / "m.onnx", 13, {"ratio": F(ratio)}), dims={"n": 6})


# Float initializers without a dimension


@pytest.fixture
def scalars(tmp_path: Path) -> ls.Graph:
    """y = (x w) scale + eps, where scale and eps have the same form in the file."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Mul", ["z", "layer.scale"], ["s"]),
        helper.make_node("Add", ["s", "eps"], ["y"]),
    ]
    values = {"w": random(4, 3), "layer.scale": F(1.5), "eps": F(1e-5), "unused": F(7)}
    path = save(tmp_path / "scalars.onnx", nodes, 17, {"x": ["n", 4], "y": ["n", 3]}, values)
    return ls.load_onnx(path, dims={"n": 6})


LOSS_OF_Y = ls.loss.softmax_cross_entropy("y", "label")


def test_a_graph_says_which_initializers_it_took_for_constants(scalars: ls.Graph) -> None:
    assert scalars.constants == ["layer.scale", "eps"]
    assert any("layer.scale, eps" in note for note in scalars.notes)
    assert [state.name for state in scalars.states] == ["w"]
    assert ls.train_step(scalars, LOSS_OF_Y, SGD).trained == ["w"]


def test_a_scalar_is_a_state_if_one_says_so(scalars: ls.Graph, tmp_path: Path) -> None:
    graph = ls.load_onnx(tmp_path / "scalars.onnx", dims={"n": 6}, states=["layer.scale"])
    assert {state.name: state.shape for state in graph.states} == {"w": (4, 3), "layer.scale": ()}
    assert graph.constants == ["eps"]
    assert graph.initial_value("layer.scale") == F(1.5)
    assert set(ls.train_step(graph, LOSS_OF_Y, SGD).trained) == {"w", "layer.scale"}
    with raises("states: there is no initializer 'scale'"):
        ls.load_onnx(tmp_path / "scalars.onnx", dims={"n": 6}, states=["scale"])


def test_tables_are_constants_if_one_says_so(tmp_path: Path) -> None:
    """y = (x w + positions) val_7 + val_8. PyTorch's exporter gives such names to values that it computed itself."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["z"]),
        helper.make_node("Add", ["z", "positions"], ["p"]),
        helper.make_node("Mul", ["p", "val_7"], ["s"]),
        helper.make_node("Add", ["s", "val_8"], ["y"]),
    ]
    values = {"w": random(4, 3), "positions": random(3), "val_7": np.array([1.5], np.float32), "val_8": random(3)}
    path = save(tmp_path / "tables.onnx", nodes, 17, {"x": ["n", 4], "y": ["n", 3]}, values)
    names = lambda graph: {state.name for state in graph.states}
    assert names(ls.load_onnx(path, dims={"n": 6})) == {"w", "positions", "val_7", "val_8"}
    file = onnx.load(path)
    file.producer_name = "pytorch"
    graph = ls.load_onnx(file, dims={"n": 6})
    assert names(graph) == {"w", "positions", "val_8"}
    assert graph.constants == ["val_7"]
    assert any("computed val_8:" in note for note in graph.notes)
    graph = ls.load_onnx(file, dims={"n": 6}, constants=["positions", "val_8"])
    assert names(graph) == {"w"}
    assert graph.constants == ["positions", "val_7", "val_8"]
    assert ls.train_step(graph, LOSS_OF_Y, SGD, trained=["w", "positions"]).trained == ["w", "positions"]
    with raises("constants: there is no initializer 'table'"):
        ls.load_onnx(file, dims={"n": 6}, constants=["table"])


@pytest.mark.parametrize("trained", [["w", "layer.scale"], ["w", "*.scale"], ["layer.*"]])
def test_a_learnable_scalar_is_trained_when_it_is_named(trained: list[str], scalars: ls.Graph, tmp_path: Path) -> None:
    step = ls.train_step(scalars, LOSS_OF_Y, ls.optim.SGD(0.5), trained=trained)
    assert "layer.scale" in step.trained
    assert step.constants == ["eps"]
    assert step.initial_value("layer.scale") == F(1.5)
    x, labels = random(6, 4, seed=1), LABELS % 3

    def body(world: ls.Communicator) -> tuple[float, float, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1)
        share = slice(world.rank * 6 // world.size, (world.rank + 1) * 6 // world.size)
        first, second = (float(exe(x=x[share], label=labels[share])["loss"]) for _ in range(2))
        if world.rank == 0:
            ls.save_onnx(exe, tmp_path / "trained.onnx")
        return first, second, exe.state["layer.scale"]

    # Calculated by hand for the first step: the logits are u scale + eps, and the gradient of the scale is the mean of
    # (p - onehot) u.
    u = x @ step.initial_value("w")
    p = np.exp(1.5 * u) / np.exp(1.5 * u).sum(axis=1, keepdims=True)
    gradient = ((p - np.eye(3)[labels]) * u).sum() / 6
    (expected,) = ls.interpret(step, [{"x": x, "label": labels}])
    np.testing.assert_allclose(expected["layer.scale"], 1.5 - 0.5 * gradient, rtol=1e-5)
    for n in (1, 2):
        for first, second, scale in run_in_threads(n, body):
            assert second < first
            assert scale.shape == ()
            assert scale != F(1.5)
            saved = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "trained.onnx").graph.initializer}
            assert saved["layer.scale"] == scale


def test_names_and_patterns_of_what_is_trained() -> None:
    model = ls.load_onnx(MLP, dims={"batch": 6})

    def trained(**options: Any) -> list[str]:
        return ls.train_step(model, CROSS_ENTROPY, SGD, **options).trained

    every = [state.name for state in model.states]
    assert trained() == trained(trained=["*"]) == every
    assert trained(trained=["fc[12].*"]) == every[:4]
    assert trained(frozen=["fc1.*", "fc2.weight"]) == every[3:]
    assert trained(trained=["*.weight"], frozen=["fc1*"]) == ["fc2.weight", "fc3.weight"]
    with raises("trained", "'fc9.*'", "fc1.weight, fc1.bias"):
        trained(trained=["fc9.*"])
    with raises("frozen", "'fc9.weight'", "fc1.weight, fc1.bias"):
        trained(frozen=["fc9.weight"])
    with raises("fc1.bias", "trained and by frozen"):
        trained(trained=["fc1.bias"], frozen=["fc1.bias"])
    with raises("frozen leaves no state of graph @", "to train"):
        trained(frozen=["*"])
    with raises("frozen", "'fc1.*'", "list of names"):
        trained(frozen="fc1.*")
    with raises("trained is 3, expected text"):
        trained(trained=["fc1.bias", 3])


def test_a_pattern_lists_constants_too(scalars: ls.Graph) -> None:
    with raises("'*.gain'", "states are w", "constants are layer.scale, eps"):
        ls.train_step(scalars, LOSS_OF_Y, SGD, trained=["*.gain"])


def test_summary(scalars: ls.Graph) -> None:
    text = scalars.summary()
    assert re.search(r"graph @g, \d+ nodes\ninputs \(1, 24 elements\)\n  x: f32\[6,4\] split\(0\) along data\n", text)
    assert "states that stay (1, 12 elements)\n  w: f32[4,3]\n" in text
    assert "constants (2, 2 elements)\n  layer.scale: f32[]\n  eps: f32[]\n" in text
    assert "results (1, 18 elements)\n  y: f32[6,3]\n" in text
    assert "note: " in text
    step = ls.train_step(scalars, LOSS_OF_Y, ls.optim.Adam(), trained=["w", "layer.scale"])
    assert "trained states (2, 13 elements)\n  w: f32[4,3]\n  layer.scale: f32[]\n" in step.summary()
    assert "other states that change (5, 27 elements)\n  optimizer/step: i64[]\n" in step.summary()
    assert "mesh {data=2}" in ls.distribute(step, {"data": 2}).summary()


# Forms of old opsets, which ONNX's own cases no longer cover


def node(op: str, *inputs: str, outputs: tuple[str, ...] = ("y",), **attributes: Any) -> Any:
    return helper.make_node(op, ["x", *inputs], list(outputs), **attributes)


OLD: list[tuple[int, Any, tuple[int, ...], dict[str, Any]]] = [
    # Softmax over all dimensions from the axis on; from opset 13 on only over the axis.
    *[
        (opset, node(op, **attributes), (2, 3, 4), {})
        for op in ("Softmax", "LogSoftmax")
        for opset in (9, 11, 12, 13)
        for attributes in ({}, {"axis": 0}, {"axis": 1}, {"axis": 2})
    ],
    *[(11, node(op, axis=axis), (2, 3, 4), {}) for op in ("Softmax", "LogSoftmax") for axis in (-1, -2, -3)],
    *[(opset, node("Pad", pads=[0, 1, 2, 0], value=1.5), (2, 3), {}) for opset in (9, 10)],
    (9, node("Pad", pads=[1, 0, 0, 1]), (2, 3), {}),
    (10, node("Pad", pads=[0, -1, 1, 0], value=-2.0), (2, 3), {}),
    (11, node("Pad", "pads", "value"), (2, 3), {"pads": np.array([0, 1, 2, 0]), "value": F(1.5)}),
    *[
        (opset, node("Clip", **bounds), (2, 5), {})
        for opset in (9, 10)
        for bounds in ({"min": -0.25}, {"max": 0.25}, {"min": -0.5, "max": 0.5}, {})
    ],
    *[(opset, node("Clip", "low"), (2, 5), {"low": F(-0.25)}) for opset in (11, 12, 13)],
    *[(opset, node("Clip", "", "high"), (2, 5), {"high": F(0.25)}) for opset in (11, 12, 13)],
    *[
        (opset, node("BatchNormalization", "s", "b", "m", "v", epsilon=0.01, momentum=0.8), (4, 3, 2), {})
        for opset in (9, 13, 14, 15)
    ],
    (9, node("Dropout", ratio=0.3), (2, 5), {}),
    (10, node("Dropout"), (2, 5), {}),
    (12, node("Dropout", "r"), (2, 5), {"r": F(0.3)}),
    *[(opset, node("Squeeze", axes=[0, 2]), (1, 3, 1, 1), {}) for opset in (9, 11, 12)],
    *[(opset, node("Squeeze"), (1, 3, 1), {}) for opset in (9, 12, 13)],
    (11, node("Squeeze", axes=[-2]), (2, 1, 3), {}),
    *[(opset, node("Unsqueeze", axes=[0, 2]), (3, 2), {}) for opset in (9, 11, 12)],
    (11, node("Unsqueeze", axes=[-1, 1]), (3, 2), {}),
    *[
        (opset, node(op, **attributes), (2, 3, 4), {})
        for op, opset in (("ReduceSum", 9), ("ReduceSum", 12), ("ReduceMean", 9), ("ReduceMean", 17), ("ReduceMax", 12))
        for attributes in ({}, {"axes": [1]}, {"axes": [0, 2], "keepdims": 0}, {"keepdims": 0})
    ],
    (11, node("ReduceSum", axes=[-1]), (2, 3, 4), {}),
    (9, node("Slice", starts=[1, -3], ends=[9, -1], axes=[0, 2]), (3, 2, 4), {}),
    (9, node("Slice", starts=[0, 1], ends=[2, 2]), (3, 2, 4), {}),
    *[(opset, node("Hardmax", **attributes), (2, 3, 4), {}) for opset in (11, 13) for attributes in ({}, {"axis": 0})],
    (10, node("Slice", "from", "to"), (3, 2, 4), {"from": np.array([1, 0]), "to": np.array([3, 1])}),
]


@pytest.mark.parametrize("i", range(len(OLD)), ids=lambda i: f"{OLD[i][1].op_type}-{OLD[i][0]}-{i}")
def test_old_forms_mean_what_onnx_runtime_says(i: int, tmp_path: Path) -> None:
    opset, old, shape, constants = OLD[i]
    if old.op_type == "BatchNormalization":
        constants = {name: np.abs(random(3, seed=seed)) + F(0.1) for seed, name in enumerate("sbmv")}
    path = save(tmp_path / "m.onnx", [old], opset, {"x": list(shape)}, constants)
    x = random(*shape, seed=7)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    (expected,) = onnxruntime.InferenceSession(path, options).run(["y"], {"x": x})
    assert expected.size > 0
    graph = ls.load_onnx(path)
    (interpreted,) = ls.interpret(graph, [{"x": x, **{s.name: graph.initial_value(s.name) for s in graph.states}}])
    for found in (interpreted["y"], ls.compile(graph, threads=1)(x=x)["y"]):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_batch_normalisation_that_lists_its_training_outputs(tmp_path: Path) -> None:
    """Opsets 9 to 13 indicate training mode by the outputs 1 to 4, the running and the batch's statistics."""
    constants = {name: np.abs(random(3, seed=seed)) + F(0.1) for seed, name in enumerate("sbmv")}
    old = node("BatchNormalization", *"sbmv", outputs=("y", "m1", "v1", "m2", "v2"), epsilon=0.01)
    graph = ls.load_onnx(save(tmp_path / "m.onnx", [old], 9, {"x": [4, 3, 2]}, constants))
    x = random(4, 3, 2)
    s, b, m, v = (constants[name][:, None] for name in "sbmv")
    expected = (x - m) / np.sqrt(v + F(0.01)) * s + b
    np.testing.assert_allclose(ls.compile(graph, threads=1)(x=x)["y"], expected, rtol=1e-5, atol=1e-6)
    assert any("inference form" in note for note in graph.notes)


def test_a_new_form_in_an_old_opset_is_an_error(tmp_path: Path) -> None:
    for opset, old, part in [
        (13, node("Squeeze", axes=[0]), "attribute axes is not supported in opset 13"),
        (11, node("Clip", min=0.0), "attribute min is not supported in opset 11"),
        (11, node("Pad", "pads", pads=[0, 0]), "attribute pads is not supported in opset 11"),
        (13, node("ReduceSum", axes=[0]), "attribute axes is not supported in opset 13"),
        (12, node("Dropout", ratio=0.5), "ratio"),
    ]:
        path = save(tmp_path / "m.onnx", [old], opset, {"x": [1]}, {"pads": np.array([1, 1])})
        with raises(old.op_type, part):
            ls.load_onnx(path)


# Functions and bodies


def with_weights(text: str, path: Path) -> Path:
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18, "local" : 1]>\n' + text)
    for name, shape in (("w", (12, 12)), ("head", (12, 5))):
        model.graph.initializer.append(numpy_helper.from_array(random(*shape, seed=len(name)) / 4, name))
    onnx.save(model, path)
    return path


def test_a_loop_over_a_function_trains_as_its_iterations(tmp_path: Path) -> None:
    looped = with_weights(
        """g (float[batch,12] x) => (float[batch,5] logits) {
             trips = Constant <value = int64 {2}> ()
             h = Loop (trips, , x) <body = b (int64 i, bool c, float[n,12] v) => (bool c2, float[n,12] u) {
               c2 = Identity(c)
               u = local.Layer(v, w)
             }>
             logits = MatMul(h, head)
           }
           <domain: "local", opset_import: ["" : 18]> Layer (a, b) => (t) { m = MatMul(a, b)  t = Tanh(m) }""",
        tmp_path / "looped.onnx",
    )
    written = with_weights(
        """g (float[batch,12] x) => (float[batch,5] logits) {
             m = MatMul(x, w)  t = Tanh(m)  n = MatMul(t, w)  h = Tanh(n)  logits = MatMul(h, head)
           }""",
        tmp_path / "written.onnx",
    )
    (expected,) = losses(ls.load_onnx(written, dims={"batch": 6}), 1, 6)
    assert expected[0] > expected[2]
    results = losses(ls.load_onnx(looped, dims={"batch": 6}), 2, 6)
    assert len(results) == 2
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-5)
