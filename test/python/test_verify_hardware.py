"""compile(verify_hardware=…): a step that is computed again has the same bits, unless a bit changed on one rank. Bits
that change in kernels are in backends/hardware_check_test.cc.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import mpirun, run_in_threads

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import hosts

MLP = HERE.parent / "models/mlp.onnx"
ROWS, STEPS = 12, 4
LOSS = ls.loss.softmax_cross_entropy("logits", "label")


def step_of(**options: Any) -> ls.Graph:
    return ls.train_step(ls.load_onnx(MLP, dims={"batch": ROWS}), LOSS, ls.optim.Adam(0.01), **options)


def batches(world: ls.Communicator, is_shared: bool = True) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    own = slice(ROWS * world.rank // world.size, ROWS * (world.rank + 1) // world.size) if is_shared else slice(None)
    return [
        {"x": random.standard_normal((ROWS, 12)).astype(np.float32)[own], "label": random.integers(0, 5, ROWS)[own]}
        for _ in range(STEPS)
    ]


def digest(exe: ls.Executable) -> dict[str, bytes]:
    return {name: exe.state[name].tobytes() for name in exe.state}


def trained(n: int, options: Mapping[str, Any], verify_hardware: int, **of_step: Any) -> list[Any]:
    step = step_of(**of_step)

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1, verify_hardware=verify_hardware, **options)
        losses = [exe(**batch)["loss"].tobytes() for batch in batches(world, "mesh" not in options)]
        return losses, digest(exe)

    return run_in_threads(n, body)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_the_bits_are_those_without_it(n: int) -> None:
    assert trained(n, {}, 1) == trained(n, {}, 0)


@pytest.mark.parametrize(
    ("options", "of_step"),
    [
        ({"shard_optimizer": True}, {}),
        ({"wire": "int8"}, {}),
        ({"mesh": {"data": 1, "model": 2}, "split": {"fc1.weight": {"model": 0}}}, {}),
        ({"optimize": False, "check_numerics": True}, {}),
        ({}, {"accumulate": 2}),
        ({}, {"uneven": True}),
        ({}, {"precision": "bf16"}),
    ],
    ids=str,
)
def test_the_bits_are_those_without_it_in_other_programs(options: dict[str, Any], of_step: dict[str, Any]) -> None:
    found = trained(2, options, 2, **of_step)
    assert not isinstance(found[0], Exception), found
    assert found == trained(2, options | {"check_numerics": False}, 0, **of_step)


def test_ranks_of_two_axes() -> None:
    options = {"mesh": {"data": 2, "model": 2}, "split": {"fc1.weight": {"model": 0}}}
    step = step_of()

    def body(world: ls.Communicator, every: int) -> Any:
        exe = ls.compile(step, world=world, threads=1, verify_hardware=every, **options)
        half = slice(0, ROWS // 2) if world.rank < 2 else slice(ROWS // 2, ROWS)
        for batch in batches(world, is_shared=False):
            exe(**{name: value[half] for name, value in batch.items()})
        return digest(exe)

    verified = run_in_threads(4, lambda world: body(world, 1))
    assert verified == run_in_threads(4, lambda world: body(world, 0))


def test_dropout_is_drawn_alike() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 5))
    model = ls.from_torch(module, torch.zeros(ROWS, 12), dims={"input:0": ROWS})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy(model.results[0].name), ls.optim.SGD(0.1), seed=3)
    name = model.inputs[0].name

    def body(world: ls.Communicator) -> Any:
        exe = ls.compile(step, world=world, threads=1, verify_hardware=1)
        for batch in batches(world):
            exe(**{name: batch["x"], "label": batch["label"]})

    assert run_in_threads(3, body) == [None] * 3


def with_a_flipped_bit(world: ls.Communicator, rank: int, **options: Any) -> str:
    """The error of a step before which a bit of a state in the memory of a rank has changed."""
    exe = ls.compile(step_of(), world=world, threads=1, check_every=0, **options)
    weight = np.array(exe.state["fc2.weight"])
    exe.bind(states={"fc2.weight": weight})
    own = batches(world)
    exe(**own[0])
    before = digest(exe)
    if world.rank == rank:
        weight.view(np.uint8).flat[13] ^= 4
        before = digest(exe)
    with pytest.raises(ls.Error) as error:
        exe(**own[1])
    assert digest(exe) == before
    return str(error.value)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_bit_that_changed_in_memory(rank: int) -> None:
    errors = run_in_threads(3, lambda world: with_a_flipped_bit(world, rank, verify_hardware=2))
    assert errors[0] == errors[1] == errors[2], errors
    assert "verify_hardware: step 1 has other bits when it is computed again" in errors[0]
    assert f"rank {rank} on host " in errors[0] and "computed other bits, first in " in errors[0]
    assert not any(f"rank {other} on host" in errors[0] for other in range(3) if other != rank)


def test_two_ranks_that_differ_are_both_named() -> None:
    errors = run_in_threads(2, lambda world: with_a_flipped_bit(world, 1, verify_hardware=2))
    assert "either rank " in errors[0] and errors[0] == errors[1]


def test_processes(tmp_path: Path) -> None:
    done = mpirun(3, HERE / "mpi_verify_hardware.py", tmp_path, 1)
    assert done.returncode == 0, done.stderr
    texts = [(tmp_path / f"{rank}.txt").read_text() for rank in range(3)]
    assert texts[0] == texts[1] == texts[2]
    assert "rank 1 on host " in texts[0] and "rank 0 on host" not in texts[0] and "rank 2 on host" not in texts[0]


@pytest.mark.skipif(bool(hosts.why_not()), reason=f"no hosts on this machine: {hosts.why_not()}")
@pytest.mark.parametrize("rank", [0, 3])
def test_the_host_is_named(tmp_path: Path, rank: int) -> None:
    """Two ranks on each of two hosts; either a neighbour or the rank that decides is on the other host."""
    with hosts.Hosts(2) as two:
        command = (sys.executable, HERE / "mpi_verify_hardware.py", tmp_path, rank)
        done = two.mpirun([2, 2], *command, timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        texts = [(tmp_path / f"{each}.txt").read_text() for each in range(4)]
        assert texts == [texts[0]] * 4
        assert f"rank {rank} on host {two.names[rank // 2]} computed other bits" in texts[0]
        assert two.names[1 - rank // 2] not in texts[0]


def at_rates(world: ls.Communicator, options: Mapping[str, Any], scheduled: bool) -> Any:
    """The losses and states of a training whose learning rate changes, by hand or by a schedule."""
    exe = ls.compile(step_of(), world=world, threads=1, **options)
    rates = [0.01, 0.02, 0.5, 0.001]
    if scheduled:
        exe.set(**{"optimizer/learning_rate": lambda step: rates[step]})
    losses = []
    for rate, batch in zip(rates, batches(world), strict=True):
        if not scheduled:
            exe.set(**{"optimizer/learning_rate": rate})
        losses.append(exe(**batch)["loss"].tobytes())
    return losses, digest(exe)


@pytest.mark.parametrize("scheduled", [False, True], ids=["by hand", "schedule"])
def test_a_learning_rate_that_changes(scheduled: bool) -> None:
    found = run_in_threads(2, lambda world: at_rates(world, {"verify_hardware": 1}, scheduled))
    assert not isinstance(found[0], Exception), found
    assert found == run_in_threads(2, lambda world: at_rates(world, {}, scheduled))
    assert found[0] != trained(2, {}, 0)[0]  # at the rate with which it was compiled


def test_frozen_states_in_memory_that_is_not_writable() -> None:
    def body(world: ls.Communicator) -> None:
        exe = ls.compile(step_of(frozen=["fc1.*"]), world=world, threads=1, verify_hardware=1)
        weight = np.array(exe.state["fc1.weight"])
        weight.setflags(write=False)
        exe.bind(states={"fc1.weight": weight})
        for batch in batches(world):
            exe(**batch)

    assert run_in_threads(2, body) == [None, None]


def test_one_rank_whose_memory_changes_during_a_step() -> None:
    """One rank compares with itself, and a state is read before the step: a bit that changed earlier has no effect."""
    exe = ls.compile(step_of(), threads=1, verify_hardware=1)
    world = ls.Communicator.single()
    expected = ls.compile(step_of(), threads=1)
    for batch in batches(world):
        assert exe(**batch)["loss"] == expected(**batch)["loss"]
    assert digest(exe) == digest(expected)


def test_started_calls() -> None:
    def body(world: ls.Communicator, every: int) -> Any:
        exe = ls.compile(step_of(), world=world, threads=1, verify_hardware=every)
        started = [exe.start(**batch) for batch in batches(world)]
        return [each["loss"].tobytes() for each in started], digest(exe)

    verified = run_in_threads(3, lambda world: body(world, 2))
    assert not isinstance(verified[0], Exception), verified
    assert verified == run_in_threads(3, lambda world: body(world, 0))


def test_ranks_must_agree_on_it() -> None:
    def body(world: ls.Communicator) -> None:
        ls.compile(step_of(), world=world, threads=1, verify_hardware=world.rank)

    found = run_in_threads(2, body)
    assert all(isinstance(each, ls.Error) and "verify_hardware=1" in str(each) for each in found), found


def test_options_that_it_excludes() -> None:
    def body(world: ls.Communicator) -> None:
        with pytest.raises(ls.Error, match="verify_hardware=512 does not go with stages"):
            ls.compile(step_of(accumulate=2), world=world, threads=1, mesh={"data": 1, "stage": 2}, verify_hardware=512)

    assert run_in_threads(2, body) == [None, None]
    with pytest.raises(ls.Error, match="verify_hardware=512 does not go with shared_weights"):
        ls.compile(step_of(), threads=1, shared_weights=True, verify_hardware=512)
