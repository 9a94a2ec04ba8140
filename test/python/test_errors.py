"""Bad input gets a lockstep.Error that names the file, op, input, option or rank; and nothing hangs."""

from __future__ import annotations

import gzip
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lockstep as ls
from ranks import mpirun, run_in_threads

HERE = Path(__file__).parent
MLP = HERE.parent / "models/mlp.onnx"
CROSS_ENTROPY = ls.loss.softmax_cross_entropy("logits", "label")
SGD = ls.optim.SGD(0.1)
X = np.ones((6, 12), np.float32)
LABELS = np.array([0, 1, 2, 3, 4, 0])
LIMIT = 5.0  # seconds in which ranks notice that one of them is gone


def mlp() -> ls.Graph:
    return ls.load_onnx(MLP, dims={"batch": 6})


def training(optimizer: Any = SGD, model: ls.Graph | None = None, **options: Any) -> ls.Graph:
    return ls.train_step(model or mlp(), CROSS_ENTROPY, optimizer, **options)


def raises(*parts: str) -> Any:
    """Expects an Error whose message has all parts, in this order."""
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
        ({"x": X, "label": LABELS.astype(np.int32)}, ["input label", "i64[6]", "i32[6]"]),
        ({"x": X.astype(np.complex64), "label": LABELS}, ["input x", "dtype"]),
        ({"x": [1, 2, 3], "label": LABELS}, ["input x", "list", "array"]),
        ({"x": np.array([None] * 6), "label": LABELS}, ["input x", "array of numbers"]),
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
        (None, ["unknown optimizer None"]),
        (ls.optim.SGD, ["unknown optimizer", "SGD"]),
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
        (lambda: ls.optim.SGD(10**400), ["SGD: learning_rate is 1000", "a number"]),
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
    assert "weight_decay=0.5" in str(training(ls.optim.AdamW(weight_decay=0.5)))


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
    with raises("not made of an imported ONNX model"):
        ls.save_onnx(ls.compile(ls.parse(str(mlp())), threads=1), "never.onnx")


def test_threads_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with raises("OMP_NUM_THREADS", "'many'"):
        ls.compile(mlp())


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


# Several ranks, as threads


def errors_of(n: int, body: Callable[[ls.Communicator], Any]) -> list[str]:
    """The messages of the ls.Error that every one of n ranks raises."""
    results = run_in_threads(n, body, timeout=30)
    assert [type(result) for result in results] == [ls.Error] * n, results
    return [str(result) for result in results]


def test_a_batch_that_ranks_cannot_share() -> None:
    for message in errors_of(4, lambda world: ls.compile(training(), world=world)):
        assert re.search(r"input %x .*6.*shared evenly by the 4 ranks", message)
    with raises("dimension 0 of input %x", "shared evenly by the 4 ranks"):
        ls.distribute(training(), {"data": 4})
    for message in errors_of(4, lambda world: ls.data.batches(X, LABELS, size=6, world=world)):
        assert "a batch of 6 cannot be shared evenly by 4 ranks" in message
    with raises("different lengths", "[6, 5]"):
        ls.data.batches(X, LABELS[:5], size=2)
    with raises("a batch of 7", "6 samples"):
        ls.data.batches(X, LABELS, size=7)
    with raises("a batch of 0"):
        ls.data.batches(X, LABELS, size=0)


@pytest.mark.parametrize("mesh", [{"data": 3}, {"data": 1}, {"data": 2, "model": 2}, {"data": 0}])
def test_a_mesh_that_does_not_fit_the_world(mesh: dict[str, int]) -> None:
    for message in errors_of(2, lambda world: ls.compile(training(), world=world, mesh=mesh)):
        assert re.search(r"mesh \{data=\d.*\} is of \d ranks, and the world has 2", message)


def test_a_distributed_graph_in_a_world_of_another_size() -> None:
    placed = ls.distribute(training(), {"data": 3})
    for message in errors_of(2, lambda world: ls.compile(placed, world=world)):
        assert "{data=3}" in message
        assert "{data=2}" in message


def test_a_label_out_of_range_on_one_rank() -> None:
    def body(world: ls.Communicator) -> None:
        exe = ls.compile(training(), world=world, threads=1)
        exe(x=X[:3], label=np.array([0, 9 if world.rank == 1 else 1, 2]))

    other, culprit = errors_of(2, body)
    assert re.search(r"at loss.*label 9 at position \[1\]", culprit)
    assert re.search(r"rank 1 on host .* gave up.*label 9 at position \[1\]", other)


def with_other_values(folder: Path) -> ls.Graph:
    """The MLP with one initial value that differs."""
    model = onnx.load(MLP)
    initializer = next(tensor for tensor in model.graph.initializer if tensor.name == "fc2.weight")
    value = numpy_helper.to_array(initializer).copy()
    value[3, 3] += 1e-3
    initializer.CopyFrom(numpy_helper.from_array(value, "fc2.weight"))
    onnx.save(model, folder / "other.onnx")
    return ls.load_onnx(folder / "other.onnx", dims={"batch": 6})


