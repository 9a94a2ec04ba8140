"""compile(shared_weights=True): ranks of a host have one copy of the weights, and train as if each had its own.

backends/shared_states_test.cc tests that a rank never sees writes of another one too early, however late it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import CASES, MLP_SPLIT, SHARDED_BATCH, Case, run_share, sharded_step
from ranks import errors_of, mpirun, run_in_threads
from test_errors import raises

HERE = Path(__file__).parent
STEPS = 4
LENET, MLP, CONVNET = CASES
OPTIMIZERS = {
    "momentum": ls.optim.SGD(0.05, momentum=0.9),
    "adam": ls.optim.Adam(1e-2),
    "adamw": ls.optim.AdamW(1e-2, weight_decay=0.1),
}


def states(exe: ls.Executable) -> dict[str, np.ndarray]:
    return {name: exe.state[name] for name in exe.state}


def train(
    case: Any, step: ls.Graph, world: ls.Communicator, shares: bool = True, **options: Any
) -> tuple[list[float], dict[str, np.ndarray]]:
    """With `shares`, ranks are expected to update parts of shared weights if shared_weights is on."""
    exe = ls.compile(step, world=world, threads=1, **options)
    expected = shares and "shared_weights" in options and world.size > 1
    assert ("in part of state" in exe.steps) == expected, exe.steps
    if case is DEEP:
        random = np.random.Generator(np.random.PCG64(4))
        for name in exe.state:
            if "/" not in name:
                exe.state[name] = random.uniform(-0.4, 0.4, exe.state[name].shape).astype(np.float32)
    losses = [run_share(exe, case, world, number) for number in range(STEPS)]
    exe.check_replicas()
    return losses, states(exe)


def on_ranks(ranks: int, body: Any) -> list[Any]:
    results = run_in_threads(ranks, body)
    for each in results:
        if isinstance(each, Exception):
            raise each
    return results


def assert_same(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    for name, value in expected[1].items():
        np.testing.assert_array_equal(found[1][name], value, err_msg=name)


def deep_mlp(width: int = 256, layers: int = 4) -> ls.Graph:
    """A model of which four ranks can share all states."""
    of = f"f32[{SHARDED_BATCH},{width}]"
    states = "".join(f", state %w{i}: f32[{width},{width}]" for i in range(layers))
    hidden = "\n".join(f"  %z{i} = matmul %h{i}, %w{i} : {of}\n  %h{i + 1} = tanh %z{i} : {of}" for i in range(layers))
    return ls.parse(f"""
