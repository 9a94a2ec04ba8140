"""Ranks that diverge under mpirun: each gets an Error that names two of them and the cause. In process:
backends/replicas_test.cc.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import lockstep as ls
from ranks import errors_of, mpirun, run_in_threads

HERE = Path(__file__).parent


def messages_of(n: int, mode: str, folder: Path) -> list[str]:
    done = mpirun(n, HERE / "mpi_replicas.py", mode, folder, timeout=60)
    written = [folder / f"{rank}.txt" for rank in range(n)]
    assert all(path.exists() for path in written), done.stderr
    return [path.read_text() for path in written]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    ("mode", "cause"),
    [
        ("program", "they run different programs"),
        ("assignments", "different states were assigned on them (rank 0: none; rank {last}: w)"),
        ("inputs", "inputs that are replicated"),
        ("states", "replicas of the states differ"),
    ],
)
def test_ranks_that_part(mode: str, cause: str, n: int, tmp_path: Path) -> None:
    for message in messages_of(n, mode, tmp_path):
        assert cause.format(last=n - 1) in message, message
        assert f"rank {n - 1}" in message, message


def test_ranks_that_do_not_part(tmp_path: Path) -> None:
    assert messages_of(2, "nothing", tmp_path) == ["none", "none"]


def test_ranks_on_different_processors(tmp_path: Path) -> None:
    for message in messages_of(2, "isa", tmp_path):
        assert re.search(r"on rank 0: oneDNN .*sse41.*on rank 1: oneDNN .*isa=\"avx2\"", message, re.DOTALL), message


def test_the_way_out_of_different_processors(tmp_path: Path) -> None:
    assert messages_of(2, "isa given", tmp_path) == ["none", "none"]


def test_ranks_with_different_numbers_of_threads() -> None:
    graph = ls.parse(GRAPH.replace("[4", "[8"))
    for message in errors_of(2, lambda world: ls.compile(graph, world=world, threads=1 + world.rank)):
        assert re.search(r"threads of a rank.*on rank 0: 1\n.*on rank 1: 2\n.*threads=1", message, re.DOTALL), message


def test_ranks_with_different_checks() -> None:
    graph = ls.parse(GRAPH.replace("[4", "[8"))
    for message in errors_of(2, lambda world: ls.compile(graph, world=world, threads=1, check_every=1 + world.rank)):
        assert "on rank 0: check_every=1 " in message and "on rank 1: check_every=2 " in message, message
    for message in errors_of(2, lambda world: ls.compile(graph, world=world, threads=1, profile=world.rank == 1)):
        assert "on rank 0: " in message and "profile=True" in message.split("on rank 1: ")[1], message


def test_threads_are_equal_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of 12 cores, one with two ranks and one with one rank."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(12))
    hosts = ["a", "a", "b"]
    for here in (2, 1):
        world = SimpleNamespace(size=3, host=hosts.__getitem__, ranks_on_this_host=here)
        assert ls._compile.options.default_threads(world) == 6


# The labels are floats: wrong integers would be refused before anything is updated.
GRAPH = """
graph @step(%x: f32[4,3] split(0), %y: f32[4] split(0), state %n: f32[3,3], state %w: f32[3,5]) -> (loss: f32[], %n: f32[3,3], %w: f32[3,5]) {
  %n1 = neg %n : f32[3,3]
  %x1 = matmul %x, %n1 : f32[4,3]
  %z = matmul %x1, %w : f32[4,5]
  %label = convert %y {dtype=i64} : i64[4]
  %loss, %dz = softmax_cross_entropy %z, %label {scale=0.25} : f32[], f32[4,5]
  %dw = matmul %x, %dz {transpose_a=true} : f32[3,5]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[3,5]
  return %loss, %n1, %w1
}
"""
X = np.ones((4, 3), np.float32)
GOOD, BAD = np.array([0, 1, 2, 3], np.float32), np.array([0, 9, 2, 3], np.float32)
HALF = """<ir_version: 10, opset_import: ["": 18]>
half (float[4, 3] x, float[4] row) => (float[4, 3] logits) <
  float[3] scale = {1, 1, 1}, float[3] bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1}
> {
  n = BatchNormalization(x, scale, bias, mean, var)
  index = Cast <to = 7> (row)
  rows = Gather(n, index)
  logits = Add(n, rows)
}"""


def test_a_call_that_fails_between_two_updates_spoils_the_executable(tmp_path: Path) -> None:
    exe = ls.compile(ls.parse(GRAPH), threads=1)
    exe.state["n"] = np.ones((3, 3), np.float32)
    exe(x=X, y=GOOD)
    with pytest.raises(ls.Error, match=r"label 9 at position \[1\]"):
        exe(x=X, y=BAD)
    with pytest.raises(
        ls.Error, match=r"call 2 failed when it was updating the states.*label 9.*assign the states n, w"
    ):
        exe(x=X, y=GOOD)
    exe.state["n"] = np.ones((3, 3), np.float32)
    with pytest.raises(ls.Error, match="assign the states w"):
        exe(x=X, y=GOOD)
    exe.state["w"] = np.zeros((3, 5), np.float32)
    exe(x=X, y=GOOD)
    np.testing.assert_array_equal(exe.state["n"], np.full((3, 3), -1, np.float32))


def test_both_of_two_ranks_are_spoilt() -> None:
    through = threading.Barrier(2)

    def body(world: ls.Communicator) -> list[str]:
        exe = ls.compile(ls.parse(GRAPH.replace("[4", "[8")), world=world, threads=1)
        messages = []
        for y in (GOOD, BAD if world.rank == 1 else GOOD, GOOD):
            if not messages:
                through.wait(60)  # else the failure may reach the peer in its first call
            try:
                exe(x=X, y=y)
            except ls.Error as error:
                messages.append(str(error))
        return messages

    for messages in run_in_threads(2, body):
        assert len(messages) == 2, messages
        assert "label 9" in messages[0]
        assert re.search("call 2 failed when it was updating the states.*label 9", messages[1]), messages[1]


def test_what_is_half_updated_is_not_saved(tmp_path: Path) -> None:
    model = ls.load_onnx(onnx.parser.parse_model(HALF))
    step = ls.train_step(model, ls.loss.mean_squared_error("logits"), ls.optim.SGD(0.1))
    exe = ls.compile(step, threads=1)
    inputs = {info.name: np.zeros(info.shape, np.int64 if info.dtype == "i64" else np.float32) for info in step.inputs}
    exe(**inputs)
    inputs["row"][1] = 1000
    with pytest.raises(ls.Error, match="index 1000"):
        exe(**inputs)
    with pytest.raises(ls.Error, match="save_onnx: .*call 2 failed.*assign the states "):
        ls.save_onnx(exe, tmp_path / "half.onnx")
    assert not (tmp_path / "half.onnx").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check_every": -1}, "compile: check_every is -1, expected at least 0"),
        ({"isa": "mmx"}, "isa is .mmx., expected sse41, avx2 or avx512"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ls.Error, match=message):
        ls.compile(ls.parse(GRAPH), threads=1, **options)


def test_an_instruction_set_that_comes_too_late() -> None:
    ls.compile(ls.parse(GRAPH), threads=1)
    with pytest.raises(ls.Error, match="isa is sse41, but oneDNN uses .* set isa in the first one"):
        ls.compile(ls.parse(GRAPH), threads=1, isa="sse41")