DIFFERENCES = {
    "a model and its training step": (lambda _: mlp(), {}, ["rank 0: all_reduce", "rank 1"]),
    "learning rates": (lambda _: training(ls.optim.SGD(0.2)), {}, ["rank 0", "0.1", "rank 1", "0.2"]),
    "optimizers": (
        lambda _: training(ls.optim.SGD(0.1, momentum=0.9)),
        {},
        ["program @mlp", "rank 0", "rank 1", "momentum"],
    ),
    "initial values": (
        lambda folder: training(model=with_other_values(folder)),
        {},
        ["fc2.weight", "rank 0", "rank 1"],
    ),
    "bucket sizes": (lambda _: training(), {"bucket_bytes": 64}, ["rank 0", "bucket 0", "rank 1", "bucket 0"]),
    "batches": (
        lambda _: training(model=ls.load_onnx(MLP, {"batch": 8})),
        {},
        ["rank 0", "f32[3,12]", "rank 1", "f32[4,12]"],
    ),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_with_different(what: str, tmp_path: Path) -> None:
    make, options, parts = DIFFERENCES[what]

    def body(world: ls.Communicator) -> ls.Executable:
        if world.rank == 1:
            return ls.compile(make(tmp_path), world=world, threads=1, **options)
        return ls.compile(training(), world=world, threads=1)

    for message in errors_of(2, body):
        assert re.search(".*".join(map(re.escape, parts)), message, re.DOTALL), message


def test_one_rank_without_the_backend() -> None:
    other, culprit = errors_of(2, lambda world: ls.compile(training(), "gpu" if world.rank == 1 else "cpu", world))
    assert 'no backend "gpu"' in culprit
    assert re.search(r'rank 1 on host .* gave up: .*"gpu"', other)


def test_a_rank_that_raises_while_others_wait() -> None:
    def raise_(world: ls.Communicator) -> None:
        if world.rank == 1:
            raise ls.Error("no more data")
        world.barrier()

    messages = errors_of(3, raise_)
    assert all(re.search(r"rank 1 on host .* gave up: no more data", messages[rank]) for rank in (0, 2))


def test_a_rank_that_leaves_while_others_wait() -> None:
    worlds = ls.Communicator.in_process(3)
    left = worlds.pop(1)
    threading.Timer(0.2, lambda world: world.rank, [left]).start()  # holds it until then
    del left
    begin = time.monotonic()
    with raises("rank 1 on host", "has left"):
        worlds[0].barrier()
    assert 0.1 < time.monotonic() - begin < LIMIT


def test_a_missing_rank_is_named_after_the_timeout() -> None:
    worlds = ls.Communicator.in_process(3, timeout=0.3)
    begin = time.monotonic()
    with raises("for rank 1", "rank 2", "not arrived"):
        worlds[0].barrier()
    assert time.monotonic() - begin < LIMIT


# An all_reduce removed by hand

DISTRIBUTED = str(ls.distribute(training(), {"data": 2}))
ALL_REDUCES = re.findall(r"^  (%\S+) = all_reduce (%\S+) .*\n", DISTRIBUTED, re.MULTILINE)


@pytest.mark.parametrize(("reduced", "partial"), ALL_REDUCES)
def test_a_removed_all_reduce(reduced: str, partial: str) -> None:
    lines = [line for line in DISTRIBUTED.splitlines() if not line.startswith(f"  {reduced} = ")]
    text = re.sub(rf"{re.escape(reduced)}(?![\w./])", partial, "\n".join(lines))
    assert reduced not in text.replace(DISTRIBUTED.splitlines()[1], "")
    graph = ls.parse(text + "\n")
    variable = partial.removeprefix("%grad/")
    wanted = ["result loss"] if partial == "%loss" else ["sgd", f"optimizer of {variable}", f"state %{variable}"]
    for message in errors_of(2, lambda world: ls.compile(graph, world=world, threads=1)):
        assert "partial(sum)" in message
        assert re.search(".*".join(map(re.escape, wanted)), message), message


def test_all_of_them_were_tried() -> None:
    assert len(ALL_REDUCES) == 7  # six parameters and the loss


# Several ranks, as processes


def fail(mode: str, n: int, folder: Path) -> tuple[str, dict[int, str], float]:
    """What all ranks wrote to stderr, the messages of those that got an Error, and how long after the failure all had ended."""
    done = mpirun(n, HERE / "mpi_failure.py", mode, folder, timeout=60)
    end = time.time()
    assert done.returncode != 0
    reports = {
        rank: json.loads((folder / f"{rank}.json").read_text())
        for rank in range(n)
        if (folder / f"{rank}.json").exists()
    }
    for rank, report in reports.items():
        assert report["seconds"] < LIMIT, f"rank {rank} waited for {report['seconds']} s"
    failed_at = folder / "failed-at"
    seconds = end - float(failed_at.read_text()) if failed_at.exists() else 0.0
    return done.stderr, {rank: report["message"] for rank, report in reports.items()}, seconds


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("kill", "died"),
        ("raise", "gave up: ValueError: no more data"),
        ("exit", "has left"),
        ("label", "gave up: .*label 9 at position \\[1\\]"),
    ],
)
def test_processes_that_lose_a_rank(mode: str, reason: str, tmp_path: Path) -> None:
    stderr, messages, seconds = fail(mode, 3, tmp_path)
    culprit = f"rank 1 on host {re.escape(socket.gethostname())}"
    assert re.search(f"{culprit}.*{reason}", stderr), stderr
    assert {0, 2} <= messages.keys()
    for rank in (0, 2):
        assert re.search(f"{culprit}.*{reason}", messages[rank])
    assert seconds < LIMIT


def test_processes_with_different_learning_rates(tmp_path: Path) -> None:
    _, messages, _ = fail("learning_rate", 2, tmp_path)
    assert messages.keys() == {0, 1}
    for message in messages.values():
        assert re.search(r"on rank 0: .*0\.1.*on rank 1: .*0\.2", message, re.DOTALL)
