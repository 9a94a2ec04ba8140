"""The names of the package, each used as its documentation says."""

from __future__ import annotations

import importlib.util
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import lockstep as ls
from cases import CASES, Case
from ranks import run_in_threads

MODELS = Path(__file__).resolve().parents[1] / "models"
MLP = MODELS / "mlp.onnx"
PARAMETERS = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape).astype(np.float32)


X, LABELS = random(6, 12), np.array([0, 1, 2, 3, 4, 0])


def training(model: ls.Graph | None = None, **options: Any) -> ls.Graph:
    model = model or ls.load_onnx(MLP, dims={"batch": 6})
    return ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1), **options)


# Graphs


def test_a_graph_says_what_it_takes_and_gives() -> None:
    model = ls.load_onnx(str(MLP), dims={"batch": 6})
    (x,) = model.inputs
    assert (x.name, x.dtype, x.shape, x.placements) == ("x", "f32", (6, 12), {"data": "split(0)"})
    assert [(result.name, result.dtype, result.shape) for result in model.results] == [("logits", "f32", (6, 5))]
    assert [state.name for state in model.states] == PARAMETERS
    assert model.states[0] == ls.ValueInfo("fc1.weight", "f32", (16, 12))
    assert model.initial_value("fc1.weight").shape == (16, 12)
    assert np.any(model.initial_value("fc1.weight") != 0)
    assert model.name == "mlp"
    assert "Graph @mlp" in repr(model)
    step = training(model)
    assert [value.name for value in step.inputs] == ["x", "label"]
    assert [value.name for value in step.results] == ["loss"]
    assert [value.name for value in training(model, keep_results=True).results] == ["logits", "loss"]
    only_one = training(model, trained=["fc3.bias"])
    assert [value.name for value in only_one.states] == PARAMETERS
    assert re.findall(r"= sgd (\S+),", str(only_one)) == ["%fc3.bias"]


def test_extents_may_be_numpy_numbers() -> None:
    assert ls.load_onnx(MLP, dims={"batch": np.int64(6)}).inputs[0].shape == (6, 12)


def test_text_round_trip() -> None:
    model = ls.load_onnx(MLP, dims={"batch": 6})
    for graph in (
        model,
        training(model),
        ls.distribute(training(model), {"data": 2}),
        ls.compile(model, threads=1).graph,
    ):
        text = str(graph)
        assert str(ls.parse(text)) == text
        assert len(text.splitlines()) > 5


def test_next_values_are_named_after_their_states() -> None:
    model = ls.load_onnx(MLP, dims={"batch": 6})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam())
    returned = str(step).splitlines()[-2].removeprefix("  return ").split(", ")
    names = ["optimizer/step"] + [f"{name}{part}" for name in PARAMETERS for part in ("", "/adam_m", "/adam_v")]
    assert returned == ["%loss", *(f"%{name}.next" for name in names)]


def test_the_short_form_is_a_line_for_each_node() -> None:
    model = ls.load_onnx(MLP, dims={"batch": 6})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam())
    graph = ls.compile(step, threads=1).graph
    short = graph.short()
    nodes = [line for line in str(graph).splitlines() if re.match(r"  %\S.* = ", line)]
    lines = [line for line in short.splitlines() if re.match(r"  %\S.* = ", line)]
    assert len(lines) == len(nodes) > 10
    assert [line.split(" = ")[0] for line in lines] == [line.split(" = ")[0] for line in nodes]
    assert re.search(r"= fusion .*\{body=graph of \d+ nodes: \w+", short)
    assert '@"' not in short
    assert len(short.splitlines()) < 100
    assert max(map(len, short.splitlines()[: len(graph.states)])) < 100
    ten = "graph @c() -> (y: f32[10]) {\n  %y = constant {value=dense<f32[10]: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9>} : f32[10]\n  return %y\n}\n"
    assert "dense<f32[10]: 0.0, 1.0, 2.0, 3.0, …>" in ls.parse(ten).short()
    shown: list[str] = []

    class Printer:
        text = shown.append

    graph._repr_pretty_(Printer(), cycle=False)
    assert shown == [short]


