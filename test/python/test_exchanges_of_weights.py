"""Exchanges of weights: ranks train alone and agree from time to time. The oracle is NumPy, with the formulas of papers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from lockstep._exchange.ranks import RanksWithWeights
from lockstep.graph import Value
from ranks import run_in_threads

ROWS, STEPS, RATE = 16, 11, 0.1
_random = np.random.default_rng(7)
INPUTS = _random.normal(size=(STEPS, ROWS, 6)).astype(np.float32)
LABELS = _random.integers(0, 3, (STEPS, ROWS))

Weights = dict[str, np.ndarray]


def model() -> ls.Graph:
    g = ls.graph.Builder("mlp", seed=3)
    x = g.input("x", "f32", (ROWS, 6), split=0)
    hidden = ls.graph.tanh(x @ g.state("w1", (6, 5), init=ls.graph.init.normal()))
    g.result("logits", hidden @ g.state("w2", (5, 3), init=ls.graph.init.normal()) + g.state("b", (3,)))
    return g.finish()


def step_of(exchange: Any, optimizer: Any = None, **options: Any) -> ls.Graph:
    loss = ls.loss.softmax_cross_entropy("logits", "y")
    return ls.train_step(model(), loss, optimizer or ls.optim.SGD(RATE), exchange=exchange, **options)


def batch(step: int, world: ls.Communicator) -> dict[str, np.ndarray]:
    own = slice(world.rank * ROWS // world.size, (world.rank + 1) * ROWS // world.size)
    return {"x": INPUTS[step][own], "y": LABELS[step][own]}


def trained(step: ls.Graph, ranks: int, steps: int = STEPS, **options: Any) -> list[dict[str, np.ndarray]]:
    """The states of each rank after some steps."""

    def run(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1, **options)
        for each in range(steps):
            exe(**batch(each, world))
        return {name: exe.state[name].copy() for name in exe.state}

    results = run_in_threads(ranks, run)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def gradients(w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    """Of the mean of the cross-entropy over these rows, in f64."""
    hidden = np.tanh(x @ w["w1"])
    logits = hidden @ w["w2"] + w["b"]
    d = np.exp(logits - logits.max(1, keepdims=True))
    d /= d.sum(1, keepdims=True)
    d[np.arange(len(y)), y] -= 1
    d /= len(y)
    return {"w1": x.T @ (d @ w["w2"].T * (1 - hidden**2)), "w2": hidden.T @ d, "b": d.sum(0)}


def simulated(
    ranks: int, bring_together: Callable[[int, list[Weights], Weights], Weights]
) -> tuple[list[Weights], Weights]:
    """Trains `ranks` models by SGD, each on its part of the batches. After each step `bring_together(step, own, agreed)`
    changes the weights `own` and returns those on which all agree."""
    start = {each.name: model().initial_value(each.name).astype(np.float64) for each in model().states}
    own, agreed = [dict(start) for _ in range(ranks)], dict(start)
    for step in range(STEPS):
        for rank in range(ranks):
            part = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
            slopes = gradients(own[rank], INPUTS[step][part].astype(np.float64), LABELS[step][part])
            own[rank] = {name: own[rank][name] - RATE * slopes[name] for name in start}
        agreed = bring_together(step, own, agreed)
    return own, agreed


def check(found: list[dict[str, np.ndarray]], own: list[Weights], agreed: Weights) -> None:
    for rank, states in enumerate(found):
        for name, value in agreed.items():
            np.testing.assert_allclose(states[name], value, atol=3e-6, err_msg=f"{name}, on which ranks agree")
            mine = states[name] + states[f"{name}/own"][0]
            np.testing.assert_allclose(mine, own[rank][name], atol=3e-6, err_msg=f"{name} of rank {rank}")


def mean_of(own: list[Weights], name: str) -> np.ndarray:
    return sum(each[name] for each in own) / len(own)  # type: ignore[return-value]


@pytest.mark.parametrize("ranks", [2, 4])
def test_local_sgd(ranks: int) -> None:
    def average(step: int, own: list[Weights], agreed: Weights) -> Weights:
        if (step + 1) % 4:
            return agreed
        mean = {name: mean_of(own, name) for name in agreed}
        for each in own:
            each.update(mean)
        return mean

    check(trained(step_of(ls.exchange.local_sgd(every=4)), ranks), *simulated(ranks, average))


@pytest.mark.parametrize("fragments", [1, 2])
def test_diloco(fragments: int) -> None:
    order = ["w1", "w2", "b"]  # of the states
    velocity = {name: np.zeros(1) for name in order}

    def outer_step(step: int, own: list[Weights], agreed: Weights) -> Weights:
        agreed = dict(agreed)
        for number, name in enumerate(order):
            if (step + 1) % 4 != (number % fragments) * 4 // fragments:
                continue
            gradient = agreed[name] - mean_of(own, name)
            velocity[name] = 0.9 * velocity[name] + gradient
            agreed[name] = agreed[name] - 0.7 * (gradient + 0.9 * velocity[name])  # as torch.optim.SGD(nesterov=True)
            for each in own:
                each[name] = agreed[name]
        return agreed

    found = trained(step_of(ls.exchange.diloco(every=4, fragments=fragments)), 2)
    check(found, *simulated(2, outer_step))
    for name in order:
        np.testing.assert_allclose(found[0][f"{name}/diloco/velocity"], velocity[name], atol=3e-6)


@pytest.mark.parametrize("ranks", [2, 4])
def test_gossip(ranks: int) -> None:
    def mix(step: int, own: list[Weights], agreed: Weights) -> Weights:
        before = [dict(each) for each in own]
        for rank, each in enumerate(own):
            near = {rank, (rank + 1) % ranks, (rank - 1) % ranks}
            each.update({name: sum(before[other][name] for other in near) / len(near) for name in agreed})
        return agreed if (step + 1) % 5 else {name: mean_of(own, name) for name in agreed}

    check(trained(step_of(ls.exchange.gossip(agree=5)), ranks), *simulated(ranks, mix))


def test_averaging_every_step_is_training_together() -> None:
    alone, together = trained(step_of(ls.exchange.local_sgd(every=1)), 2), trained(step_of(None), 2)
    for name in ("w1", "w2", "b"):
        np.testing.assert_allclose(alone[0][name], together[0][name], atol=3e-6)


def test_states_of_the_optimizer_are_of_each_rank() -> None:
    """With two steps in between, the momentum of a rank is that of its own gradients, as on one rank alone."""
    step = step_of(ls.exchange.local_sgd(every=100), ls.optim.SGD(RATE, momentum=0.9))
    found = trained(step, 2, steps=3)
    assert "w1/momentum" not in found[0]
    for rank, states in enumerate(found):
        start = {each.name: model().initial_value(each.name).astype(np.float64) for each in model().states}
        momentum = {name: np.zeros_like(value) for name, value in start.items()}
        part = slice(rank * ROWS // 2, (rank + 1) * ROWS // 2)
        for each in range(3):
            slopes = gradients(start, INPUTS[each][part].astype(np.float64), LABELS[each][part])
            momentum = {name: 0.9 * momentum[name] + slopes[name] for name in start}
            start = {name: start[name] - RATE * momentum[name] for name in start}
        for name, value in momentum.items():
            np.testing.assert_allclose(states[f"{name}/momentum/own"][0], value, atol=3e-6)


SUM_WHEN_DUE = """
mesh {data=2}
graph @sum_when_due(state %w: f32[2,4] split(0), setting %due: f64[] in [0.0, 1.0] = 0.0) -> (%w: f32[2,4] split(0)) {
  %own = own_part %w {axis=data} : f32[4] local
  %sum = all_reduce %own {axis=data, kind=sum, when=due} : f32[4]
  %zero = constant {value=dense<f64[]: 0.0>} : f64[]
  %is_due = compare %due, %zero {direction=gt} : bool[]
  %are_due = broadcast %is_due {dims=[], shape=[4]} : bool[4]
  %next = select %are_due, %sum, %own : f32[4] local
  %w.next = parts %next {axis=data, shape=[2, 4]} : f32[2,4] split(0)
  return %w.next
}
""".lstrip()


def test_nothing_travels_in_other_steps() -> None:
    """Rank 0 comes through its calls before rank 1 has begun, until one is due."""
    rank_0_is_through = threading.Event()

    def run(world: ls.Communicator) -> np.ndarray:
        exe = ls.compile(ls.parse(SUM_WHEN_DUE), world=world)
        exe.state["w"] = np.full((1, 4), world.rank + 1, np.float32)
        exe()  # compares the program between the ranks
        if world.rank == 1:
            assert rank_0_is_through.wait(60)
        for _ in range(3):
            exe()
        rank_0_is_through.set()
        exe.set(due=1.0)
        exe()
        return exe.state["w"]

    assert [found.tolist() for found in run_in_threads(2, run)] == [[[3.0] * 4]] * 2


def test_when_must_be_a_setting() -> None:
    with pytest.raises(ls.Error, match="when is 'dew', which is no setting of the program"):
        raise run_in_threads(
            2, lambda world: ls.compile(ls.parse(SUM_WHEN_DUE.replace("when=due", "when=dew")), world=world)
        )[0]


def test_the_schedule_follows_the_step_after_a_checkpoint(tmp_path: Path) -> None:
    """Two runs of steps, with a checkpoint between two averages, end with the bits of one run."""
    step = step_of(ls.exchange.local_sgd(every=4), ls.optim.Adam(0.01))

    def run(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1)
        for each in range(6):
            exe(**batch(each, world))
        exe.save(tmp_path / "c.safetensors")
        again = ls.compile(step, world=world, threads=1)
        again.load(tmp_path / "c.safetensors")
        for each in range(again.step, STEPS):
            again(**batch(each, world))
        return {name: again.state[name].copy() for name in again.state}

    whole = trained(step, 2)
    for rank, states in enumerate(run_in_threads(2, run)):
        assert not isinstance(states, Exception), states
        for name, value in states.items():
            np.testing.assert_array_equal(value, whole[rank][name], err_msg=name)


@pytest.mark.parametrize("options", [{"accumulate": 2}, {"precision": "bf16"}, {"uneven": True}])
def test_with_other_options_of_the_step(options: dict[str, Any]) -> None:
    found = trained(step_of(ls.exchange.local_sgd(every=4), **options), 2)
    plain = trained(step_of(ls.exchange.local_sgd(every=4)), 2)
    together = trained(step_of(None), 2)
    for name in ("w1", "w2", "b"):
        far = np.abs(plain[0][name] - together[0][name]).max()  # what training alone changes
        assert np.abs(found[0][name] - plain[0][name]).max() < far / 3, name


@pytest.mark.parametrize("options", [{"verify_hardware": 1}, {"check_numerics": True}])
def test_steps_are_checked_of_which_some_communicate(options: dict[str, Any]) -> None:
    """A neighbour computes a step again, or a NaN is looked for, with and without the collectives of weights."""
    step = step_of(ls.exchange.diloco(every=4, fragments=2))
    for found, plain in zip(trained(step, 2, **options), trained(step, 2), strict=True):
        for name, value in plain.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_only_some_weights() -> None:
    found = trained(step_of({"w1": ls.exchange.local_sgd(every=4), "*": ls.exchange.all_reduce}), 2)
    assert [name for name in found[0] if name.endswith("/own")] == ["w1/own"]
    np.testing.assert_array_equal(found[0]["w2"], found[1]["w2"])
    assert np.abs(found[0]["w1/own"] - found[1]["w1/own"]).max() > 0


def test_one_rank_trains_as_without() -> None:
    plain, alone = trained(step_of(None), 1)[0], trained(step_of(ls.exchange.local_sgd(every=4)), 1)[0]
    assert list(plain) == list(alone)
    for name, value in plain.items():
        np.testing.assert_array_equal(value, alone[name])


def test_a_step_is_verified_as_one_that_sums() -> None:
    assert any("local_sgd" in each for each in ls.verify(step_of(ls.exchange.local_sgd(every=4)), ranks=4))


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"average": ls.average.exponential(0.9)}, "state %w1/average would differ between ranks"),
        ({"clip": ls.clip.global_norm(0.5)}, "result gradient_norm would differ between ranks"),
        ({"precision": "f16"}, "state %loss_scale/[a-z_]+ would differ between ranks"),
    ],
)
def test_replicas_that_part_unasked_are_an_error(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ls.Error, match=wrong):
        trained(step_of(ls.exchange.local_sgd(every=4), **options), 2)


@pytest.mark.parametrize("option", ["shard_optimizer", "shared_weights"])
def test_sharded_states_are_excluded(option: str) -> None:
    with pytest.raises(ls.Error, match=f"{option} and exchanges exclude each other"):
        trained(step_of(ls.exchange.local_sgd(every=4)), 2, **{option: True})


@ls.exchange.of_weights
def never(w: Value, ranks: RanksWithWeights) -> Value:
    return w


@ls.exchange.of_weights
def parted(w: Value, ranks: RanksWithWeights) -> Value:
    ranks.agree(w)
    return w


@ls.exchange.of_weights
def twice(w: Value, ranks: RanksWithWeights) -> Value:
    ranks.agree(ranks.mean(w))
    ranks.agree(ranks.mean(w))
    return w


@ls.exchange.of_weights
def whenever(w: Value, ranks: RanksWithWeights) -> Value:
    ranks.agree(ranks.mean(w, when=w.sum() > 0))
    return w


@pytest.mark.parametrize(
    ("exchange", "wrong"),
    [
        (never, "the ranks never agree on weights: call ranks.agree"),
        (parted, "agree: the value is local, made at "),
        (twice, "the ranks have agreed on other weights already"),
        (whenever, "expected a value of ranks.every, which all ranks know to be equal"),
    ],
)
def test_a_wrong_exchange_names_its_line(exchange: Any, wrong: str) -> None:
    with pytest.raises(ls.Error, match=wrong) as error:
        trained(step_of(exchange), 2)
    assert f"exchange {__name__}.{exchange.__name__}, {Path(__file__).name}:" in str(error.value)
