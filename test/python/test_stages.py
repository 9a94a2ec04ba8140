"""Pipelines: each rank has one stage of the step, and all together learn what one rank does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from cases import CASES
from example_parts import part
from lockstep.forecast import Link, Machine, forecast
from ranks import mpirun, run_in_threads
from test_errors import raises

HERE = Path(__file__).parent
gpt = part("language/model").gpt
_, MLP, _ = CASES
TWO, BOTH = {"stage": 2}, {"data": 2, "stage": 2}
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
BATCH, LENGTH = 8, 8


def gpt_step(accumulate: int = 2) -> ls.Graph:
    model = ls.load_onnx(gpt(dropout=0.1, layers=2, width=16, heads=4, length=LENGTH), dims={"batch": BATCH})
    return ls.train_step(model, LOSS, ls.optim.AdamW(0.01, epsilon=1e-3), accumulate=accumulate)


def mlp_step(accumulate: int = 4) -> ls.Graph:
    return ls.train_step(
        ls.load_onnx(MLP.model, dims={"batch": BATCH}), LOSS, ls.optim.SGD(0.1, momentum=0.9), accumulate=accumulate
    )


def learn(
    world: ls.Communicator, step: ls.Graph, mesh: dict[str, int] | None, steps: int = 3, path: Path | None = None
) -> tuple[list[float], ls.Executable]:
    """The losses, and the executable; starts from a checkpoint, if there is one."""
    exe = ls.compile(step, world=world, mesh=mesh, threads=1)
    if path is not None:
        exe.load(path)
    share, parts = (world.rank // mesh["stage"], world.size // mesh["stage"]) if mesh else (0, 1)
    random = np.random.Generator(np.random.PCG64(3))
    losses = []
    for _ in range(steps):
        batch = {
            info.name: random.integers(0, 4, info.shape)
            if info.dtype == "i64"
            else random.standard_normal(info.shape).astype(np.float32)
            for info in step.inputs
        }
        losses.append(float(exe(**{name: np.split(value, parts)[share] for name, value in batch.items()})["loss"]))
    exe.check_replicas()
    return losses, exe


@pytest.mark.parametrize("mesh", [TWO, BOTH], ids=["2", "2x2"])
def test_stages_learn_what_one_rank_does(mesh: dict[str, int], tmp_path: Path) -> None:
    step = mlp_step()
    losses, one = learn(ls.Communicator.single(), step, None)

    def body(world: ls.Communicator) -> tuple[list[float], ls.Executable]:
        result = learn(world, step, mesh)
        result[1].save(tmp_path / "stages.safetensors")
        return result

    results = run_in_threads(int(np.prod(list(mesh.values()))), body)
    names: list[str] = []
    for result in results:
        assert not isinstance(result, Exception), result
        np.testing.assert_allclose(result[0], losses, rtol=2e-5)
        names += list(result[1].state)[: None if len(results) == 2 else 0]
        for name, value in result[1].state.items():
            np.testing.assert_allclose(value, one.state[name], rtol=1e-4, atol=1e-6, err_msg=name)
        assert result[1].memory["states"] < one.memory["states"]
    if len(results) == 2:
        assert sorted(names) == sorted(one.state)
    # One rank continues from the stages' file, and the stages from one rank's file.
    one.save(tmp_path / "one.safetensors")
    going_on, _ = learn(ls.Communicator.single(), step, None, path=tmp_path / "one.safetensors")
    from_stages, _ = learn(ls.Communicator.single(), step, None, path=tmp_path / "stages.safetensors")
    np.testing.assert_allclose(from_stages, going_on, rtol=2e-5)
    for result in run_in_threads(
        len(results), lambda world: learn(world, step, mesh, path=tmp_path / "one.safetensors")
    ):
        np.testing.assert_allclose(result[0], going_on, rtol=2e-5)


def test_batches_need_not_be_full() -> None:
    step = ls.train_step(
        ls.load_onnx(MLP.model, dims={"batch": BATCH}), LOSS, ls.optim.SGD(0.1), accumulate=2, uneven=True
    )

    def last_loss(world: ls.Communicator, mesh: dict[str, int] | None) -> float:
        exe = ls.compile(step, world=world, mesh=mesh, threads=1)
        random = np.random.Generator(np.random.PCG64(3))
        for rows in (BATCH, 5):
            x = random.standard_normal((rows, 12)).astype(np.float32)
            loss = float(exe(x=x, label=random.integers(0, 4, rows))["loss"])
        return loss

    expected = last_loss(ls.Communicator.single(), None)
    for result in run_in_threads(2, lambda world: last_loss(world, TWO)):
        assert result == pytest.approx(expected, rel=2e-5)


def test_a_transformer_over_mpi(tmp_path: Path) -> None:
    step = gpt_step()
    losses, one = learn(ls.Communicator.single(), step, None)
    done = mpirun(4, HERE / "mpi_stages.py", tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for rank in ranks:
        assert rank["size"] == 4
        assert rank["losses"] == ranks[0]["losses"]
        np.testing.assert_allclose(rank["losses"], losses, rtol=2e-5)
        assert rank["memory"]["states"] < one.memory["states"]
        assert re.search("waiting .* for rank", rank["report"])
    assert ranks[0]["states"] == ranks[2]["states"] and ranks[1]["states"] == ranks[3]["states"]
    assert sorted(ranks[0]["states"] + ranks[1]["states"]) == sorted(one.state)
    assert ranks[0]["memory"]["states"] + ranks[1]["memory"]["states"] == one.memory["states"]
    expected = dict(one.state)
    one.load(tmp_path / "stages.safetensors")
    for name, value in expected.items():
        np.testing.assert_allclose(one.state[name], value, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("how", "end"), [("kill", r"\(process \d+\) died"), ("stop", ": stopped by a signal")])
def test_a_stage_that_is_gone_is_named(how: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the rank, and the awaited transfer in names of the model, without values that passes made."""
    monkeypatch.setenv("LOCKSTEP_STALL", "1")
    done = mpirun(2, HERE / "mpi_stage_fails.py", tmp_path, how)
    message = (tmp_path / "message").read_text()
    what = r"stage \d to (?:\d|all), (?:state \S+|result loss|(?:gradient of )?onnx:\S+, micro-batch \d of 4)"
    assert re.match(rf"stage 0 of @\w+, transfer\.wait, {what}: rank", message), message
    assert re.search(rf"rank 1 \(stage 1\) on host \S+ ?{end}", message), message
    assert re.search(rf"rank 0 \(stage 0\) on host \S+ waited .*in transfer f32\[\d+\] `{what}`", message), message
    assert not re.search("%|permute|broadcast", message), message
    if how == "stop":  # the notice of the stall, before the error
        assert re.search(rf"rank 0 \(stage 0\) on host \S+ has waited 1s in transfer f32\[\d+\] `{what}`", done.stderr)
        assert re.search(rf"rank 0 .*  call 2 of @\w+, stage 0, step \d+ transfer.wait {what}\n", done.stderr), (
            done.stderr
        )
        assert re.search(r"rank 1 .*  stopped .*  after call 1 of @\w+, stage 1\n", done.stderr), done.stderr