def test_diff_shows_what_changed_and_no_numbers() -> None:
    text = "graph @g(%x: f32[2]) -> (y: f32[2]) {\n  %0 = exp %x : f32[2]\n  %1 = neg %0 : f32[2]\n  return %1\n}\n"
    renumbered = text.replace("%1", "%7").replace("%0", "%1")
    assert ls.parse(text).diff(ls.parse(text)) == ""
    assert ls.parse(text).diff(ls.parse(renumbered)) == ""
    longer = text.replace("  %1 =", "  %5 = tanh %0 : f32[2]\n  %1 =").replace("neg %0", "neg %5")
    lines = ls.parse(text).diff(ls.parse(longer)).splitlines()
    changed = [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-  %1 = neg %0 : f32[2]", "+  %5 = tanh %0 : f32[2]", "+  %1 = neg %5 : f32[2]"]
    local = training().diff(ls.distribute(training(), {"data": 2}))
    assert re.search(r"^\+mesh \{data=2\}$", local, re.MULTILINE)
    assert len(re.findall(r"^\+.* = all_reduce ", local, re.MULTILINE)) == 7
    with pytest.raises(ls.Error, match="other graph is 5"):
        training().diff(5)


def test_distribute_and_interpret_on_several_ranks() -> None:
    step = training()
    (whole,) = ls.interpret(step, [{"x": X, "label": LABELS}])
    for n in (2, 3, 6):
        placed = ls.distribute(step, {"data": n})
        assert [value.shape for value in placed.inputs] == [(6, 12), (6,)]
        assert "all_reduce" in str(placed)
        shares = [{"x": x, "label": label} for x, label in zip(np.split(X, n), np.split(LABELS, n), strict=True)]
        ranks = ls.interpret(placed, shares)
        assert len(ranks) == n
        for results in ranks:
            assert results.keys() == {"loss", *PARAMETERS}
            for name, value in results.items():
                np.testing.assert_allclose(value, whole[name], rtol=1e-5, atol=1e-6, err_msg=name)
                assert value.tobytes() == ranks[0][name].tobytes()
    assert np.any(whole["fc1.weight"] != step.initial_value("fc1.weight"))


def test_a_state_may_be_given_to_interpret() -> None:
    model = ls.load_onnx(MLP, dims={"batch": 6})
    zeros = {state.name: np.zeros(state.shape, np.float32) for state in model.states}
    (results,) = ls.interpret(model, [{"x": X, **zeros}])
    assert not np.any(results["logits"])


TINY = """
graph @tiny(%x: f64[3], state %w: f64[3], state %v: f64[3]) -> (y: f64[]) {
  %a = mul %x, %w : f64[3]
  %b = tanh %a : f64[3]
  %c = mul %b, %v : f64[3]
  %y = reduce_sum %c {dims=[0]} : f64[]
  return %y
}
""".lstrip()


@pytest.mark.parametrize("wrt", [[], ["x"], ["v", "x", "w"]])
def test_gradients_agree_with_finite_differences(wrt: list[str]) -> None:
    graph = ls.parse(TINY)
    differentiated = ls.gradients(graph, of="y", wrt=wrt)
    wrt = wrt or ["w", "v"]
    assert [result.name for result in differentiated.results] == ["y", *(f"grad/{name}" for name in wrt)]
    values = {name: random(3, seed=seed).astype(np.float64) for seed, name in enumerate("xwv")}
    (found,) = ls.interpret(differentiated, [values])
    for name in wrt:
        expected = np.empty(3)
        for i in range(3):
            ends = []
            for delta in (1e-6, -1e-6):
                moved = {**values, name: values[name] + delta * (np.arange(3) == i)}
                ends.append(ls.interpret(graph, [moved])[0]["y"])
            expected[i] = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(found[f"grad/{name}"], expected, rtol=1e-6)
        assert np.all(expected != 0)


# Executables


@pytest.mark.parametrize("optimize", [True, False])
def test_compiled_results_equal_the_interpreters(optimize: bool) -> None:
    step = training(keep_results=True)
    exe = ls.compile(step, threads=1, optimize=optimize)
    assert (" = fusion " in str(exe.graph)) == optimize
    states: dict[str, np.ndarray] = {}
    for _ in range(3):
        (expected,) = ls.interpret(step, [{"x": X, "label": LABELS, **states}])
        found = exe(x=X, label=LABELS)
        states = {name: expected[name] for name in PARAMETERS}
        assert found.keys() == {"loss", "logits"}
        for name in found:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
        for name in PARAMETERS:
            np.testing.assert_allclose(exe.state[name], expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [1, 2])
def test_an_executable_shows_what_it_runs(n: int) -> None:
    def body(world: ls.Communicator) -> ls.Executable:
        return ls.compile(training(), world=world, threads=1)

    for exe in run_in_threads(n, body):
        assert isinstance(exe.graph, ls.Graph)
        assert ("all_reduce" in str(exe.graph)) == (n == 2)
        assert re.match(rf"executable @mlp backend=cpu ranks={n}", exe.steps)
        assert "matmul" in exe.steps
        assert ("all_reduce.start" in exe.steps) == (n == 2)
        assert len(exe.collectives) == n - 1 or n == 2
        assert exe.threads == 1
        assert "Executable @mlp" in repr(exe)


def test_state_can_be_read_and_assigned() -> None:
    exe = ls.compile(ls.load_onnx(MLP, dims={"batch": 6}), threads=1)
    assert list(exe.state) == PARAMETERS
    assert len(exe.state) == 6
    assert "fc1.bias" in exe.state
    assert "fc9.bias" not in exe.state
    value = exe.state["fc3.bias"]
    with pytest.raises(ValueError, match="read-only"):  # writing to the copy would not change the state
        value[0] = 5
    value = value + 1
    before = exe(x=X)["logits"]
    exe.state["fc3.bias"] = value
    np.testing.assert_array_equal(exe.state["fc3.bias"], value)
    np.testing.assert_allclose(exe(x=X)["logits"], before + 1, rtol=1e-5, atol=1e-5)
    other = ls.compile(ls.load_onnx(MLP, dims={"batch": 6}), threads=1)
    other.state.update(exe.state)
    np.testing.assert_array_equal(other(x=X)["logits"], exe(x=X)["logits"])


def test_states_are_assigned_from_what_has_more() -> None:
    model = ls.load_onnx(MLP, dims={"batch": 6})
    step = training(model, average=ls.average.exponential(0.5))  # its averages are states, too
    exe, other = ls.compile(step, threads=1), ls.compile(model, threads=1)
    exe(x=X, label=LABELS)
    other.state.assign(exe.state)
    for name in PARAMETERS:
        np.testing.assert_array_equal(other.state[name], exe.state[name])
        assert not np.array_equal(model.initial_value(name), other.state[name])
    before = {name: other.state[name] for name in PARAMETERS}
    with pytest.raises(ls.Error, match="assign: there is no value for the state fc1.bias; there are fc1.weight"):
        other.state.assign({"fc1.weight": np.zeros((16, 12), np.float32)})
    np.testing.assert_array_equal(other.state["fc1.weight"], before["fc1.weight"])


def test_worlds() -> None:
    single = ls.Communicator.single()
    assert (single.rank, single.size) == (0, 1)
    single.barrier()
    assert single.gather_bytes(b"me") == [b"me"]
    worlds = ls.Communicator.in_process(3)
    assert [(world.rank, world.size) for world in worlds] == [(0, 3), (1, 3), (2, 3)]
    gathered = run_in_threads(3, lambda world: world.gather_bytes(bytes([world.rank]) * world.rank))
    assert gathered == [[b"", b"\1", b"\2\2"]] * 3
    assert "rank 2 of 3" in repr(worlds[2])


def test_checking_replicas_names_the_state_that_differs() -> None:
    def body(world: ls.Communicator) -> None:
        exe = ls.compile(training(), world=world, threads=1)
        exe.check_replicas()
        if world.rank == 1:
            exe.state["fc2.bias"] = exe.state["fc2.bias"] + 1
        exe.check_replicas()

    for error in run_in_threads(2, body):
        assert isinstance(error, ls.Error)
        assert re.search(r"fc2\.bias.*rank 0.*rank 1", str(error))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_inference_equals_onnx_runtimes(case: Case) -> None:
    images = case.data()[0][:96]
    session = onnxruntime.InferenceSession(case.model)
    (expected,) = session.run(["logits"], {case.input: images})
    for n in (1, 2):

        def infer(world: ls.Communicator) -> np.ndarray:
            exe = ls.compile(ls.load_onnx(case.model, dims={"batch": 96}), world=world, threads=1)
            (share,) = next(iter(ls.data.batches(images, size=96, world=world)))
            return exe(**{case.input: share})["logits"]

        found = np.concatenate(run_in_threads(n, infer))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_executable_says_where_its_time_goes() -> None:
    exe = ls.compile(training(), threads=1)
    assert exe.counters == {"runs": 0, "total": 0, "kernels": 0, "communication": 0}
    assert all(seconds == 0 for _, seconds in exe.profile)
    for _ in range(3):
        exe(x=X, label=LABELS)
    counters, profile = exe.counters, exe.profile
    assert counters["runs"] == 3
    assert 0 < counters["kernels"] <= counters["total"]
    assert [step.split()[0] for step, _ in profile] == re.findall(r"(?m)^ *\[ *\d+\] (\S+)", exe.steps)
    assert sum(seconds for _, seconds in profile) == pytest.approx(counters["kernels"])


# Arrays

WIDE = """
graph @wide(%x: f32[4096,4096]) -> (y: f32[4096]) {
  %y = reduce_max %x {dims=[0]} : f32[4096]
  return %y
}
""".lstrip()
WIDE_BYTES = 4 * 4096 * 4096


@pytest.fixture(scope="module")
def wide() -> ls.Executable:
    return ls.compile(ls.parse(WIDE), threads=1)


def peak_of(call: Any) -> int:
    """The largest growth of the process during a call, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the present size

    def status(field: str) -> int:
        return 1024 * int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def layouts() -> Iterator[tuple[str, Any]]:
    array = random(4096, 4096)
    array.flags.writeable = False
    yield "read-only NumPy", array
    yield "through DLPack alone", DlpackOnly(random(4096, 4096, seed=1))
    if importlib.util.find_spec("torch") is not None:
        import torch

        yield "torch", torch.from_numpy(random(4096, 4096, seed=2))


class DlpackOnly:
    """An array of a library other than NumPy."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_inputs_are_read_where_they_are(wide: ls.Executable) -> None:
    wide(x=random(4096, 4096))
    seen = 0
    for name, array in layouts():
        results = []
        assert peak_of(lambda array=array, results=results: results.append(wide(x=array)["y"])) < WIDE_BYTES / 8, name
        expected = np.max(np.from_dlpack(array) if not isinstance(array, np.ndarray) else array, axis=0)
        np.testing.assert_array_equal(results[0], expected)
        seen += 1
    assert seen >= 2


def test_results_are_given_to_other_libraries_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    exe = ls.compile(ls.load_onnx(MLP, dims={"batch": 6}), threads=1)
    result = exe(x=X)["logits"]
    for taken in (np.from_dlpack(result), torch.from_dlpack(result)):
        result[0, 0] += 1
        assert taken[0, 0] == result[0, 0]


def test_arrays_of_another_order_are_copied(wide: ls.Executable) -> None:
    array = random(4096, 4096)
    results = []
    assert peak_of(lambda: results.append(wide(x=array.T)["y"])) > WIDE_BYTES / 2  # shows that peak_of detects a copy
    np.testing.assert_array_equal(results[0], array.max(axis=1))
    strided = random(4096, 8192)[:, ::2]
    np.testing.assert_array_equal(wide(x=strided)["y"], strided.max(axis=0))


def test_results_stay_valid() -> None:
    exe = ls.compile(ls.load_onnx(MLP, dims={"batch": 6}), threads=1)
    first = exe(x=X)["logits"]
    assert type(first) is np.ndarray
    assert first.dtype == np.float32
    assert first.flags.writeable
    kept = first.copy()
    second = exe(x=2 * X)["logits"]
    np.testing.assert_array_equal(first, kept)
    assert not np.array_equal(first, second)
    del exe
    np.testing.assert_array_equal(first, kept)
    first[:] = 0  # it belongs to the caller


def test_bf16_goes_in_and_comes_back_as_that_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    text = "graph @t(%x: bf16[3], state %w: bf16[3]) -> (y: bf16[3]) {\n  %y = add %x, %w : bf16[3]\n  return %y\n}\n"
    exe = ls.compile(ls.parse(text), threads=1)
    exe.state["w"] = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    for x in (np.array([1.5, 2, 256], ml_dtypes.bfloat16), np.array([1.5, 0, 2, 0, 256, 0], ml_dtypes.bfloat16)[::2]):
        result = exe(x=x)["y"]
        assert result.dtype == exe.state["w"].dtype == ml_dtypes.bfloat16
        assert result.astype(np.float32).tolist() == [2.5, 0, 256]


def test_scalars_and_types_come_back_as_they_are() -> None:
    text = "graph @t(%x: {0}[2]) -> (y: {0}[2]) {{\n  %y = neg %x : {0}[2]\n  return %y\n}}\n"
    for ours, numpy in {
        "f64": np.float64,
        "f32": np.float32,
        "f16": np.float16,
        "i64": np.int64,
        "i8": np.int8,
    }.items():
        exe = ls.compile(ls.parse(text.format(ours)), threads=1)
        result = exe(x=np.array([1, 2], numpy))["y"]
        assert result.dtype == numpy
        np.testing.assert_array_equal(result, [-1, -2])
    loss = ls.compile(training(), threads=1)(x=X, label=LABELS)["loss"]
    assert loss.shape == ()
    assert float(loss) > 0


def test_other_threads_run_meanwhile(wide: ls.Executable) -> None:
    array = random(4096, 4096)
    stop, ticks = threading.Event(), []

    def count() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(1e-4)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    within = 0
    try:
        for _ in range(20):
            begin = time.perf_counter()
            wide(x=array)
            end = time.perf_counter()
            # The first and the last fifth may belong to the conversions, which hold the lock.
            margin = (end - begin) / 5
            within += sum(begin + margin < tick < end - margin for tick in ticks[-1000:])
    finally:
        stop.set()
        thread.join(10)
    assert within >= 10


# The graphs after each pass, as files


def test_a_dump_has_the_graph_after_each_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DUMP", str(tmp_path / "dump"))
    run_in_threads(2, lambda world: ls.compile(training(), world=world, threads=1))
    exe = ls.compile(training(), threads=1)
    folders = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert len(folders) == 3
    assert [folder[-6:] for folder in folders[1:]] == [".rank0", ".rank1"]
    for folder in folders:
        files = sorted((tmp_path / "dump" / folder).glob("*.ir"))
        assert len(files) >= 4
        assert [file.name[:4] for file in files] == [f"{i:03}." for i in range(1, len(files) + 1)]
        assert any("distribute" in file.name for file in files) == (folder != folders[0])
        for file in files:
            ls.parse(file.read_text())
    last = max((tmp_path / "dump" / folders[0]).glob("*.ir"))
    assert str(ls.parse(last.read_text())) == str(exe.graph)
    ls.compile(training(), threads=1)
    assert (tmp_path / "dump" / f"{folders[0]}.2").is_dir()


def test_a_failed_compilation_leaves_a_reproducer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DUMP", str(tmp_path))

    def body(world: ls.Communicator) -> str:
        with pytest.raises(ls.Error) as caught:  # 4 ranks do not divide a batch of 6
            ls.compile(training(), threads=1, world=world)
        return str(caught.value)

    for message in run_in_threads(4, body):
        match = re.search(r"shared evenly by the 4 ranks.* \(reproducer: (.*\.distribute\.ir)\)", message)
        assert match, message
        ls.parse(Path(match[1]).read_text())


def test_a_dump_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCKSTEP_DUMP", str(tmp_path / "file"))
    with pytest.raises(ls.Error, match="LOCKSTEP_DUMP: cannot create a folder in .*file"):
        ls.compile(training(), threads=1)
