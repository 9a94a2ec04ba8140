"""Bad input gets a lockstep.Error that names the file, op, input, option or rank, and nothing hangs."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import lockstep as ls
from ranks import run_in_threads

HERE = Path(__file__).parent
MLP = HERE.parent / "models/mlp.onnx"
CROSS_ENTROPY = ls.loss.softmax_cross_entropy("logits", "label")
SGD = ls.optim.SGD(0.1)
X = np.ones((6, 12), np.float32)
LABELS = np.array([0, 1, 2, 3, 4, 0])


def mlp() -> ls.Graph:
    return ls.load_onnx(MLP, dims={"batch": 6})


def training(optimizer: Any = SGD, model: ls.Graph | None = None, **options: Any) -> ls.Graph:
    return ls.train_step(model or mlp(), CROSS_ENTROPY, optimizer, **options)


def raises(*parts: str) -> Any:
    """Expects an Error whose message contains all parts, in this order."""
    return pytest.raises(ls.Error, match=".*".join(re.escape(part) for part in parts))


@pytest.fixture(scope="module")
def exe() -> ls.Executable:
    return ls.compile(training(), threads=1)


# ONNX files


@pytest.mark.parametrize(
    "content",
    [b"", b"This is a text, not a model.\n", MLP.read_bytes()[:-100], MLP.read_bytes()[:500]],
    ids=["empty", "text", "end cut off", "beginning only"],
)
def test_a_file_that_is_no_model_or_half_of_one(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with raises(str(path), "is not an ONNX model"):
        ls.load_onnx(path, dims={"batch": 6})


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with raises(str(tmp_path / "missing.onnx"), "no such file"):
        ls.load_onnx(tmp_path / "missing.onnx")
    with raises(str(tmp_path), "is not a file"):
        ls.load_onnx(tmp_path)


@pytest.mark.parametrize(("domain", "opset"), [("ai.onnx", 17), ("com.example", 3)])
def test_an_unknown_operator(domain: str, opset: int, tmp_path: Path) -> None:
    node = helper.make_node("Frobnicate", ["x"], ["y"], name="/odd/one", domain="" if domain == "ai.onnx" else domain)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 3)]
    model = helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:]), opset_imports=opsets, ir_version=8)
    onnx.save(model, tmp_path / "odd.onnx")
    with raises(str(tmp_path / "odd.onnx"), "Frobnicate", f"domain {domain}", f"opset {opset}", "/odd/one"):
        ls.load_onnx(tmp_path / "odd.onnx")


def test_dimensions() -> None:
    with raises(str(MLP), "input 'x'", "'batch'", "dims"):
        ls.load_onnx(MLP)
    with raises(str(MLP), "no symbolic dimension 'time'", "'batch'"):
        ls.load_onnx(MLP, dims={"batch": 6, "time": 3})
    with raises(str(MLP), "'batch' is -6"):
        ls.load_onnx(MLP, dims={"batch": -6})
    with raises("dims", "'six'", "whole numbers"):
        ls.load_onnx(MLP, dims={"batch": "six"})
    with raises("dims", "'6'", "whole numbers"):
        ls.load_onnx(MLP, dims={"batch": "6"})
    with raises("dims: 'batch' is 18446744073709551616", "64 bits"):
        ls.load_onnx(MLP, dims={"batch": 2**64})
    with raises("dims", "5", "whole numbers"):
        ls.load_onnx(MLP, dims=5)


# Calls


@pytest.mark.parametrize(
    ("inputs", "parts"),
    [
        ({"x": X[:5], "label": LABELS}, ["input x", "f32[6,12]", "f32[5,12]"]),
        ({"x": X[0], "label": LABELS}, ["input x", "f32[6,12]", "f32[12]"]),
        ({"x": X.astype(np.float64), "label": LABELS}, ["input x", "f32[6,12]", "f64[6,12]"]),
        ({"x": X, "label": LABELS.astype(np.float32)}, ["input label", "i64[6]", "f32[6]"]),
        ({"x": X.astype(np.complex64), "label": LABELS}, ["input x", "dtype"]),
        ({"x": [1, 2, 3], "label": LABELS}, ["input x", "list", "array"]),
        ({"x": np.array([None] * 6), "label": LABELS}, ["input x is an array of dtype object", "array of numbers"]),
        ({"x": X.astype(">f8"), "label": LABELS}, ["input x is an array of dtype >f8", "byte order", "np.float32"]),
        ({"x": X}, ["input label is missing"]),
        ({"x": X, "label": LABELS, "mask": X}, ["no input mask", "x, label"]),
        (
            {"x": X, "label": np.array([0, 1, 2, 5, 4, 0])},
            ["at loss", "softmax_cross_entropy", "label 5", "[3]", "[0, 5)"],
        ),
        ({"x": X, "label": np.array([0, 1, 2, 3, 4, -1])}, ["at loss", "softmax_cross_entropy", "label -1", "[5]"]),
    ],
)
def test_inputs(inputs: dict[str, Any], parts: list[str], exe: ls.Executable) -> None:
    with raises(*parts):
        exe(**inputs)
    assert np.isfinite(exe(x=X, label=LABELS)["loss"]), "one rank can go on after a bad call"


def test_states(exe: ls.Executable) -> None:
    for kind in (KeyError, ls.Error):
        with pytest.raises(
            kind, match=r"^there is no state fc9\.weight; is .* meant\? There are: fc1\.weight, fc1\.bias"
        ):
            exe.state["fc9.weight"]
        with pytest.raises(kind, match=r"fc1\.wieght; is fc1\.weight meant"):
            exe.state["fc1.wieght"] = X
        with pytest.raises(kind, match="no state 5"):
            exe.state[5]
    assert "fc9.weight" not in exe.state
    assert exe.state.get("fc9.weight") is None
    with raises("state fc1.weight", "f32[16,12]", "f32[6,12]"):
        exe.state["fc1.weight"] = X
    with raises("state fc1.bias", "f32[16]", "f64[16]"):
        exe.state["fc1.bias"] = np.zeros(16)
    with raises("state fc1.bias", "list"):
        exe.state["fc1.bias"] = [0.0] * 16
    with pytest.raises(TypeError, match="removed"):
        del exe.state["fc1.bias"]
    with raises("no state fc9.weight"):
        mlp().initial_value("fc9.weight")


def test_interpret() -> None:
    with raises("input x is missing on rank 0"):
        ls.interpret(mlp(), [{}])
    with raises("no input mask"):
        ls.interpret(mlp(), [{"x": X, "mask": X}])
    with raises("input %x on rank 0", "f32[2,12]", "f32[6,12]"):
        ls.interpret(mlp(), [{"x": X[:2]}])
    with raises("input x on rank 0", "str"):
        ls.interpret(mlp(), [{"x": "X"}])
    with raises("2 ranks", "of 1"):
        ls.interpret(mlp(), [{"x": X}, {"x": X}])


# Training steps, options


class Momentum:
    learning_rate = 0.1


@pytest.mark.parametrize(
    ("optimizer", "parts"),
    [
        (Momentum(), ["unknown optimizer", "Momentum", "SGD, Adam, AdamW"]),
        ("SGD", ["unknown optimizer 'SGD'", "SGD, Adam, AdamW"]),
        (3, ["unknown optimizer 3"]),
        (ls.optim.SGD, ["the optimizer is the class SGD, expected one with its options, such as SGD()"]),
    ],
)
def test_what_is_no_optimizer(optimizer: Any, parts: list[str]) -> None:
    with raises(*parts):
        training(optimizer)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda: ls.optim.SGD(-0.1), ["SGD: learning_rate is -0.1"]),
        (lambda: ls.optim.SGD(float("nan")), ["SGD: learning_rate is nan"]),
        (lambda: ls.optim.SGD(np.float32("inf")), ["SGD: learning_rate is", "inf"]),
        (lambda: ls.optim.SGD(10**400), ["SGD: learning_rate is of type", "a number"]),
        (lambda: ls.optim.SGD("0.1"), ["learning_rate is '0.1'", "a number"]),
        (lambda: ls.optim.SGD([0.1]), ["learning_rate is [0.1]", "a number"]),
        (lambda: ls.optim.SGD(), ["SGD: learning_rate is missing"]),
        (lambda: ls.optim.SGD(0.1, lr=0.1), ["learning_rate and lr are both given"]),
        (lambda: ls.optim.SGD(0.1, momentum=-1), ["momentum is -1"]),
        (lambda: ls.optim.SGD(0.1, nesterov=True), ["nesterov needs a momentum"]),
        (lambda: ls.optim.SGD(0.1, 0.9, nesterov="no"), ["nesterov is 'no'", "True or False"]),
        (lambda: ls.optim.SGD(0.1, weight_decay=-1), ["weight_decay is -1"]),
        (lambda: ls.optim.Adam(beta1=1), ["Adam: beta1 is 1", "below 1"]),
        (lambda: ls.optim.Adam(beta2=-0.5), ["beta2 is -0.5"]),
        (lambda: ls.optim.Adam(betas=(0.9, 1.5)), ["beta2 is 1.5"]),
        (lambda: ls.optim.Adam(betas=0.9), ["betas is 0.9", "two numbers"]),
        (lambda: ls.optim.Adam(betas=(0.9, 0.99), beta2=0.9), ["beta2 and betas are both given"]),
        (lambda: ls.optim.AdamW(epsilon=0), ["AdamW: epsilon is 0", "above 0"]),
        (lambda: ls.optim.AdamW(eps=-1e-8), ["AdamW: epsilon is -1e-08"]),
    ],
)
def test_options_of_optimizers_are_refused_where_they_are_given(make: Callable[[], Any], parts: list[str]) -> None:
    with raises(*parts):
        make()


def test_optimizers_know_the_names_of_pytorch() -> None:
    assert ls.optim.SGD(lr=0.1, momentum=0.9) == ls.optim.SGD(0.1, 0.9)
    assert ls.optim.Adam(lr=0.1, betas=(0.8, 0.9), eps=1e-6) == ls.optim.Adam(0.1, 0.8, 0.9, 1e-6)
    assert ls.optim.AdamW(lr=0.1) == ls.optim.AdamW(0.1, 0.9, 0.999, 1e-8, 0.01)
    assert ls.optim.Adam() == ls.optim.Adam(1e-3, 0.9, 0.999, 1e-8, 0.0)
    assert repr(ls.optim.Adam()) == "Adam(learning_rate=0.001, beta1=0.9, beta2=0.999, epsilon=1e-08, weight_decay=0.0)"
    assert training(ls.optim.AdamW(weight_decay=0.5)).settings["optimizer/weight_decay"] == 0.5


def test_losses_and_other_options_of_a_training_step() -> None:
    with raises("loss", "no result 'probabilities'", "logits"):
        ls.train_step(mlp(), ls.loss.softmax_cross_entropy("probabilities"), SGD)
    with raises("%logits is f32[6,5]"):
        ls.train_step(mlp(), ls.loss.result("logits"), SGD)
    with raises("'logits'", "lockstep.loss"):
        ls.train_step(mlp(), "logits", SGD)
    with raises("trained", "'fc9.weight'", "fc1.weight, fc1.bias"):
        training(trained=["fc9.weight"])
    with raises("trained", "'fc1.weight'", "list"):
        training(trained="fc1.weight")
    with raises("batch_statistics", "'local'", '"global" or "rank"'):
        training(batch_statistics="local")
    with raises("no result probability"):
        ls.gradients(mlp(), of="probability")
    with raises("no input %fc9.weight"):
        ls.gradients(training(), of="loss", wrt=["fc9.weight"])


def test_compile_options() -> None:
    with raises('no backend "gpu"', "cpu"):
        ls.compile(mlp(), backend="gpu")
    for threads in (0, -1, 100000, 2**40, 2**70, "2"):
        with raises(f"threads is {threads!r}"):
            ls.compile(mlp(), threads=threads)
    for size in (-1, 0, 2**70, 1e6, "1"):
        with raises(f"bucket_bytes is {size!r}"):
            ls.compile(mlp(), bucket_bytes=size)
    with raises("optimize is 'no'"):
        ls.compile(mlp(), optimize="no")
    with raises("axis is 'a b'"):
        ls.compile(mlp(), mesh={"a b": 1})
    with raises("axis data has size 4611686018427387904", "too many ranks"):
        ls.distribute(mlp(), {"data": 2**62})
    with raises("world is 2", "Communicator"):
        ls.compile(mlp(), world=2)
    with raises("mesh", "whole numbers"):
        ls.compile(mlp(), mesh={"data": "all"})
    with raises("in_process: 0 ranks"):
        ls.Communicator.in_process(0)
    with raises("timeout is -1"):
        ls.Communicator.in_process(2, timeout=-1)
    with raises("not made from an imported ONNX model"):
        ls.save_onnx(ls.compile(ls.parse(str(mlp())), threads=1), "never.onnx")


def test_threads_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("many", "-1", "0", "0,2", ",2"):
        monkeypatch.setenv("OMP_NUM_THREADS", wrong)
        with raises("OMP_NUM_THREADS", repr(wrong), "at least 1"):
            ls.compile(mlp())
    for setting in ("3", "3,2"):  # values for nested regions; Lockstep uses the first
        monkeypatch.setenv("OMP_NUM_THREADS", setting)
        assert ls.compile(mlp()).threads == 3
    assert ls.compile(mlp(), threads=2).threads == 2


@pytest.mark.parametrize(("ranks", "cores", "threads"), [(1, 6, 6), (2, 6, 3), (2, 5, 2), (3, 2, 1)])
def test_ranks_of_a_host_share_its_cores(ranks: int, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    found = run_in_threads(ranks, lambda world: ls.compile(mlp(), world=world, replicated=True).threads)
    assert found == [threads] * ranks


def test_saving_where_nothing_can_be_written(exe: ls.Executable, tmp_path: Path) -> None:
    with raises(str(tmp_path / "missing/model.onnx"), "cannot be opened"):
        ls.save_onnx(exe, tmp_path / "missing/model.onnx")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "graph @f(%x: f32[2]) -> (y: f32[2]) {\n  %y = nope %x : f32[2]\n  return %y\n}\n",
            ["line 2, column 3", "unknown op 'nope'"],
        ),
        ("graph @f(%x: f32[2] -> (y: f32[2]) {\n}\n", ["line 1, column 21"]),
        (
            "graph @f(%x: f32[2]) -> (y: f32[2]) {\n  %y = exp %x : f32[3]\n  return %y\n}\n",
            ["line 2, column", "f32[2]", "f32[3]"],
        ),
        ("", ["line 1"]),
    ],
)
def test_texts(text: str, parts: list[str]) -> None:
    with raises(*parts):
        ls.parse(text)


# Data files


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "not an IDX file"),
        (b"PNG, not IDX", "not an IDX file"),
        (b"\0\0\x08\x03\0\0", "within its header"),
        (idx(np.zeros((3, 4), np.uint8))[:-1], "23 bytes, but its header says 24"),
        (idx(np.zeros((3, 4), np.uint8)) + b"\0", "25 bytes, but its header says 24"),
    ],
    ids=["empty", "text", "header cut off", "end cut off", "too long"],
)
def test_damaged_data_files(content: bytes, part: str, tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with raises(str(path), part):
        ls.data.load_idx(path)
    packed = tmp_path / "images.gz"
    packed.write_bytes(gzip.compress(content))
    with raises(str(packed), part):
        ls.data.load_idx(packed)


def test_damaged_compressed_data_files(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    random = np.random.default_rng(0).integers(0, 9, (50, 50)).astype(np.uint8)
    packed = gzip.compress(idx(random))
    damaged = [packed[: len(packed) // 2], b"\x1f\x8c" + packed[2:], packed[:-8] + b"12345678"]
    damaged += [
        packed[:at] + bytes([packed[at] ^ 255]) + packed[at + 1 :] for at in range(20, len(packed), len(packed) // 20)
    ]
    for content in damaged:
        path.write_bytes(content)
        with raises(str(path)):
            ls.data.load_idx(path)


def test_missing_data_files(tmp_path: Path) -> None:
    with raises(str(tmp_path / "train-images-idx3-ubyte"), "no such file"):
        ls.data.mnist(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((3, 4, 4), np.uint8)))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(2, np.uint8)))
    with raises(str(tmp_path), "(3, 4, 4)", "(2,)"):
        ls.data.mnist(tmp_path, train=False)


# Refused data


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"average": ls.average.exponential(0.9)}, {"uneven": True}])
@pytest.mark.parametrize("model", ["mlp", "convnet_bn"])
def test_a_call_that_refuses_its_data_changes_no_state(model: str, options: dict[str, Any]) -> None:
    """Neither the optimizer's step count nor running statistics change, although they are updated before the labels are
    checked.
    """
    graph = ls.load_onnx(HERE.parent / f"models/{model}.onnx", dims={"batch": 6})
    exe = ls.compile(training(ls.optim.Adam(0.01), graph, **options))
    images = {graph.inputs[0].name: np.random.default_rng(0).random(graph.inputs[0].shape, np.float32)}
    labels = LABELS % 4
    exe(**images, label=labels)
    before = {name: exe.state[name] for name in exe.state}
    wrong = labels.copy()
    wrong[4] = 99
    for _ in range(2):
        with raises("99" if not options.get("uneven") else "label", "is outside [0, "):
            exe(**images, label=wrong)
        for name, value in before.items():
            np.testing.assert_array_equal(exe.state[name], value, err_msg=name)
    loss = exe(**images, label=labels)["loss"]
    again = ls.compile(training(ls.optim.Adam(0.01), graph, **options))
    again(**images, label=labels)
    assert loss == again(**images, label=labels)["loss"]


def test_a_step_with_many_results_is_named_by_three() -> None:
    exe = ls.compile(training(accumulate=2))
    with raises("steps.scan %grad/", " and ", "more, at micro-batches: softmax_cross_entropy (C5): label 9") as error:
        exe(x=X, label=np.array([0, 1, 2, 3, 4, 9]))
    assert len(str(error.value)) < 160
