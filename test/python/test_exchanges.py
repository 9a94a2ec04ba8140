"""lockstep.exchange: each exchange against its paper's algorithm in NumPy, alone and in whole trainings."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from exchange_oracles import DeMo, FourBit, Oracle, PowerSGD, SignSGD, TopK, chunk_of, q_of
from ranks import run_in_threads

X = ls.exchange
SHAPES = [(12, 10), (7,), (6, 3, 2, 2), (64, 5)]
Make = Callable[[tuple[int, ...], int, Any], Oracle]

# Exchanges, and the oracle for a shape, a number of ranks and a body.
EXCHANGES: dict[str, tuple[Any, Make]] = {
    "top_k": (X.top_k(0.25), lambda shape, n, _: TopK(shape, n, 0.25)),
    "power_sgd": (X.power_sgd(2), lambda shape, n, body: PowerSGD(shape, n, 2, q_of(body))),
    "sign_sgd": (X.sign_sgd(), lambda shape, n, _: SignSGD(shape, n, 0.9)),
    "sign_sgd_without_momentum": (X.sign_sgd(momentum=0.0), lambda shape, n, _: SignSGD(shape, n, 0.0)),
    "demo": (X.demo(keep=3, chunk=4), lambda shape, n, _: DeMo(shape, n, 3, chunk_of(shape, 4), 0.999, True)),
    "demo_without_sign": (
        X.demo(keep=2, chunk=6, decay=0.9, sign=False),
        lambda shape, n, _: DeMo(shape, n, 2, chunk_of(shape, 6), 0.9, False),
    ),
    "four_bit": (X.four_bit(), lambda shape, n, _: FourBit(shape, n, 128)),
    "four_bit_in_small_groups": (X.four_bit(group=32), lambda shape, n, _: FourBit(shape, n, 32)),
}
exchanges = pytest.mark.parametrize("name", EXCHANGES)
on_ranks = pytest.mark.parametrize("n", [2, 4])


def close(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5, err_msg=what)


def gradients(n: int, shape: tuple[int, ...], seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for _ in range(n)]


@exchanges
@on_ranks
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bodies_compute_what_the_papers_say(name: str, n: int, shape: tuple[int, ...]) -> None:
    exchange, make = EXCHANGES[name]
    body = exchange.body("f32", shape, count=n)
    oracle = make(shape, n, body)
    assert {each.name for each in body.states} == oracle.states.keys()
    own = {each.name: bool(each.placements) for each in body.states}
    kept = [{name: np.zeros((1, *shape), "f4") if own[name] else body.initial_value(name) for name in own}] * n
    for step in range(4):
        of_ranks = gradients(n, shape, step)
        results = ls.interpret(body, [{"gradient": g, **state} for g, state in zip(of_ranks, kept, strict=True)])
        wanted = oracle.step([g.astype(np.float64) for g in of_ranks])
        for rank, result in enumerate(results):
            close(result["sum"], wanted, f"sum on rank {rank} in step {step}")
            np.testing.assert_array_equal(result["sum"], results[0]["sum"])
            for state, value in oracle.states.items():
                wanted_state = value[rank] if own[state] else value
                close(result[state].reshape(wanted_state.shape), wanted_state, f"{state} on rank {rank} in step {step}")
        kept = [{name: result[name] for name in own} for result in results]


# --- Whole trainings -------------------------------------------------------------------------------------------------

IN, OUT, BATCH, RATE, STEPS = 24, 5, 8, 0.5, 5
LOSS = ls.loss.softmax_cross_entropy("logits", "y")


def test_power_sgd_recovers_from_a_gradient_of_zeros() -> None:
    """Behind a layer of zeros the first gradient is 0. The second one, of a low rank, then arrives in a few steps."""
    body = ls.exchange.power_sgd(rank=2).body("f32", (8, 6), count=2)
    states = [{"error": np.zeros((1, 8, 6), np.float32), "q": body.initial_value("q")} for _ in range(2)]
    gradient = np.outer(np.arange(1, 9), np.arange(1, 7)).astype(np.float32)
    for terms in ([0 * gradient] * 2, [gradient, 2 * gradient]):
        found = ls.interpret(body, [{"gradient": term, **kept} for term, kept in zip(terms, states, strict=True)])
        states = [{name: each[name] for name in ("error", "q")} for each in found]
    np.testing.assert_allclose(found[0]["sum"], 3 * gradient, rtol=1e-4)


def model(batch: int = BATCH) -> ls.Graph:
    g = ls.graph.Builder("linear", seed=1)
    x = g.input("x", "f32", (batch, IN), split=0)
    w = g.state("w", (IN, OUT), init=ls.graph.init.normal())
    b = g.state("b", (OUT,))
    g.result("logits", x @ w + b)
    return g.finish()


def samples(steps: int = STEPS, batch: int = BATCH) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(7)
    return [(random.normal(size=(batch, IN)).astype("f4"), random.integers(0, OUT, batch)) for _ in range(steps)]


def step_of(exchange: Any, optimizer: Any = None, **options: Any) -> ls.Graph:
    return ls.train_step(model(), LOSS, optimizer or ls.optim.SGD(RATE), exchange=exchange, **options)


def share(world: ls.Communicator, batch: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
    rows = len(batch[0]) // world.size
    own = slice(world.rank * rows, (world.rank + 1) * rows)
    return {"x": batch[0][own], "y": batch[1][own]}


def good(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def state_of(exe: ls.Executable) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in exe.state.items()}


def train(n: int, step: ls.Graph, steps: int = STEPS, **options: Any) -> list[Any]:
    """The states and the collectives after the steps, by rank."""

    def body(world: ls.Communicator) -> tuple[dict[str, np.ndarray], list[str]]:
        exe = ls.compile(step, world=world, threads=1, **options)
        for batch in samples(steps):
            exe(**share(world, batch))
        return state_of(exe), list(exe.collectives)

    return good(run_in_threads(n, body))


class Simulation:
    """The training of the model by SGD, in NumPy."""

    def __init__(self, n: int, oracles: dict[str, Oracle]) -> None:
        initial = model()
        self.n, self.oracles = n, oracles
        self.weights = {name: initial.initial_value(name).astype(np.float64) for name in ("w", "b")}

    def terms(self, batch: tuple[np.ndarray, np.ndarray]) -> dict[str, list[np.ndarray]]:
        """Each rank's term of the gradient of the mean loss of all rows."""
        found: dict[str, list[np.ndarray]] = {"w": [], "b": []}
        for x, y in zip(np.split(batch[0].astype(np.float64), self.n), np.split(batch[1], self.n), strict=True):
            z = np.exp(x @ self.weights["w"] + self.weights["b"])
            error = (z / z.sum(axis=1, keepdims=True) - np.eye(OUT)[y]) / len(batch[0])
            found["w"].append(x.T @ error)
            found["b"].append(error.sum(axis=0))
        return found

    def step(self, batch: tuple[np.ndarray, np.ndarray]) -> None:
        for name, terms in self.terms(batch).items():
            total = self.oracles[name].step(terms) if name in self.oracles else np.sum(terms, axis=0)
            self.weights[name] -= RATE * total

    def check(self, state: dict[str, np.ndarray], rank: int, function: str) -> None:
        wanted = dict(self.weights)
        for name, oracle in self.oracles.items():
            for kept, value in oracle.states.items():
                wanted[f"{name}/{function}/{kept}"] = value if kept == "q" else value[rank : rank + 1]
        assert state.keys() == wanted.keys()
        for name, value in wanted.items():
            close(state[name], value, f"{name} on rank {rank}")


