"""Steps with exchanges, and the options of train_step and compile; what checkpoints have of exchanges; their errors."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from exchange_oracles import TopK
from lockstep.elastic._copies import _split_dims
from ranks import run_in_threads
from test_exchanges import (
    EXCHANGES,
    IN,
    LOSS,
    OUT,
    RATE,
    bytes_of,
    close,
    good,
    model,
    samples,
    share,
    simulated,
    state_of,
    step_of,
    train,
)

X = ls.exchange
exchanges = pytest.mark.parametrize("name", EXCHANGES)

# --- Options of train_step and compile -------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_micro_batches_are_one_exchange(precision: str) -> None:
    step = step_of({"w": X.top_k(0.25)}, accumulate=2, precision=precision)
    simulation = simulated("top_k", 2, ("w",))
    for batch in samples():
        simulation.step(batch)
    for rank, (state, collectives) in enumerate(train(2, step)):
        assert bytes_of(collectives)[-2:] == [120, 120], "the whole gradient does not travel"
        if precision == "f32":
            simulation.check(state, rank, "top_k")


@exchanges
def test_a_skipped_step_of_f16_changes_no_state_of_an_exchange(name: str) -> None:
    exchange = EXCHANGES[name][0]
    step = step_of({"w": exchange, "b": X.top_k(0.5)}, precision="f16")

    def body(world: ls.Communicator) -> None:
        exe = ls.compile(step, world=world, threads=1)
        for batch in samples():
            exe(**share(world, batch))
        before = state_of(exe)
        kept = [each for each in before if each.startswith(f"w/{exchange.definition.__name__}/")] + ["b/top_k/error"]
        assert len(kept) >= 2 and all(before[each].any() for each in kept)
        x, y = samples()[0]
        x = x.copy()
        x[0, 0] = np.inf  # on rank 0; signs of it would be finite
        exe(**share(world, (x, y)))
        after = state_of(exe)
        for each in ("w", "b", *kept):
            np.testing.assert_array_equal(after[each], before[each], err_msg=each)
        assert after["loss_scale/scale"] == before["loss_scale/scale"] / 2
        exe(**share(world, samples()[1]))
        assert (state_of(exe)["b/top_k/error"] != before["b/top_k/error"]).any()

    good(run_in_threads(2, body))


def test_bf16_computes_the_exchange_in_f32() -> None:
    for state, _ in train(2, step_of(X.top_k(0.25), precision="bf16")):
        exact = train(2, step_of(X.top_k(0.25)))[0][0]
        np.testing.assert_allclose(state["w"], exact["w"], atol=0.1)
        assert state["w/top_k/error"].dtype == np.float32


def test_rows_of_uneven_ranks() -> None:
    """With one row less on the last rank, the gradient is that of the rows that are there."""
    step = ls.train_step(model(), LOSS, ls.optim.SGD(RATE), exchange={"w": X.top_k(0.25)}, uneven=True)

    def body(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1)
        for x, y in samples():
            own = slice(0, 4) if world.rank == 0 else slice(4, 7)
            exe(x=x[own], y=y[own])
        return state_of(exe)

    oracle = TopK((IN, OUT), 2, 0.25)
    weights = {name: model().initial_value(name).astype(np.float64) for name in ("w", "b")}
    for x, y in samples():
        z = np.exp(x[:7] @ weights["w"] + weights["b"])
        error = (z / z.sum(axis=1, keepdims=True) - np.eye(OUT)[y[:7]]) / 7
        weights["w"] -= RATE * oracle.step([x[:4].T @ error[:4], x[4:7].T @ error[4:]])
        weights["b"] -= RATE * error.sum(axis=0)
    for rank, state in enumerate(good(run_in_threads(2, body))):
        close(state["w"], weights["w"], "w")
        close(state["w/top_k/error"], oracle.states["error"][rank][None], "error")


def test_the_norm_of_clipping_is_that_of_the_received_sum() -> None:
    limit = 0.05
    simulation = simulated("top_k", 2)
    for batch in samples():
        sums = {name: simulation.oracles[name].step(terms) for name, terms in simulation.terms(batch).items()}
        norm = np.sqrt(sum((each**2).sum() for each in sums.values()))
        assert norm > limit
        for name, value in sums.items():
            simulation.weights[name] -= RATE * value * limit / norm
    step = step_of(EXCHANGES["top_k"][0], clip=ls.clip.global_norm(limit))
    for rank, (state, _) in enumerate(train(2, step)):
        simulation.check(state, rank, "top_k")


@exchanges
def test_a_sharded_optimizer_computes_the_same(name: str) -> None:
    step = step_of(EXCHANGES[name][0], ls.optim.Adam(0.01))
    plain, sharded = train(2, step), train(2, step, shard_optimizer=True)
    assert plain[0][1] != sharded[0][1], "parts of weights travel"
    for (wanted, _), (state, _) in zip(plain, sharded, strict=True):
        function = EXCHANGES[name][0].definition.__name__
        for each in ("w", "b", *(state for state in wanted if f"/{function}/" in state)):
            close(state[each], wanted[each], each)


@exchanges
def test_steps_with_exchanges_are_verified(name: str) -> None:
    step = step_of({"w": EXCHANGES[name][0]})
    said = f"the sums of gradients are those that the exchanges make of them: {EXCHANGES[name][0]}"
    assert said in ls.verify(step, ranks=2)
    for (state, _), (wanted, _) in zip(train(2, step, verify=True), train(2, step), strict=True):
        np.testing.assert_array_equal(state["w"], wanted["w"])


def test_what_does_not_go_with_exchanges() -> None:
    step = step_of(X.top_k())
    for options, what in (({"virtual_ranks": 2}, "virtual_ranks"), ({"mesh": {"stage": 2}}, 'an axis "stage"')):
        results = run_in_threads(2, lambda world: ls.compile(step, world=world, **options))  # noqa: B023
        for result in results:
            assert isinstance(result, ls.Error)
            assert f"{what} and exchanges exclude each other; the step has exchange %grad/" in str(result)


def test_ranks_with_other_options_do_not_begin() -> None:
    def body(world: ls.Communicator) -> ls.Executable:
        return ls.compile(step_of({"w": X.top_k(0.25 if world.rank == 0 else 0.5)}), world=world, threads=1)

    for result in run_in_threads(2, body):
        assert isinstance(result, ls.Error) and "rank" in str(result), result


# --- Checkpoints -----------------------------------------------------------------------------------------------------


def run(n: int, step: ls.Graph, batches: list[Any], load: Path | None = None, save: Path | None = None) -> list[Any]:
    """The states before the first of the steps, and after the last, by rank."""

    def body(world: ls.Communicator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        exe = ls.compile(step, world=world, threads=1)
        if load is not None:
            exe.load(load)
        before = state_of(exe)
        for batch in batches:
            exe(**share(world, batch))
        if save is not None:
            exe.save(save, step=len(batches))
        return before, state_of(exe)

    return good(run_in_threads(n, body))


@exchanges
def test_a_checkpoint_continues_with_the_same_bits(name: str, tmp_path: Path) -> None:
    step, file = step_of(EXCHANGES[name][0]), tmp_path / "checkpoint"
    whole = run(2, step, samples(6))
    run(2, step, samples(6)[:3], save=file)
    for (_, state), (_, wanted) in zip(run(2, step, samples(6)[3:], load=file), whole, strict=True):
        assert state.keys() == wanted.keys()
        for each, value in wanted.items():
            np.testing.assert_array_equal(state[each], value)


@pytest.mark.parametrize("to", [4, 8])
@exchanges
def test_other_numbers_of_ranks_share_what_all_have_kept(name: str, to: int, tmp_path: Path) -> None:
    step, file = step_of(EXCHANGES[name][0]), tmp_path / "checkpoint"
    saved = [state for _, state in run(2, step, samples(3), save=file)]
    loaded = [state for state, _ in run(to, step, samples(1), load=file)]
    for each, value in saved[0].items():
        shared = f"/{EXCHANGES[name][0].definition.__name__}/" in each and not each.endswith("/q")
        wanted = (saved[0][each] + saved[1][each]) / to if shared else value
        for state in loaded:
            np.testing.assert_array_equal(state[each], wanted)
        assert not shared or wanted.any() or name == "sign_sgd_without_momentum" or each.startswith("b/")


def test_one_rank_drops_what_ranks_have_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    step, file = step_of(X.power_sgd(2)), tmp_path / "checkpoint"
    saved = run(2, step, samples(3), save=file)[0][1]
    with caplog.at_level(logging.WARNING, logger="lockstep"):
        ((loaded, _),) = run(1, step, [], load=file)
    assert loaded.keys() == {"w", "b"}
    np.testing.assert_array_equal(loaded["w"], saved["w"])
    assert "ranks exchanged gradients when this was saved, and do not now" in caplog.text
    assert "w/power_sgd/" in caplog.text and "is the first of 2 such states" in caplog.text


def test_a_checkpoint_of_one_rank_begins_exchanges(tmp_path: Path) -> None:
    step, file = step_of(X.power_sgd(2)), tmp_path / "checkpoint"
    ((_, saved),) = run(1, step, samples(3), save=file)
    fresh = run(2, step, [])

    def body(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1)
        exe(**share(world, samples()[0]))
        exe.load(file)
        return state_of(exe)

    for state, (wanted, _) in zip(good(run_in_threads(2, body)), fresh, strict=True):
        np.testing.assert_array_equal(state["w"], saved["w"])
        for each in ("w/power_sgd/error", "w/power_sgd/q"):
            np.testing.assert_array_equal(state[each], wanted[each])


def test_a_checkpoint_of_another_exchange_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    run(2, step_of({"w": X.power_sgd(2)}), samples(1), save=file)
    with pytest.raises(ls.Error, match="there is a state w/power_sgd/error, which the program .* does not have"):
        run(2, step_of({"w": X.top_k()}), [], load=file)
    with pytest.raises(ls.Error, match="state w/power_sgd/q is f32.5,2., and f32.5,3. in the program"):
        run(2, step_of({"w": X.power_sgd(3)}), [], load=file)


def test_weights_are_saved_without_what_exchanges_keep(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    step = step_of({"*": X.top_k(0.25)})

    def body(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1)
        exe(**share(world, samples()[0]))
        ls.save_weights(exe, file)
        return state_of(exe)

    trained = good(run_in_threads(2, body))[0]
    loaded = ls.load_weights(model(), file)
    for name in ("w", "b"):
        np.testing.assert_array_equal(loaded.initial_value(name), trained[name])


# --- Exchanges of users ----------------------------------------------------------------------------------------------


@X
def halves(g: ls.graph.Value, ranks: X.Ranks, dtype: str = "bf16", times: int = 1) -> ls.graph.Value:
    """Gradients travel in 16 bits; this rank counts its steps."""
    steps = ranks.state("steps", shape=(), dtype="i32")
    steps.next = steps.value + times
    return ranks.gather(g.to(dtype)).to(g.dtype).sum(dims=0)


def test_an_exchange_of_ones_own() -> None:
    assert str(halves(times=3)) == f"{__name__}.halves(dtype='bf16', times=3)"
    step = ls.parse(str(step_of({"w": halves("f16", times=3), "b": halves})))
    assert f"{__name__}.halves(dtype='f16', times=3)" in str(step)
    for state, collectives in train(2, step_of({"w": halves("f16", times=3), "b": halves})):
        assert state["w/halves/steps"] == 15 and state["b/halves/steps"] == 5
        assert state["w/halves/steps"].dtype == np.int32
        assert any("f16" in each for each in collectives) and any("bf16" in each for each in collectives)
    exact = train(2, step_of(None))[0][0]
    close_to = train(2, step_of({"w": halves("f16")}))[0][0]
    np.testing.assert_allclose(close_to["w"], exact["w"], atol=1e-3)
    assert (close_to["w"] != exact["w"]).any()


def test_methods_of_the_ranks() -> None:
    """What each method gives to each of three ranks."""
    n, random = 3, np.random.default_rng(3)
    of_ranks = [random.normal(size=(n, 2)).astype("f4") for _ in range(n)]
    found = {}
    methods: dict[str, Any] = {
        "sum": (lambda g, ranks: ranks.sum(2 * g), 2 * sum(of_ranks)),
        "mean": (lambda g, ranks: ranks.mean(g), sum(of_ranks) / n),
        "max": (lambda g, ranks: ranks.max(g), np.max(of_ranks, axis=0)),
        "gather": (lambda g, ranks: ranks.gather(g)[1], of_ranks[1]),
        "index": (lambda g, ranks: ranks.gather(ranks.index()).to("f32").reshape(n, 1) + 0 * ranks.sum(g), None),
        "transpose": (
            lambda g, ranks: ranks.gather(ranks.transpose(g))[1],
            np.stack([of_ranks[source][1] for source in range(n)]),
        ),
        "shift": (lambda g, ranks: ranks.gather(ranks.shift(g))[0], of_ranks[n - 1]),
        "shift_back": (lambda g, ranks: ranks.gather(ranks.shift(g, by=-1))[0], of_ranks[1]),
    }
    methods["index"] = (methods["index"][0], np.repeat(np.arange(n)[:, None], 2, axis=1).astype("f4"))
    for name, (function, wanted) in methods.items():

        def method(g: Any, ranks: Any, function: Any = None) -> Any:
            return methods[name][0](g, ranks)  # noqa: B023

        method.__qualname__ = name
        body = X(method)().body("f32", (n, 2), count=n)
        results = ls.interpret(body, [{"gradient": g} for g in of_ranks])
        for result in results:
            close(result["sum"], wanted, name)
        found[name] = function
    assert found.keys() == methods.keys()


# --- Errors ----------------------------------------------------------------------------------------------------------


def local(g: Any, ranks: Any) -> Any:
    return g * 2


def smaller(g: Any, ranks: Any) -> Any:
    return ranks.sum(g)[0]


def number(g: Any, ranks: Any) -> Any:
    return 3


def forgotten(g: Any, ranks: Any) -> Any:
    ranks.state("m", g)
    return ranks.sum(g)


def twice(g: Any, ranks: Any) -> Any:
    ranks.state("m", g).next = g
    ranks.state("m", g).next = g
    return ranks.sum(g)


def again(g: Any, ranks: Any) -> Any:
    return ranks.sum(ranks.sum(g))


def unequal(g: Any, ranks: Any) -> Any:
    ranks.state("m", g, equal=True).next = g
    return ranks.sum(g)


def reshaped(g: Any, ranks: Any) -> Any:
    state = ranks.state("m", g)
    state.next = state.value[0]
    return ranks.sum(g)


def no_type(g: Any, ranks: Any) -> Any:
    return ranks.state("m").value


def with_value(g: Any, ranks: Any) -> Any:
    ranks.state("m", g, init=1.0)
    return ranks.sum(g)


def rows(g: Any, ranks: Any) -> Any:
    return ranks.transpose(g).sum(dims=0)


def raises(g: Any, ranks: Any) -> Any:
    return {}["nothing"]


WRONG = [
    (local, None, r"returned a value that is local, made at .*local.*: the ranks would update"),
    (smaller, None, r"returned f32\[5\], expected f32\[24, ?5\]"),
    (number, None, "returned 3, expected a lockstep.graph.Value"),
    (forgotten, None, "state m has no next value: assign its `next`"),
    (twice, 2, "there are two states m"),
    (again, 1, "is equal on all ranks already"),
    (unequal, 1, "the next value of state m is local, but the state is equal on all ranks: a collective is missing"),
    (reshaped, 2, r"the next value of state m is f32\[5\], expected f32\[24, ?5\]"),
    (no_type, 1, "state m: give `like`, a value of its type, or `shape`"),
    (with_value, 1, "state m: init needs equal=True"),
    (rows, 1, r"transpose: the value is f32\[24, ?5\], expected 2 rows, one for each rank"),
    (raises, 1, "KeyError: 'nothing'"),
]


@pytest.mark.parametrize(("function", "line", "message"), WRONG, ids=[each[0].__name__ for each in WRONG])
def test_a_wrong_exchange_is_an_error_that_names_it(function: Any, line: int | None, message: str) -> None:
    exchange = X(function)
    step = step_of({"w": exchange})
    at = "" if line is None else rf".*, {Path(__file__).name}:{function.__code__.co_firstlineno + line}: "
    for result in run_in_threads(2, lambda world: ls.compile(step, world=world, threads=1)):
        assert isinstance(result, ls.Error)
        pattern = rf"the exchange of %w: exchange {__name__}.{function.__name__}{at}.*{message}"
        assert re.search(pattern, str(result)), result


def test_definitions_that_are_wrong() -> None:
    def of_one(g: Any) -> Any:
        return g

    def needs(g: Any, ranks: Any, k: int) -> Any:
        return ranks.sum(g)

    def any_number(g: Any, ranks: Any, *k: int) -> Any:
        return ranks.sum(g)

    def fine(g: Any, ranks: Any, k: Any = 1) -> Any:
        return ranks.sum(g)

    with pytest.raises(
        ls.Error, match=r"of_one: the function takes the gradient or the weights, and the ranks, and then its options"
    ):
        X(of_one)
    with pytest.raises(ls.Error, match="needs: the option k has no default"):
        X(needs)
    with pytest.raises(ls.Error, match="any_number: the option k has no default"):
        X(any_number)
    for value in (np.float32(3), object(), float("nan")):
        with pytest.raises(ls.Error, match=r"fine: k is .*, expected a number, a text, a bool"):
            X(fine)(k=value)
    with pytest.raises(TypeError, match="fine: got an unexpected keyword argument 'j'"):
        X(fine)(j=1)


def test_arguments_of_train_step_that_are_wrong() -> None:
    for exchange, message in (
        ({"v": X.top_k()}, r"exchange: no trained state that no earlier entry matches is named 'v' or matches it"),
        ({"*": X.top_k(), "w": X.demo()}, "no earlier entry matches is named 'w'"),
        ({"w": "top_k"}, "exchange: of w is 'top_k', expected one of lockstep.exchange, such as"),
        ({3: X.top_k()}, "exchange: the name of a state is 3"),
        (3, r"exchange: of \* is 3"),
        ({"w": X.Ranks}, "exchange: of w is .*Ranks"),
    ):
        with pytest.raises(ls.Error, match=message):
            step_of(exchange)
    with pytest.raises(ls.Error, match="all_reduce: wire is 'f16'"):
        X.all_reduce("f16")
    with pytest.raises(ls.Error, match="all_reduce has no body"):
        X.all_reduce().body("f32", (3,))


def test_texts_of_exchanges_that_are_not_known() -> None:
    text = str(step_of({"w": X.top_k(0.25)}))
    for by, message in (
        ("somewhere.else(k=1)", r"somewhere.else is not defined here: import the module that defines it"),
        ("lockstep.exchange.top_k(share=1)", "which another version of lockstep.exchange.top_k made: .*'share'"),
        ("lockstep.exchange.top_k(", "the exchange lockstep.exchange.top_k"),
        ("lockstep.exchange.top_k(fraction=f())", "the exchange lockstep.exchange.top_k"),
    ):
        step = ls.parse(text.replace("lockstep.exchange.top_k(fraction=0.25)", by))
        for result in run_in_threads(2, lambda world: ls.compile(step, world=world, threads=1)):  # noqa: B023
            assert isinstance(result, ls.Error)
            assert re.search(message, str(result)), result


def test_elastic_jobs_refuse_exchanges() -> None:
    exe = ls.compile(step_of(ls.exchange.top_k(0.5)))
    with pytest.raises(ls.Error, match="adopt: the step has exchanges, of whose states ranks make no copies"):
        _split_dims(exe)


@pytest.mark.parametrize(
    ("exchange", "wrong"),
    [
        (ls.exchange.top_k(0.0), "fraction is 0.0, expected a number above 0, of at most 1"),
        (ls.exchange.top_k(1.5), "fraction is 1.5, expected a number above 0, of at most 1"),
        (ls.exchange.power_sgd(rank=0), "rank is 0, expected at least 1"),
        (ls.exchange.demo(keep=0), "keep is 0, expected at least 1"),
        (ls.exchange.demo(chunk=0), "chunk is 0, expected at least 1"),
        (ls.exchange.four_bit(group=48), "group is 48, expected a multiple of 32"),
        (ls.exchange.four_bit(group=0), "group is 0, expected a multiple of 32"),
        (ls.exchange.diloco(fragments=0), "fragments is 0, expected at least 1"),
        (ls.exchange.local_sgd(every=0), "every: steps is 0, expected at least 1"),
    ],
    ids=str,
)
def test_options_out_of_range(exchange: Any, wrong: str) -> None:
    with pytest.raises(ls.Error, match=re.escape(wrong)):
        exchange.body("f32", (8, 6))
