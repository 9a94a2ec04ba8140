"""compile(shard_optimizer=True): ranks shard the optimizer's states, and train as if each had all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, SHARDED_BATCH, Case, run_share, sharded_step
from ranks import errors_of, run_in_threads
from test_errors import raises

STEPS = 4
LENET, MLP = CASES[0], CASES[1]
OPTIMIZERS = {
    "momentum": ls.optim.SGD(0.05, momentum=0.9),
    "adam": ls.optim.Adam(1e-2),
    "adamw": ls.optim.AdamW(1e-2, weight_decay=0.1),
    "rmsprop": ls.optim.RMSprop(1e-3, momentum=0.9, centered=True),
}


def weights(exe: ls.Executable) -> dict[str, np.ndarray]:
    return {name: exe.state[name] for name in exe.state if "/" not in name}


def train(
    case: Case, step: ls.Graph, world: ls.Communicator, **options: Any
) -> tuple[list[float], dict[str, np.ndarray]]:
    exe = ls.compile(step, world=world, threads=1, **options)
    losses = [run_share(exe, case, world, number) for number in range(STEPS)]
    exe.check_replicas()
    return losses, weights(exe)


def both(case: Case, step: ls.Graph, ranks: int) -> list[tuple[Any, Any]]:
    """For each rank the results of plain ranks, and those of ranks with sharded optimizers."""
    plain = run_in_threads(ranks, lambda world: train(case, step, world))
    sharing = run_in_threads(ranks, lambda world: train(case, step, world, shard_optimizer=True))
    for each in [*plain, *sharing]:
        assert not isinstance(each, Exception), each
    return list(zip(plain, sharing, strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_bits_are_those_of_ranks_that_each_have_all(optimizer: Any, ranks: int) -> None:
    for plain, sharing in both(MLP, sharded_step(MLP, optimizer), ranks):
        assert plain[0] == sharing[0]
        for name, value in plain[1].items():
            np.testing.assert_array_equal(sharing[1][name], value, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": ls.optim.Adam(1e-2), "clip": ls.clip.global_norm(0.1)},
        {"optimizer": ls.optim.Adam(1e-2), "clip": ls.clip.value(0.01)},
        {"optimizer": ls.optim.Adam(1e-2), "average": ls.average.exponential(0.9)},
        {"optimizer": ls.optim.Adam(1e-2), "accumulate": 2},
        {"optimizer": ls.optim.Adam(1e-2), "precision": "bf16"},
        {"optimizer": ls.optim.SGD(0.05, momentum=0.9), "precision": "f16"},
        {"optimizer": ls.optim.Adam(1e-2), "groups": {"fc1.*": ls.optim.SGD(0.05)}, "frozen": ["fc2.*"]},
        {"optimizer": ls.optim.LAMB(1e-2)},
        {"optimizer": ls.optim.LARS(0.1)},
        {"optimizer": ls.optim.Adafactor()},
        {"optimizer": ls.optim.SGD(0.05, momentum=0.9), "groups": {"fc*.weight": ls.optim.Muon(1e-2)}},
    ],
    ids=str,
)
def test_with(options: dict[str, Any]) -> None:
    """Norms, means and products are then assembled from slices, which rounds differently."""
    for plain, sharing in both(LENET, sharded_step(LENET, **options), 2):
        np.testing.assert_allclose(sharing[0], plain[0], rtol=1e-4)
        for name, value in plain[1].items():
            np.testing.assert_allclose(
                sharing[1][name], value, rtol=1e-3, atol=1e-3 * np.abs(value).max(), err_msg=name
            )


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_holds_its_share_and_sends_no_more(ranks: int) -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2), clip=ls.clip.global_norm(1.0))

    def of(world: ls.Communicator, **options: Any) -> tuple[dict[str, int], list[str], int]:
        exe = ls.compile(step, world=world, threads=1, **options)
        kept = sum(exe.state[name].nbytes for name in exe.state if "/adam" in name)
        return exe.memory, exe.collectives, kept

    [(plain, _, all_of_it), *_] = run_in_threads(ranks, of)
    [(sharing, collectives, share), *_] = run_in_threads(ranks, lambda world: of(world, shard_optimizer=True))
    whole = 2 * 4 * 5  # fc3.bias, which cannot be split
    assert share == whole + (all_of_it - whole) // ranks
    assert plain["states"] - sharing["states"] >= all_of_it - share - 64 * 12, "up to alignment"
    kinds = [line.split()[0] for line in collectives]
    assert kinds.count("reduce_scatter") == kinds.count("all_gather") == 2, (
        "one for the bucket, one for fc3.weight's columns"
    )


def test_gradients_are_reduced_to_slices_before_their_norm_is_taken() -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2), clip=ls.clip.global_norm(1.0))
    for collectives in run_in_threads(
        2, lambda world: ls.compile(step, world=world, threads=1, shard_optimizer=True).collectives
    ):
        reduced = [line for line in collectives if line.startswith("all_reduce")]
        assert not any("%grad/fc1.weight" in line for line in reduced), reduced


def test_checkpoints_know_nothing_of_shares(tmp_path: Path) -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))
    path = tmp_path / "checkpoint"

    def saves(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1, shard_optimizer=True)
        for number in range(2):
            run_share(exe, MLP, world, number)
        exe.save(path)

    def goes_on(world: ls.Communicator, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, **options)
        exe.load(path)
        return [run_share(exe, MLP, world, number) for number in range(2, STEPS)], weights(exe)

    assert run_in_threads(2, saves) == [None, None]
    [(losses, of_plain), *_] = run_in_threads(2, lambda world: train(MLP, step, world))
    for options in ({}, {"shard_optimizer": True}):
        for found in run_in_threads(2, lambda world: goes_on(world, **options)):  # noqa: B023
            assert not isinstance(found, Exception), found
            assert found[0] == losses[2:]
            for name, value in of_plain.items():
                np.testing.assert_array_equal(found[1][name], value, err_msg=name)
    for found in run_in_threads(3, lambda world: goes_on(world, shard_optimizer=True)):
        np.testing.assert_allclose(found[0], losses[2:], rtol=1e-5)


def test_with_weights_that_ranks_share_along_another_axis() -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))
    split = {"fc1.weight": {"model": 0}, "fc1.bias": {"model": 0}, "fc2.weight": {"model": 1}}

    def body(world: ls.Communicator, **options: Any) -> tuple[list[float], tuple[int, ...]]:
        exe = ls.compile(step, world=world, threads=1, mesh={"data": 2, "model": 2}, split=split, **options)
        samples, labels = MLP.data()
        losses = []
        for number in range(STEPS):
            begin = number * SHARDED_BATCH + world.rank // 2 * (SHARDED_BATCH // 2)
            rows = slice(begin, begin + SHARDED_BATCH // 2)
            losses.append(float(exe(**{MLP.input: samples[rows], "label": labels[rows]})["loss"]))
        return losses, exe.state["fc1.weight/adam_m"].shape

    plain = run_in_threads(4, body)
    for found, (losses, shape) in zip(
        run_in_threads(4, lambda world: body(world, shard_optimizer=True)), plain, strict=True
    ):
        assert not isinstance(found, Exception), found
        assert found[0] == losses
        assert np.prod(found[1]) == np.prod(shape) // 2


def test_the_wire_is_of_whole_gradients() -> None:
    with raises(
        'compile: shard_optimizer=True does not go with wire="bf16": ranks get slices of gradients, but wire needs'
    ):
        ls.compile(sharded_step(MLP, ls.optim.Adam(1e-2)), wire="bf16", shard_optimizer=True)


@pytest.mark.parametrize("option", ["shard_optimizer", "shared_weights"])
def test_what_is_distributed_already_is_split_there_or_not_at_all(option: str) -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))
    whole = ls.distribute(step, {"data": 2})
    for message in errors_of(2, lambda world: ls.compile(whole, world=world, threads=1, **{option: True})):
        assert option in message and "graph @mlp is distributed already, over {data=2}" in message
    split = ls.distribute(step, {"data": 2}, {f"fc1.weight/adam_{moment}": {"data": 0} for moment in "mv"})

    def shape(world: ls.Communicator) -> tuple[int, ...]:
        return ls.compile(split, world=world, threads=1, **{option: True}).state["fc1.weight/adam_m"].shape

    assert run_in_threads(2, shape) == [(8, 12)] * 2