graph @mlp(%h0: {of} split(0){states}, state %b: f32[{width}]) -> (logits: {of}) {{
{hidden}
  %c = broadcast %b {{dims=[1], shape=[{SHARDED_BATCH},{width}]}} : {of}
  %logits = add %h{layers}, %c : {of}
  return %logits
}}
""")


def deep_data(width: int = 24) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.Generator(np.random.PCG64(3))
    return random.standard_normal((SHARDED_BATCH * STEPS, width)).astype(np.float32), random.integers(
        0, width, SHARDED_BATCH * STEPS
    )


DEEP = SimpleNamespace(input="h0", data=deep_data)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_bits_are_those_of_ranks_that_each_have_all(optimizer: Any, ranks: int) -> None:
    step = ls.train_step(deep_mlp(24, 3), ls.loss.softmax_cross_entropy("logits", "label"), optimizer)
    plain = on_ranks(ranks, lambda world: train(DEEP, step, world))
    shared = on_ranks(ranks, lambda world: train(DEEP, step, world, shared_weights=True))
    for found, (losses, expected) in zip(shared, plain, strict=True):
        # Of an optimizer's states, a rank shows only its slices.
        assert_same(found, (losses, {name: value for name, value in expected.items() if "/" not in name}))


@pytest.mark.parametrize("case", [LENET, CONVNET], ids=lambda case: case.name)
def test_other_models(case: Case) -> None:
    step = sharded_step(case, ls.optim.Adam(1e-2))
    sharded = on_ranks(2, lambda world: train(case, step, world, shard_optimizer=True))
    for found, expected in zip(
        on_ranks(2, lambda world: train(case, step, world, shared_weights=True)), sharded, strict=True
    ):
        assert_same(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": ls.optim.SGD(0.05)},
        {"optimizer": ls.optim.Adam(1e-2), "clip": ls.clip.global_norm(0.1)},
        {"optimizer": ls.optim.Adam(1e-2), "clip": ls.clip.value(0.01)},
        {"optimizer": ls.optim.Adam(1e-2), "average": ls.average.exponential(0.9)},
        {"optimizer": ls.optim.Adam(1e-2), "accumulate": 2},
        {"optimizer": ls.optim.Adam(1e-2), "uneven": True},
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
    """The same bits as with gathered slices, because norms are the same sums there."""
    step = sharded_step(MLP, **options)
    sharded = on_ranks(2, lambda world: train(MLP, step, world, shard_optimizer=True))
    is_plain = "momentum=0.0" in str(options["optimizer"])  # it keeps no states that ranks could shard
    shares = not is_plain and "frozen" not in options
    shared = on_ranks(2, lambda world: train(MLP, step, world, shares, shared_weights=True))
    for found, expected in zip(shared, sharded, strict=True):
        assert_same(found, expected)


@pytest.mark.parametrize("options", [{"optimize": False}, {"bucket_bytes": 512}, {"memory_limit": 60_000}], ids=str)
def test_compiled_with(options: dict[str, Any]) -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))
    plain = on_ranks(2, lambda world: train(MLP, step, world, shard_optimizer=True, **options))
    for found, expected in zip(
        on_ranks(2, lambda world: train(MLP, step, world, shared_weights=True, **options)), plain, strict=True
    ):
        assert_same(found, expected)


def test_weights_that_are_split_along_another_axis_are_shared_along_data() -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))

    def body(world: ls.Communicator, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
        mesh = {"data": 2, "model": 2}
        exe = ls.compile(step, world=world, threads=1, mesh=mesh, split=MLP_SPLIT, **options)
        samples, labels = MLP.data()
        losses = []
        for number in range(STEPS):
            begin = number * SHARDED_BATCH + world.rank // 2 * (SHARDED_BATCH // 2)
            rows = slice(begin, begin + SHARDED_BATCH // 2)
            losses.append(float(exe(**{MLP.input: samples[rows], "label": labels[rows]})["loss"]))
        assert options.get("shard_optimizer") or any(
            "part of state fc2.weight" in line for line in exe.steps.splitlines()
        )
        exe.check_replicas()
        return losses, states(exe)

    plain = on_ranks(4, lambda world: body(world, shard_optimizer=True))
    for found, expected in zip(on_ranks(4, lambda world: body(world, shared_weights=True)), plain, strict=True):
        assert_same(found, expected)


def test_four_ranks_hold_weights_and_moments_once() -> None:
    step = ls.train_step(deep_mlp(), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(1e-2))

    def held(**options: Any) -> int:
        def body(world: ls.Communicator) -> dict[str, int]:
            return ls.compile(step, world=world, threads=1, bucket_bytes=1 << 18, **options).memory

        return sum(memory["states"] + memory["buckets"] for memory in on_ranks(4, body))

    n = 4
    assert held(shared_weights=True) <= (3 + n) / (4 * n) * held()


def test_an_evaluation_shares_its_weights_and_waits_for_nobody() -> None:
    model = ls.load_onnx(MLP.model, dims={"batch": SHARDED_BATCH})
    samples, _ = MLP.data()

    def body(world: ls.Communicator, **options: Any) -> tuple[np.ndarray, int]:
        exe = ls.compile(model, world=world, threads=1, **options)
        share = SHARDED_BATCH // world.size
        rows = samples[world.rank * share : (world.rank + 1) * share]
        for _ in range(1 + world.rank):  # each rank calls as often as it likes
            logits = exe(**{MLP.input: rows})["logits"]
        exe.state["fc1.weight"] = 2 * exe.state["fc1.weight"]
        return logits + exe(**{MLP.input: rows})["logits"], exe.memory["states"]

    plain = on_ranks(4, body)
    for (found, shared), (expected, whole) in zip(
        on_ranks(4, lambda world: body(world, shared_weights=True)), plain, strict=True
    ):
        np.testing.assert_array_equal(found, expected)
        assert shared <= whole / 4 + 6


@pytest.mark.parametrize("saved_with", [{}, {"shared_weights": True}], ids=str)
@pytest.mark.parametrize("loaded_with", [{}, {"shared_weights": True}, {"shard_optimizer": True}], ids=str)
def test_checkpoints_know_nothing_of_it(
    saved_with: dict[str, Any], loaded_with: dict[str, Any], tmp_path: Path
) -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))
    path = tmp_path / "checkpoint"

    def saves(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1, **saved_with)
        for number in range(2):
            run_share(exe, MLP, world, number)
        exe.save(path)

    def goes_on(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1, **loaded_with)
        run_share(exe, MLP, world, 0)
        exe.load(path)
        losses = [run_share(exe, MLP, world, number) for number in range(2, STEPS)]
        return losses, {name: value for name, value in states(exe).items() if "/" not in name}

    on_ranks(2, saves)
    plain = on_ranks(2, lambda world: train(MLP, step, world))
    for found, (losses, expected) in zip(on_ranks(2, goes_on), plain, strict=True):
        assert_same(found, (losses[2:], {name: expected[name] for name in found[1]}))


def test_states_are_read_and_assigned_by_all() -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1, shared_weights=True)
        for number in range(20):
            value = np.full_like(exe.state["fc1.weight"], number)
            exe.state["fc1.weight"] = value
            np.testing.assert_array_equal(exe.state["fc1.weight"], value)
            run_share(exe, MLP, world, number % STEPS)
            assert not (exe.state["fc1.weight"] == value).all()

    on_ranks(3, body)


def test_values_that_differ_are_an_error() -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1, shared_weights=True)
        exe.state["fc1.weight"] = np.full_like(exe.state["fc1.weight"], world.rank)

    for message in errors_of(2, body):
        assert "assignment of state fc1.weight, which ranks share" in message
        assert "rank 0" in message
        assert "rank 1" in message


def test_an_assignment_that_is_wrong_on_one_rank_can_be_tried_again() -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))

    def body(world: ls.Communicator) -> np.ndarray:
        exe = ls.compile(step, world=world, threads=1, shared_weights=True)
        if world.rank == 1:
            with raises("state fc1.weight: expected f32[16,12], found f32[3]"):
                exe.state["fc1.weight"] = np.zeros(3, np.float32)
        exe.state["fc1.weight"] = np.zeros_like(exe.state["fc1.weight"])
        return exe.state["fc1.weight"]

    assert not any(value.any() for value in on_ranks(2, body))


def test_where_it_cannot_be() -> None:
    step = sharded_step(MLP, ls.optim.Adam(1e-2))
    with raises('compile: shared_weights=True does not go with backend="cuda": ranks share the host\'s memory'):
        ls.compile(step, backend="cuda", shared_weights=True)
    with raises('compile: shared_weights=True does not go with wire="bf16": ranks get slices of gradients'):
        ls.compile(step, wire="bf16", shared_weights=True)
    hosts = ["a", "a", "b"]
    with raises(
        "compile: shared_weights requires ranks on one host, but rank 0 is on a and rank 2 on b; shard_optimizer="
    ):
        ls._compile.options.check_on_one_host(SimpleNamespace(size=3, host=hosts.__getitem__))


def test_compile_checks_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ls.Communicator, "host", lambda world, rank: f"host {rank}")
    step = sharded_step(MLP, ls.optim.Adam(1e-2))
    for message in errors_of(2, lambda world: ls.compile(step, world=world, shared_weights=True, threads=1)):
        assert "shared_weights requires ranks on one host, but rank 0 is on host 0 and rank 1 on host 1" in message


def assert_nothing_stays(folder: Path) -> None:
    """Asserts that files of /dev/shm that ranks had mapped are gone. Ranks' records stay by intent, and are not memory
    of weights.
    """
    mapped = {path for names in folder.glob("*.shm") for path in names.read_text().split()}
    assert not [path for path in mapped if "/lockstep-" not in path and Path(path).exists()]


def test_processes_hold_one_copy_and_leave_nothing(tmp_path: Path) -> None:
    for mode in ("plain", "shared"):
        done = mpirun(4, HERE / "mpi_shared_weights.py", mode, tmp_path, timeout=240)
        assert done.returncode == 0, done.stderr
    plain, shared = (
        [json.loads((tmp_path / f"{mode}.{rank}.json").read_text()) for rank in range(4)]
        for mode in ("plain", "shared")
    )
    assert [rank["losses"] for rank in plain] == [rank["losses"] for rank in shared]
    assert [rank["hash"] for rank in plain] == [rank["hash"] for rank in shared]

    def total(ranks: list[dict[str, Any]], key: str) -> int:
        return sum(rank[key] for rank in ranks)

    saved = total(plain, "held") - total(shared, "held")
    assert total(plain, "pss") - total(shared, "pss") > 0.9 * saved, "the saving is in resident memory"
    assert_nothing_stays(tmp_path)


@pytest.mark.parametrize("mode", ["kill", "stop", "raise"])
def test_a_rank_that_fails_is_named(mode: str, tmp_path: Path) -> None:
    done = mpirun(3, HERE / "mpi_shared_weights.py", mode, tmp_path, timeout=90)
    assert done.returncode != 0
    for rank in (0, 2):
        message = (tmp_path / f"{mode}.{rank}.txt").read_text()
        assert "rank 1" in message, message
    assert_nothing_stays(tmp_path)