def simulated(name: str, n: int, weights: tuple[str, ...] = ("w", "b")) -> Simulation:
    exchange, make = EXCHANGES[name]
    shapes = {"w": (IN, OUT), "b": (OUT,)}
    bodies = {each: exchange.body("f32", shapes[each], count=n) for each in weights}
    return Simulation(n, {each: make(shapes[each], n, bodies[each]) for each in weights})


def bytes_of(collectives: list[str]) -> list[int]:
    """The bytes that a rank gives to each collective for the parts of its bucket, but for the loss."""
    parts = [re.findall(r"%(\S+?)@\d+\+(\d+)", each) for each in collectives]
    return sorted(int(count) for each in parts for name, count in each if name != "loss")


@exchanges
@on_ranks
def test_a_whole_training_is_that_of_numpy(name: str, n: int) -> None:
    simulation = simulated(name, n)
    for batch in samples():
        simulation.step(batch)
    function = EXCHANGES[name][0].definition.__name__
    for rank, (state, collectives) in enumerate(train(n, step_of(EXCHANGES[name][0]))):
        simulation.check(state, rank, function)
        wanted = sorted(each for oracle in simulation.oracles.values() for each in oracle.bytes())
        assert bytes_of(collectives) == wanted, collectives


def test_other_states_are_summed_as_ever() -> None:
    simulation = simulated("top_k", 2, ("w",))
    for batch in samples():
        simulation.step(batch)
    for exchange in ({"w": X.top_k(0.25)}, {"b": X.all_reduce(), "*": X.top_k(0.25)}):
        for rank, (state, collectives) in enumerate(train(2, step_of(exchange))):
            simulation.check(state, rank, "top_k")
            assert bytes_of(collectives) == [4 * OUT, 120, 120]


@pytest.mark.parametrize("wire", ["", "bf16", "int8"])
def test_all_reduce_is_the_sum_of_compile(wire: str) -> None:
    plain = train(2, step_of(None), wire=wire or None)
    for (state, collectives), (wanted, of_plain) in zip(train(2, step_of(X.all_reduce(wire))), plain, strict=True):
        assert collectives == of_plain
        assert state.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(state[name], value)


def test_all_reduce_may_have_a_wire_for_some_states() -> None:
    for _, collectives in train(2, step_of({"w": X.all_reduce("bf16")})):
        assert bytes_of(collectives) == [4 * OUT, 2 * IN * OUT]


@exchanges
def test_one_rank_needs_no_exchange(name: str) -> None:
    (state, collectives) = train(1, step_of(EXCHANGES[name][0]))[0]
    (wanted, _) = train(1, step_of(None))[0]
    assert not collectives and state.keys() == wanted.keys()
    for each, value in wanted.items():
        np.testing.assert_array_equal(state[each], value)


def test_the_text_of_a_step_has_its_exchanges() -> None:
    step = step_of({"w": X.power_sgd(rank=2), "b": X.four_bit()})
    again = ls.parse(str(step))
    assert str(again) == str(step)
    assert 'by="lockstep.exchange.power_sgd(rank=2)"' in str(step)
    for (_, collectives), (_, wanted) in zip(train(2, again), train(2, step), strict=True):
        assert collectives == wanted
