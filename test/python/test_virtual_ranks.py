"""compile(virtual_ranks=8): 1, 2, 4 and 8 ranks compute the same bits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, ROOT
from ranks import errors_of, run_in_threads
from test_errors import raises

BATCH = 32
CROSS_ENTROPY = ls.loss.softmax_cross_entropy("logits", "label")
LENET, MLP, CONVNET = CASES
Bits = dict[str, bytes]
Batch = dict[str, np.ndarray]


@functools.cache
def gpt() -> bytes:
    sys.path.append(str(ROOT / "examples/language"))
    import model

    return bytes(model.gpt(layers=2, width=16, heads=2, length=8, dropout=0.1).SerializeToString())


def batch_of(name: str, number: int, size: int = BATCH) -> Batch:
    if name == "gpt":
        random = np.random.Generator(np.random.PCG64(number))
        return {each: random.integers(0, 256, (size, 8)) for each in ("tokens", "label")}
    case = next(case for case in CASES if case.name == name)
    rows = slice(number * size, (number + 1) * size)
    return {case.input: case.data()[0][rows], "label": case.data()[1][rows]}


def step_of(name: str, optimizer: Any = None, size: int = BATCH, **options: Any) -> ls.Graph:
    source = gpt() if name == "gpt" else next(case for case in CASES if case.name == name).model
    model = ls.load_onnx(source, dims={"batch": size})
    return ls.train_step(model, CROSS_ENTROPY, optimizer or ls.optim.SGD(0.05, momentum=0.9), **options)


def share_of(batch: Batch, world: ls.Communicator) -> Batch:
    rows = len(batch["label"]) // world.size
    return {name: array[world.rank * rows : (world.rank + 1) * rows] for name, array in batch.items()}


def bits_of(exe: ls.Executable, losses: list[bytes]) -> Bits:
    return {name: exe.state[name].tobytes() for name in exe.state} | {"losses": b"".join(losses)}


def train(name: str, step: ls.Graph, n: int, steps: int = 4, first: int = 0, **options: Any) -> Bits:
    """The bits of all states and losses of a training on n ranks, which are equal on all ranks."""
    options = {"virtual_ranks": 8, "threads": 1} | options
    load, save = options.pop("load", None), options.pop("save", None)

    def body(world: ls.Communicator) -> Bits:
        exe = ls.compile(step, world=world, **options)
        if load:
            exe.load(load)
        losses = [
            exe(**share_of(batch_of(name, number), world))["loss"].tobytes() for number in range(first, first + steps)
        ]
        exe.check_replicas()
        if save:
            exe.save(save)
        return bits_of(exe, losses)

    results = run_in_threads(n, body)
    for result in results:
        assert not isinstance(result, Exception), result
        assert result == results[0]
    return results[0]


def differing(one: Bits, other: Bits) -> list[str]:
    return [name for name in one if one[name] != other[name]]


def assert_same_bits(name: str, step: ls.Graph, ranks: tuple[int, ...] = (2, 4, 8), **options: Any) -> Bits:
    expected = train(name, step, 1, **options)
    for n in ranks:
        found = train(name, step, n, **options)
        assert found.keys() == expected.keys()
        assert differing(expected, found) == [], n
    return expected


@pytest.mark.parametrize("name", ["lenet", "mlp", "convnet_bn", "gpt"])
def test_every_number_of_ranks_has_the_same_bits(name: str) -> None:
    assert_same_bits(name, step_of(name), steps=50)


def test_other_sums_have_other_bits() -> None:
    step = step_of("lenet")
    bits = train("lenet", step, 2, steps=2)
    for other in ({"virtual_ranks": None}, {"virtual_ranks": 4}):
        assert "fc1.weight" in differing(bits, train("lenet", step, 2, steps=2, **other))


def global_norm_step(name: str, **options: Any) -> ls.Graph:
    return step_of(name, ls.optim.AdamW(1e-3), clip=ls.clip.global_norm(0.1), **options)


STEPS: dict[str, Callable[[], tuple[str, ls.Graph]]] = {
    "accumulate": lambda: ("gpt", global_norm_step("gpt", accumulate=2)),
    "statistics of a rank": lambda: ("convnet_bn", step_of("convnet_bn", batch_statistics="rank")),
    "clipped adamw": lambda: ("convnet_bn", global_norm_step("convnet_bn")),
    "bf16": lambda: ("gpt", global_norm_step("gpt", precision="bf16")),
    "bf16 convolutions": lambda: ("lenet", step_of("lenet", precision="bf16")),
    "f16": lambda: ("mlp", step_of("mlp", precision="f16")),
    "lamb": lambda: ("mlp", step_of("mlp", ls.optim.LAMB(1e-2))),
    "uneven": lambda: ("mlp", step_of("mlp", uneven=True)),
}


@pytest.mark.parametrize("make", STEPS.values(), ids=STEPS)
def test_steps_with_more_in_them_have_the_same_bits(make: Callable[[], tuple[str, ls.Graph]]) -> None:
    name, step = make()
    assert_same_bits(name, step)


@pytest.mark.parametrize("options", [{"optimize": False}, {"bucket_bytes": 1000}, {"virtual_ranks": 16}], ids=str)
def test_options_keep_that(options: dict[str, Any]) -> None:
    assert_same_bits("lenet", step_of("lenet"), **options)


SHARED = [{"shard_optimizer": True}, {"split": {"fc1.weight": {"data": 0}}}]


@pytest.mark.parametrize("options", SHARED, ids=str)
def test_states_of_which_ranks_have_slices(options: dict[str, Any], tmp_path: Path) -> None:
    """A checkpoint has all slices: another executable, of one rank, reads them."""
    step, results = global_norm_step("mlp"), []
    for n in (1, 2, 4, 8):

        def body(world: ls.Communicator) -> tuple[int, list[bytes]]:
            exe = ls.compile(step, world=world, threads=1, virtual_ranks=8, **options)
            losses = [exe(**share_of(batch_of("mlp", number), world))["loss"].tobytes() for number in range(4)]
            exe.save(tmp_path / str(world.size))
            return sum(exe.state[name].nbytes for name in exe.state), losses

        (num_bytes, losses), *_ = run_in_threads(n, body)
        whole = ls.compile(step, threads=1)
        whole.load(tmp_path / str(n))
        results.append(bits_of(whole, losses))
        assert (num_bytes < sum(whole.state[name].nbytes for name in whole.state)) == (n > 1)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("options", [{"threads": 2}, {"memory_limit": 600_000}], ids=str)
def test_a_rank_with_threads_or_little_memory(options: dict[str, Any]) -> None:
    assert_same_bits("gpt", step_of("gpt"), ranks=(2, 4), steps=2, **options)


def test_a_checkpoint_continues_on_another_number_of_ranks(tmp_path: Path) -> None:
    step = global_norm_step("gpt")
    expected = train("gpt", step, 1, steps=5)
    path = tmp_path / "checkpoint"
    train("gpt", step, 4, steps=3, save=path)
    for n in (1, 2, 8):
        found = train("gpt", step, n, steps=2, first=3, load=path)
        assert expected["losses"].endswith(found["losses"])
        assert differing(found | {"losses": expected["losses"]}, expected) == []


def test_results_that_are_split_are_those_rows() -> None:
    model = ls.load_onnx(LENET.model, dims={"batch": BATCH})
    batch, rows = batch_of("lenet", 0), []
    for n in (1, 2, 8):

        def body(world: ls.Communicator) -> np.ndarray:
            exe = ls.compile(model, world=world, threads=1, virtual_ranks=8)
            return exe(image=share_of(batch, world)["image"])["logits"]

        rows.append(np.concatenate(run_in_threads(n, body)).tobytes())
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize("name", ["mlp", "convnet_bn"])
def test_the_program_is_that_of_one_rank_in_exact_arithmetic(name: str) -> None:
    step = step_of(name, size=8, clip=ls.clip.global_norm(1.0))
    for n in (1, 2, 4):

        def body(world: ls.Communicator) -> str:
            return str(ls.compile(step, world=world, virtual_ranks=4, threads=1, verify=True).graph)

        found = run_in_threads(n, body)
        assert all(isinstance(text, str) and text == found[0] for text in found), found


def test_metrics_of_batches_that_are_padded() -> None:
    """The last batch has 21 of 32 rows, so the last rank has none of them."""
    rows, metrics = 3 * BATCH + 21, {"accuracy": ls.metrics.Accuracy(), "top3": ls.metrics.Accuracy(k=3)}
    program = ls.evaluation(ls.load_onnx(MLP.model, dims={"batch": BATCH}), CROSS_ENTROPY, metrics)
    x, label = (array[:rows] for array in MLP.data())

    def body(world: ls.Communicator, **options: Any) -> dict[str, float]:
        exe = ls.compile(program, world=world, threads=1, **options)
        return exe.evaluate(ls.data.batches(x, label, size=BATCH, world=world, last="pad"))

    plain = run_in_threads(1, body)[0]
    expected = run_in_threads(1, lambda world: body(world, virtual_ranks=8))[0]
    assert expected == pytest.approx(plain, rel=1e-5) and expected["rows"] == rows and 0 < expected["accuracy"] < 1
    for n in (2, 4, 8):
        assert run_in_threads(n, lambda world: body(world, virtual_ranks=8)) == [expected] * n


def test_mistakes() -> None:
    def compiled(world: ls.Communicator, **options: Any) -> None:
        ls.compile(step_of("mlp", size=24), world=world, **options)

    for message in errors_of(3, lambda world: compiled(world, virtual_ranks=8)):
        assert "virtual_ranks=8: 3 ranks cannot run so many evenly, since 3 does not divide 8" in message
    for message in errors_of(2, lambda world: compiled(world, virtual_ranks=16)):
        assert "cannot be shared evenly by the 16 ranks of axis data: 24 is not a multiple of 16" in message
    for message in errors_of(2, lambda world: compiled(world, virtual_ranks=8, wire="bf16")):
        assert 'virtual_ranks=8 does not go with wire="bf16"' in message
    options = [{"virtual_ranks": 8}, {"virtual_ranks": 4}]
    for message in errors_of(2, lambda world: compiled(world, **options[world.rank])):
        assert "virtual_ranks" in message
    with raises("compile: virtual_ranks=6 is not a power of two"):
        compiled(ls.Communicator.single(), virtual_ranks=6)