def test_what_stages_cannot_run_is_named() -> None:
    step = mlp_step()

    def messages(expected: str, graph: ls.Graph = step, **options: object) -> None:
        def body(world: ls.Communicator) -> None:
            with raises(expected):
                ls.compile(graph, world=world, mesh=TWO, threads=1, **options)

        for result in run_in_threads(2, body):
            assert result is None, result

    messages("only a training step with an optimizer", ls.load_onnx(MLP.model, dims={"batch": BATCH}))
    messages("shared_weights", shared_weights=True)
    messages("shard_optimizer", shard_optimizer=True)
    messages('wire="int8"', wire="int8")
    with raises("accumulate"):
        mlp_step(accumulate=3)  # 3 does not divide a batch of 8


def test_a_state_of_another_stage_is_named() -> None:
    def body(world: ls.Communicator) -> None:
        _, exe = learn(world, mlp_step(), TWO, steps=1)
        with raises("forecast: @mlp runs in stages; only hosts that share a batch can be forecast"):
            forecast(exe.report(), Machine(between=Link(1e-5, 1e9)), [2])
        other = next(each.name for each in exe._whole_states() if each.name not in exe.state)
        with raises(f"state {other} is not on this rank, {world.rank}"):
            exe.state[other]
        with pytest.raises(KeyError):
            exe.state["nothing"]
        assert other not in exe.state
        assert exe.state.get(other) is None
        assert exe.state.get("nothing", 3) == 3
        own = next(iter(exe.state))
        np.testing.assert_array_equal(exe.state.get(own), exe.state[own])

    for result in run_in_threads(2, body):
        assert result is None, result
