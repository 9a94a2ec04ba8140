"""Meshes of two axes: the batch is split along one, weights along the other, and n ranks compute what one would."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, MLP_SPLIT, train
from ranks import errors_of, mpirun, run_in_threads
from test_errors import LABELS, X, mlp, raises, training

HERE = Path(__file__).parent
EXPECTED = json.loads((HERE / "pytorch_losses.json").read_text())["mlp"]
MLP = CASES[1]
MESH = {"data": 2, "model": 2}
STEPS = 30


def digests_of(exe: ls.Executable) -> dict[str, str]:
    return {name: hashlib.sha256(exe.state[name].tobytes()).hexdigest() for name in exe.state}


def assert_replicas_are_equal(digests: list[dict[str, str]]) -> None:
    """For ranks 0 to 3 of MESH: asserts that 0 and 2, and 1 and 3, have the same parts of states that are split along
    "model".
    """
    split = {name for name in digests[0] if name.removesuffix("/adam_m").removesuffix("/adam_v") in MLP_SPLIT}
    assert len(split) == 9  # including Adam's states
    assert len(digests[0]) > len(split)
    for name in digests[0]:
        assert digests[0][name] == digests[2][name], name
        assert digests[1][name] == digests[3][name], name
        assert (digests[0][name] == digests[1][name]) == (name not in split), name


def whole(name: str, of_ranks: list[dict[str, np.ndarray]]) -> np.ndarray:
    """A state of MESH's ranks, assembled."""
    dim = MLP_SPLIT.get(name, {}).get("model")
    return of_ranks[0][name] if dim is None else np.concatenate([of_ranks[0][name], of_ranks[1][name]], axis=dim)


def test_split_weights_learn_what_whole_ones_do() -> None:
    results = run_in_threads(4, lambda world: train(MLP, world, steps=STEPS, mesh=MESH, split=MLP_SPLIT))
    failures = [result for result in results if isinstance(result, Exception)]
    assert not failures, failures
    for losses, exe in results:
        assert losses == results[0][0], "the loss differs between ranks"
        np.testing.assert_allclose(losses, EXPECTED[:STEPS], rtol=1e-4)
        assert exe.state["fc1.weight"].shape == (8, 12)
        assert exe.state["fc1.weight/adam_m"].shape == (8, 12)
        assert exe.state["fc2.weight"].shape == (8, 8)
        assert any("along model" in line for line in exe.collectives)
        assert any("along data" in line for line in exe.collectives)
    assert_replicas_are_equal([digests_of(exe) for _, exe in results])
    _, of_one = train(MLP, ls.Communicator.single(), steps=STEPS)
    states = [{name: exe.state[name] for name in exe.state} for _, exe in results]
    for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight"):
        np.testing.assert_allclose(whole(name, states), of_one.state[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_split_weights_over_mpi(tmp_path: Path) -> None:
    done = mpirun(4, HERE / "mpi_mesh.py", tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    in_process = run_in_threads(4, lambda world: train(MLP, world, steps=STEPS, mesh=MESH, split=MLP_SPLIT))
    for rank, (losses, exe) in zip(ranks, in_process, strict=True):
        assert rank["size"] == 4
        assert rank["losses"] == losses, "bitwise"
        assert rank["digests"] == digests_of(exe)
    assert_replicas_are_equal([rank["digests"] for rank in ranks])


def test_the_model_axis_alone() -> None:
    """No axis splits the batch, but the ranks split weights, so this is not an error."""

    def body(world: ls.Communicator) -> tuple[float, ls.Executable]:
        model = ls.load_onnx(MLP.model, dims={"batch": 6}, split={})
        step = ls.train_step(model, loss=ls.loss.softmax_cross_entropy("logits", "label"), optimizer=MLP.optimizer)
        mesh = {"model": world.size}
        exe = ls.compile(step, world=world, mesh=mesh, split=MLP_SPLIT if world.size > 1 else {}, threads=1)
        exe(x=X, label=LABELS)
        return exe(x=X, label=LABELS)["loss"], exe

    [(expected, _)] = run_in_threads(1, body)
    results = run_in_threads(2, body)
    for loss, exe in results:
        assert loss == results[0][0]
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        assert exe.state["fc1.weight"].shape == (8, 12)
        assert exe.collectives
        assert all("along model" in line for line in exe.collectives)


def test_split_weights_are_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "trained.onnx"

    def body(world: ls.Communicator) -> str:
        exe = ls.compile(training(), world=world, mesh=MESH, split={"fc1.weight": {"model": 0}}, threads=1)
        try:
            ls.save_onnx(exe, path)
        except ls.Error as error:
            return str(error)
        return ""

    expected = "save_onnx: ranks have only parts of states, such as fc1.weight; exe.save(path) writes whole states"
    assert run_in_threads(4, body) == 4 * [expected]
    assert not path.exists()


def test_states_of_split_weights() -> None:
    value = np.arange(16 * 12, dtype=np.float32).reshape(16, 12)

    def body(world: ls.Communicator) -> np.ndarray:
        exe = ls.compile(training(), world=world, mesh=MESH, split={"fc1.weight": {"model": 0}}, threads=1)
        first = exe.state["fc1.weight"]
        half = world.rank % 2 * 8
        np.testing.assert_array_equal(first, training().initial_value("fc1.weight")[half : half + 8])
        exe.state["fc1.weight"] = value
        exe.check_replicas()
        with raises("fc1.weight", "f32[8,12], this rank's share of f32[16,12]"):
            exe.state["fc1.weight"] = value[:5]
        return exe.state["fc1.weight"]

    for rank, part in enumerate(run_in_threads(4, body)):
        np.testing.assert_array_equal(part, value[:8] if rank % 2 == 0 else value[8:])


def test_what_distribute_says_is_what_compile_runs() -> None:
    text = str(ls.distribute(training(), MESH, {"fc1.weight": {"model": 0}}))
    assert "state %fc1.weight: f32[16,12] split(0, model)" in text
    assert "{axis=model" in text


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        (
            {"fc9.weight": {"model": 0}},
            ["graph @mlp has no input or state 'fc9.weight', and none", "; there are x, fc1.weight"],
        ),
        (
            {"fc1.weight": {"rows": 0}},
            ["fc1.weight (f32[16,12]) along axis rows", "{data=2, model=2} has no such axis"],
        ),
        ({"fc1.weight": {"model": 2}}, ["fc1.weight", "along axis model: there is no dimension 2"]),
        ({"fc1.weight": {"model": -1}}, ["fc1.weight", "along axis model: there is no dimension -1"]),
        ({"fc3.weight": {"model": 0}}, ["fc3.weight (f32[5,8]) along axis model", "cannot share dimension 0 evenly"]),
        ({"x": {"model": 0}}, ["x (f32[6,12]) along axis model", "cannot share dimension 0 evenly"]),
    ],
)
def test_bad_splits(split: dict[str, dict[str, int]], parts: list[str]) -> None:
    with raises("placement: ", *parts):
        ls.distribute(mlp(), MESH, split)
    messages = errors_of(4, lambda world: ls.compile(mlp(), world=world, mesh=MESH, split=split))
    assert len(messages) == 4
    for message in messages:
        for part in parts:
            assert part in message


def test_a_distributed_graph_is_not_split_again() -> None:
    with raises("placement: graph @mlp is distributed already, over {data=2}"):
        ls.distribute(ls.distribute(mlp(), {"data": 2}), {"data": 2}, {"fc1.weight": {"data": 0}})


def test_batches_of_a_mesh() -> None:
    def body(world: ls.Communicator, mesh: dict[str, int]) -> list[list[int]]:
        rows = np.arange(12)
        return [list(batch) for (batch,) in ls.data.batches(rows, size=6, world=world, mesh=mesh)]

    halves = [[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]
    assert run_in_threads(4, lambda world: body(world, MESH)) == [halves[0], halves[0], halves[1], halves[1]]
    turned = {"model": 2, "data": 2}
    assert run_in_threads(4, lambda world: body(world, turned)) == [halves[0], halves[1], halves[0], halves[1]]
    everything = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert run_in_threads(2, lambda world: body(world, {"model": 2})) == [everything] * 2
    with raises("batches: the mesh", "has 4 ranks, but the world has 1"):
        ls.data.batches(X, LABELS, size=2, mesh=MESH)
    with raises("batches: the mesh", "has 0 ranks, but the world has 1"):
        ls.data.batches(X, LABELS, size=2, mesh={"data": 0})


@pytest.mark.parametrize(("mesh", "axis"), [({"data": 1, "model": 4}, "model"), ({"data": 2, "model": 2}, "model")])
def test_an_axis_along_which_nothing_is_split(mesh: dict[str, int], axis: str) -> None:
    for message in errors_of(4, lambda world: ls.compile(training(), world=world, mesh=mesh)):
        assert f"ranks along axis {axis}, and none of its inputs is split over them" in message
