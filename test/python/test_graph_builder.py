"""Graphs built in Python: operators against NumPy, gradients against PyTorch, sources, and what a builder refuses."""

from __future__ import annotations

import copy
import inspect
import math
import operator
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from cases import ROOT
from example_parts import part
from lockstep.graph import Builder, Value, nn
from ranks import run_in_threads
from test_errors import raises

torch = pytest.importorskip("torch")


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape).astype(np.float32)


A, B, V, M = random(3, 4), random(3, 4, seed=1), random(4, seed=2), random(4, 5, seed=3)
BATCHES, MORE = random(2, 3, 4, seed=4), random(6, 1, 4, 5, seed=5)
N = np.arange(-6, 6).reshape(3, 4)
ARRAYS = {"a": A, "b": B, "v": V, "m": M, "s": BATCHES, "t": MORE, "n": N, "q": A > 0}


def computed(function: Callable[..., Any]) -> np.ndarray:
    """The function of values, whose parameters are names of ARRAYS."""
    g = Builder("computed")
    names = list(inspect.signature(function).parameters)
    dtypes = {"n": "i64", "q": "bool"}
    g.result("y", function(*(g.input(name, dtypes.get(name, "f32"), ARRAYS[name].shape) for name in names)))
    (results,) = ls.interpret(g.finish(), [{name: ARRAYS[name] for name in names}])
    return results["y"]


# Functions that mean the same of values and of arrays.
SAME: list[Callable[..., Any]] = [
    lambda a, b: a + b, lambda a, v: v - a, lambda a, b: a * b / 3, lambda a: 2 - a, lambda a: 1 / (a * a + 1),
    lambda a: -a, lambda a: abs(a), lambda a: abs(a) ** 1.5, lambda a: 2.0**a, lambda n: n % 5, lambda n: 7 % (n * n + 1),
    lambda a, b: a < b, lambda a, b: a <= b, lambda a, v: a > v, lambda a, b: a >= b, lambda n: n == 3, lambda n: n != 3,
    lambda q, a, b: q & (a < b), lambda q, a, b: q | (a < b), lambda q, a, b: q ^ (a < b), lambda q: ~q, lambda n: n & 3,
    lambda n: n | 3, lambda n: 6 ^ n, lambda a: a + A, lambda a: A - a, lambda a: a * np.float64(0.5), lambda n: n * N[0],
    lambda a: np.float32(3) + a, lambda a: V @ a.T, lambda a: a * True,
    lambda a, m: a @ m, lambda a, v: a @ v, lambda v, m: v @ m, lambda v: v @ v, lambda s, m: s @ m, lambda a: a.T @ a,
    lambda s, t: s @ t, lambda a, t: a @ t, lambda v, t: v @ t, lambda s, v: s @ v, lambda a: a @ M,
    lambda a: a[1], lambda a: a[-1, 2], lambda a: a[:, 1:3], lambda a: a[::2, ::-1], lambda a: a[..., 0],
    lambda a: a[None, :, None], lambda s: s[1, ..., 1:], lambda s: s[:, 2, ::-3], lambda a: a[3:3], lambda a: a[-2:, -3:-1],
    lambda a: a[...], lambda s: s[0][1][2], lambda a: a[np.array([2, 0, 2])], lambda v: v[None, None] * 1,
    lambda a: a.T, lambda s: s.transpose(2, 0, 1), lambda s: s.reshape(-1, 4), lambda s: s.reshape(2, 12), lambda a: a.flatten(),
    lambda a: a.sum(), lambda n: n.max(1), lambda a: a.min(0), lambda s: s.sum((0, 2)), lambda s: s.mean(-1), lambda a: a.mean(),
    lambda s: s.mean((1,), keepdims=True), lambda s: s.max(None, keepdims=True), lambda a: len(a) * a,
    lambda a: sum(a), lambda a: a + [*a][1], lambda s: s.reshape((2, 12)), lambda s: s.transpose((1, 0, 2)),
    lambda s: s.transpose(), lambda n: n < 2**63 - 1,
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(SAME)))
def test_operators_methods_and_indices_are_those_of_numpy(i: int) -> None:
    expected = np.asarray(SAME[i](*(ARRAYS[name] for name in inspect.signature(SAME[i]).parameters)))
    result = computed(SAME[i])
    assert result.shape == expected.shape
    assert result.dtype == (np.float32 if expected.dtype == np.float64 else expected.dtype)
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


EXCEPTIONS: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda n: n / 2, ls.Error, "/ divides floats"),
    (lambda n: n.mean(), ls.Error, "/ divides floats"),
    (lambda q: q.sum(), ls.Error, "reduce_sum (C2)"),
    (lambda a: a[np.array([True, False, True])], ls.Error, "gather (C"),
    (lambda n, a: a[n % 3, 0], ls.Error, "expected integers, slices, None or ..."),
    (lambda a: operator.setitem(a * 1, 0, 1), TypeError, "does not support item assignment"),
    (lambda n, a: a + n, ls.Error, "add (C"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(EXCEPTIONS)))
def test_what_numpy_allows(i: int) -> None:
    function, kind, text = EXCEPTIONS[i]
    function(*(ARRAYS[name] for name in inspect.signature(function).parameters))  # of NumPy
    with pytest.raises(kind, match=re.escape(text)):
        computed(function)


def test_numbers_that_are_not_those_of_numpy() -> None:
    assert computed(lambda n: n[:, 3] ** -1).tolist() == [0, 1, 0]  # of -3, 1 and 5
    assert computed(lambda n: n.to("i32").sum(0)).dtype == np.int32
    assert computed(lambda a: a[:0].mean()) == 0 and computed(lambda a: a[:0].max()) == -np.inf


# --- Gradients and layers --------------------------------------------------------------------------------------------


def layers(F: Any, x: Any, w: Any, b: Any, k: Any) -> Any:
    """A scalar by layers that PyTorch's functions, and those of nn, have."""
    y = F.max_pool(F.tanh(F.conv(x, k, b, stride=2, padding=1)), 2, stride=1)
    y = F.avg_pool(y, 2, padding=1)
    y = F.linear(y.flatten(1), w)
    return (F.gelu(y) * F.gelu(y, True) + F.layer_norm(y)).sum()


class OfTorch:
    conv, avg_pool, linear, max_pool, tanh = (
        torch.nn.functional.conv2d, torch.nn.functional.avg_pool2d, torch.nn.functional.linear,
        torch.nn.functional.max_pool2d, torch.tanh,
    )  # fmt: skip
    gelu = staticmethod(lambda x, tanh=False: torch.nn.functional.gelu(x, approximate="tanh" if tanh else "none"))
    layer_norm = staticmethod(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))


class OfGraph:
    conv, avg_pool, linear, max_pool, gelu, layer_norm = (
        nn.conv, nn.avg_pool, nn.linear, nn.max_pool, nn.gelu, nn.layer_norm,
    )  # fmt: skip
    tanh = ls.graph.tanh


def test_layers_and_gradients_are_those_of_pytorch() -> None:
    arrays = {
        "x": random(2, 3, 8, 8),
        "w": random(5, 16, seed=1),
        "b": random(4, seed=2),
        "k": random(4, 3, 3, 3, seed=3),
    }
    tensors = [torch.tensor(each, requires_grad=True) for each in arrays.values()]
    loss = layers(OfTorch, *tensors)
    loss.backward()
    g = Builder("layers")
    values = [g.input(name, "f32", each.shape) for name, each in arrays.items()]
    y = layers(OfGraph, *values)
    g.result("loss", y)
    for name, gradient in zip(arrays, ls.gradients(y, values), strict=True):
        g.result(name, gradient)
    (results,) = ls.interpret(g.finish(), [arrays])
    np.testing.assert_allclose(results["loss"], loss.detach().numpy(), rtol=1e-5)
    for name, tensor in zip(arrays, tensors, strict=True):
        np.testing.assert_allclose(results[name], tensor.grad.numpy(), rtol=1e-3, atol=1e-4)


def test_attention_embeddings_and_cross_entropy_are_those_of_pytorch() -> None:
    q, k, v, table = random(2, 4, 6, 8), random(2, 4, 6, 8, seed=1), random(2, 4, 6, 8, seed=2), random(9, 8, seed=3)
    ids = np.array([[1, 8], [0, 1]])
    F = torch.nn.functional
    wanted = [
        F.scaled_dot_product_attention(*map(torch.tensor, (q, k, v)), is_causal=True),
        F.embedding(torch.tensor(ids), torch.tensor(table)),
        F.cross_entropy(torch.tensor(random(2, 5, 3)), torch.tensor(np.arange(6).reshape(2, 3) % 5)),
    ]
    g = Builder("functions")
    values = [g.constant(each) for each in (q, k, v)]
    made = [
        nn.attention(*values, causal=True),
        nn.embedding(g.constant(ids), g.constant(table)),
        nn.cross_entropy(g.constant(random(2, 5, 3)), g.constant(np.arange(6).reshape(2, 3) % 5)),
    ]
    for i, each in enumerate(made):
        g.result(f"y{i}", each)
    (results,) = ls.interpret(g.finish(), [{}])
    for i, each in enumerate(wanted):
        np.testing.assert_allclose(results[f"y{i}"], each.numpy(), rtol=1e-4, atol=1e-5)


def results_of(g: Builder, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    (results,) = ls.interpret(g.finish(), [inputs])
    return results


def test_options_of_layers_are_those_of_pytorch() -> None:
    q, k, v, mask = (
        random(2, 4, 6, 8),
        random(2, 4, 6, 8, seed=1),
        random(2, 4, 6, 8, seed=2),
        random(2, 4, 6, 6, seed=3),
    )
    x, w = random(2, 4, 9, 9), random(6, 2, 3, 3, seed=1)
    b = random(6, seed=2)
    F = torch.nn.functional
    wanted = {
        "mask": F.scaled_dot_product_attention(*map(torch.tensor, (q, k, v, mask))),
        "conv": F.conv2d(*map(torch.tensor, (x, w, b)), groups=2, dilation=(1, 2)),
        "pool": F.max_pool2d(torch.tensor(x), 3, stride=1, dilation=2),
        "gelu": F.gelu(torch.tensor(x), approximate="tanh"),
        "linear": F.linear(
            torch.tensor(b[None]), torch.tensor(w.reshape(18, 6)), torch.tensor(w[:, 0, 0, 0].repeat(3))
        ),
    }
    g = Builder("options")
    made = {
        "mask": nn.attention(*(g.constant(each) for each in (q, k, v, mask))),
        "conv": nn.conv(g.constant(x), w, b, groups=2, dilation=[1, 2]),  # arrays are parameters too
        "pool": nn.max_pool(g.constant(x), 3, stride=1, dilation=2),
        "gelu": nn.gelu(g.constant(x), approximate="tanh"),
        "linear": nn.linear(g.constant(b[None]), w.reshape(18, 6), w[:, 0, 0, 0].repeat(3).astype(np.float64)),
    }
    for name, each in made.items():
        g.result(name, each)
    results = results_of(g)
    for name, each in wanted.items():
        np.testing.assert_allclose(results[name], each.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 2e-3), ("bf16", 2e-2)])
def test_16_bits_are_averaged_and_normalized_in_f32(dtype: str, tolerance: float) -> None:
    """Their sums and squares are above the largest number of f16, 65504."""
    x, w, b = np.float32([[-1000, 0, 500, 1000], [1, 2, 3, 4]]), random(4), random(4, seed=1)
    g = Builder("low")
    g.result("mean", g.constant(np.full(4096, 100), dtype).mean().to("f32"))
    g.result("y", nn.layer_norm(g.constant(x, dtype), w, b).to("f32"))
    results = results_of(g)
    assert results["mean"] == 100
    expected = torch.nn.functional.layer_norm(torch.tensor(x), (4,), torch.tensor(w), torch.tensor(b))
    np.testing.assert_allclose(results["y"], expected.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("trained", [True, False])
def test_batch_norm_moves_its_statistics_as_pytorch(trained: bool) -> None:
    """Also if these are not trained, as buffers of PyTorch are not."""
    x = 3 + 2 * random(8, 3, 4)
    g = Builder("normalized")
    with g.scope("bn"):
        mean = g.state("mean", (3,), trained=trained)
        variance = g.state("variance", (3,), init=1, trained=trained)
        weight, bias = g.state("weight", init=np.float32([1, 2, 3])), g.state("bias", (3,))
        g.result("y", nn.batch_norm(g.input("x", "f32", x.shape, split=0), mean, variance, weight, bias))
    model = g.finish()
    arrays = [model.initial_value(f"bn.{name}") for name in ("mean", "variance", "weight", "bias")]
    statistics = [torch.tensor(each) for each in arrays]
    before = torch.nn.functional.batch_norm(torch.tensor(x), *statistics)
    np.testing.assert_allclose(ls.compile(model)(x=x)["y"], before.numpy(), rtol=1e-5, atol=1e-5)
    step = ls.train_step(model, ls.loss.mean_squared_error("y", "target"), ls.optim.SGD(0.0))
    assert step.trained == ["bn.weight", "bn.bias"]
    exe, target = ls.compile(step), random(8, 3, 4, seed=1)
    loss = exe(x=x, target=target)["loss"]
    y = torch.nn.functional.batch_norm(torch.tensor(x), *statistics, training=True)  # which moves them
    np.testing.assert_allclose(loss, torch.nn.functional.mse_loss(y, torch.tensor(target)).item(), rtol=1e-5)
    for name, each in zip(("mean", "variance"), statistics, strict=False):
        np.testing.assert_allclose(exe.state[f"bn.{name}"], each.numpy(), rtol=1e-5)
    fixed = Builder("fixed")
    fixed.result("y", nn.batch_norm(fixed.input("x", "f32", x.shape), *arrays[:2]))
    plain = torch.nn.functional.batch_norm(torch.tensor(x), *map(torch.tensor, arrays[:2]))
    np.testing.assert_allclose(results_of(fixed, x=x)["y"], plain.numpy(), rtol=1e-5, atol=1e-5)


def test_dropout_draws_in_each_training_step() -> None:
    g = Builder("dropped")
    g.result("y", nn.dropout(g.input("x", "f32", (64, 64), split=0) * g.state("w", (64,), init=1.0), 0.25))
    step = ls.train_step(g.finish(), ls.loss.mean_squared_error("y", "target"), ls.optim.SGD(0.0))
    exe, ones = ls.compile(step), np.ones((64, 64), np.float32)
    kept = [float(exe(x=ones, target=0 * ones)["loss"]) * 4096 * 0.75**2 for _ in range(2)]  # the number of elements
    np.testing.assert_allclose(kept, np.round(kept), atol=0.1)
    assert kept[0] != kept[1] and all(2950 < each < 3190 for each in kept)  # four deviations from 3072


def test_gradients_of_gradients_and_values_whose_nodes_are_replaced() -> None:
    """The gradient's rule of attention replaces its node; the values of it, and of later gradients, stay usable."""
    x = random(1, 1, 3, 2)
    g = Builder("twice")
    v = g.input("x", "f32", x.shape)
    y = nn.attention(v, v, v)
    loss = (y * y).sum()
    (first,) = ls.gradients(loss, [v])
    cube = (v * v * v).sum()
    (second,) = ls.gradients(ls.gradients(cube, [v])[0].sum(), [v])
    for name, value in {"y": y, "loss": loss, "first": first, "second": second, "more": y + first}.items():
        g.result(name, value)
    (results,) = ls.interpret(g.finish(), [{"x": x}])
    tensor = torch.tensor(x, requires_grad=True)
    of_torch = torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
    (of_torch**2).sum().backward()
    np.testing.assert_allclose(results["first"], tensor.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(results["second"], 6 * x, rtol=1e-5)
    np.testing.assert_allclose(results["more"], of_torch.detach().numpy() + tensor.grad.numpy(), rtol=1e-4, atol=1e-5)


# --- Models ----------------------------------------------------------------------------------------------------------


def trained(model: ls.Graph, start: dict[str, np.ndarray], world: ls.Communicator, batch: Any) -> list[float]:
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1), dropout="off")
    exe = ls.compile(step, world=world, verify=world.size > 1)
    for name, value in start.items():
        exe.state[name] = value
    return [float(exe(**batch)["loss"]) for _ in range(4)]


def part_of(batch: dict[str, np.ndarray], world: ls.Communicator) -> dict[str, np.ndarray]:
    return {name: np.split(each, world.size)[world.rank] for name, each in batch.items()}


def models(name: str) -> tuple[ls.Graph, ls.Graph, dict[str, np.ndarray]]:
    """The example in Python, the same model from its ONNX file, and a batch."""
    numbers = np.random.Generator(np.random.PCG64(0))
    if name == "lenet":
        batch = {"image": random(8, 1, 28, 28), "label": numbers.integers(0, 10, 8)}
        return part("graphs/lenet").lenet(8), ls.load_onnx(ROOT / "examples/mnist/lenet.onnx", dims={"batch": 8}), batch
    tokens = numbers.integers(0, 256, (4, 17))
    options = {"layers": 2, "width": 32, "heads": 4, "length": 16}
    imported = ls.load_onnx(part("language/model").gpt(**options), dims={"batch": 4})
    return part("graphs/gpt").gpt(4, **options), imported, {"tokens": tokens[:, :-1], "label": tokens[:, 1:]}


@pytest.mark.parametrize("name", ["lenet", "gpt"])
def test_an_example_in_python_trains_as_the_imported_model(name: str) -> None:
    """On one rank, and verified on two."""
    built, imported, batch = models(name)
    assert sorted((each.name, each.shape) for each in built.states) == sorted(
        (each.name, each.shape) for each in imported.states
    )
    start = {each.name: imported.initial_value(each.name) for each in imported.states}
    losses = [trained(model, start, ls.Communicator.single(), batch) for model in (built, imported)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][3] != losses[0][0]
    on_two = run_in_threads(2, lambda world: trained(built, start, world, part_of(batch, world)))
    np.testing.assert_allclose(on_two, [losses[1]] * 2, rtol=1e-4)


def small(seed: int = 0) -> Builder:
    g = Builder("small", seed)
    x = g.input("x", "f32", (6, 12), split=0)
    w = g.state("w", (5, 12), init=ls.graph.init.kaiming_uniform())
    frozen = g.state("scale", init=np.ones(5, np.float32), trained=False)
    g.result("logits", (x @ w.T) * frozen + g.state("bias", (5,), init=0.5))
    return g


def test_a_graph_is_saved_parsed_pickled_and_trained(tmp_path: Path) -> None:
    model = small().finish()
    assert str(ls.parse(str(model))) == str(model)
    model.save(tmp_path / "small.graph")
    for other in (ls.load_graph(tmp_path / "small.graph"), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert str(other) == str(model)
        np.testing.assert_array_equal(other.initial_value("w"), model.initial_value("w"))
    assert model.initial_value("scale").tolist() == [1] * 5 and model.initial_value("bias").tolist() == [0.5] * 5
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1))
    assert step.trained == ["w", "bias"]


def test_initial_values_depend_on_the_seed_the_name_and_the_shape_alone() -> None:
    first, again, other = (small(seed).finish().initial_value("w") for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    g = Builder("g")
    g.state("another", (3,), init=ls.graph.init.normal())
    g.state("w", (5, 12), init=ls.graph.init.kaiming_uniform())
    assert np.array_equal(g.finish().initial_value("w"), first)


@pytest.mark.parametrize(
    ("init", "deviation", "mean", "bound"),
    [
        (ls.graph.init.constant(3), 0, 3, 3),
        (ls.graph.init.normal(2, 0.5), 0.5, 2, None),  # as torch.nn.init.normal_: the mean comes first
        (ls.graph.init.uniform(-1, 3), 4 / math.sqrt(12), 1, 3),
        # PyTorch's bounds: sqrt(3) gain / sqrt(fan), and the deviation sqrt(2 / (fan in + fan out)).
        (ls.graph.init.kaiming_uniform(), math.sqrt(2 / 900), 0, math.sqrt(6 / 900)),
        (ls.graph.init.kaiming_uniform(math.sqrt(5)), math.sqrt(1 / 2700), 0, math.sqrt(1 / 900)),
        (ls.graph.init.kaiming_normal(), math.sqrt(2 / 900), 0, None),
        (ls.graph.init.xavier_uniform(), math.sqrt(2 / 1800), 0, math.sqrt(6 / 1800)),
        (ls.graph.init.xavier_normal(), math.sqrt(2 / 1800), 0, None),
    ],
)
def test_initializers(init: Any, deviation: float, mean: float, bound: float | None) -> None:
    g = Builder("g")
    g.state("w", (100, 100, 3, 3), init=init)
    drawn = g.finish().initial_value("w")
    assert abs(drawn.std() - deviation) <= 0.02 * deviation and abs(drawn.mean() - mean) < 0.02
    assert bound is None or np.abs(drawn).max() <= bound * 1.0001


def test_settings_and_next_states() -> None:
    g = Builder("average")
    x, rate = g.input("x", "f32", (2,)), g.setting("rate", 0.5, least=0, most=1)
    average = g.state("average", (2,))
    g.next_state("average", average + rate.to("f32") * (x - average))
    g.result("before", average)
    exe = ls.compile(g.finish())
    assert exe(x=np.float32([2, 4]))["before"].tolist() == [0, 0]
    exe.settings["rate"] = 1
    assert exe(x=np.float32([8, 8]))["before"].tolist() == [1, 2]
    assert exe.state["average"].tolist() == [8, 8]
    with raises("rate"):
        exe.settings["rate"] = 2


def test_dtypes_of_constants_states_and_inputs() -> None:
    g = Builder("dtypes")
    x = g.input("x", np.float32, (2,))
    assert g.state("half", (2,), "bf16", init=0.1).dtype == "bf16"
    low = x.to("bf16") + 0.1
    assert g.state("count", (), "i64", init=3, trained=False).dtype == "i64"
    assert low.dtype == "bf16" and (g.input("n", "int32", (2,)) + 7).dtype == "i32"
    assert g.constant(3).dtype == "i64" and g.constant(3.0).dtype == "f64" and g.constant(True).dtype == "bool"
    assert g.constant(np.float16(3)).dtype == "f16" and g.constant(0.1, "f32").dtype == "f32"
    assert g.input("u", np.dtype("uint8"), ()).dtype == "u8"
    with raises("a number that i32 cannot represent"):
        g.input("m", "i32", (2,)) + 0.5
    with raises("a number that u8 cannot represent"):
        g.constant(-1, "u8")
    for dtype, number in {"u64": -1, "i64": 2**63}.items():
        with raises(f"a number that {dtype} cannot represent"):
            operator.gt(g.constant(0, dtype), number)
    for dtype, number in {"i64": 2.0**63, "u64": 2.0**64, "i32": 2.0**31, "bool": 2, "u16": math.nan}.items():
        with raises(f"a number that {dtype} cannot represent"):
            g.constant(number, dtype)
    g.result("largest", g.constant(2.0**64 - 2**11, "u64") + 2**11 - 1)
    g.result("least", g.constant(-(2.0**63), "i64") + -0.0)
    g.result("low", low.to("f32"))
    g.result("mean", low.mean().to("f32"))
    (results,) = ls.interpret(
        g.finish(), [{"x": np.float32([1, 2]), "n": np.int32([0, 0]), "m": np.int32([0, 0]), "u": np.uint8(0)}]
    )
    assert results["largest"] == 2**64 - 1 and results["least"] == -(2**63)
    assert results["low"].tolist() == [1.1015625, 2.09375] and abs(results["mean"] - 1.6) < 0.01


def test_arrays_of_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([1.5, -2, 0.1], ml_dtypes.bfloat16)
    g = Builder("half")
    w = g.state("w", init=array)
    drawn = g.state("drawn", (3,), "bf16", init=lambda shape, numbers: array)
    g.result("y", (w + array + drawn + g.constant(array)).to("f32"))
    graph = g.finish()
    assert [str(each.dtype) for each in graph.states] == ["bf16", "bf16"]
    np.testing.assert_allclose(ls.compile(graph)()["y"], array.astype(np.float32) * 4, rtol=1e-2)


def test_the_seed_of_a_graph_that_is_continued() -> None:
    drawn = []
    for g in (Builder("g", 7), Builder.of(Builder("g").finish(), seed=7), Builder.of(Builder("g").finish())):
        g.state("w", (3,), init=ls.graph.init.normal())
        drawn.append(g.finish().initial_value("w").tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_collectives_are_ops_of_a_graph_with_a_mesh() -> None:
    """Each of two ranks has half of the rows; the sum of squares over all is the same on both."""
    g = Builder("sums", mesh={"data": 2})
    x = g.input("x", "f32", (4, 3), split=0)
    total = ls.graph.all_reduce((x * x).sum(), axis="data", kind="sum")
    g.result("total", total)
    graph = g.finish()
    assert "all_reduce %1 {axis=data, kind=sum} : f32[]" in str(graph)
    rows = random(4, 3)
    results = run_in_threads(2, lambda world: ls.compile(graph, world=world)(**part_of({"x": rows}, world))["total"])
    np.testing.assert_allclose(results, [(rows * rows).sum()] * 2, rtol=1e-6)


def test_a_result_must_not_be_partial() -> None:
    """Ranks would return different sums, 6 and 24 instead of 30. A result may be split."""
    g = Builder("sums", mesh={"data": 2})
    x = g.input("x", "f32", (4, 3), split=0)
    total = (x * x).sum()
    made = f"reduce_sum %1 (at python:test_graph_builder.py:{line() - 1})"
    for text in (f"result total is partial(sum) along axis data, made by {made}", "; an all_reduce is missing"):
        with raises(text):
            g.result("total", total)
    g.result("rows", x * 2)
    g.result("total", ls.graph.all_reduce(total, axis="data", kind="sum"))
    graph = g.finish()

    def body(world: ls.Communicator) -> float:
        return float(ls.compile(graph, world=world)(x=np.full((2, 3), world.rank + 1, np.float32))["total"])

    assert run_in_threads(2, body) == [30, 30]


def test_a_result_must_not_be_local() -> None:
    text = "mesh {data=2}\ngraph @own(state %r: f32[4] local) -> (%r: f32[4] local) {\n  return %r\n}\n"
    g = Builder.of(ls.parse(text))
    with raises("result mine is local along axis data, made by "):
        g.result("mine", g.value("r"))


# --- Changes of a graph ----------------------------------------------------------------------------------------------


def network() -> ls.Graph:
    g = Builder("network")
    x = g.input("x", "f32", (4, 6), split=0)
    hidden = ls.graph.relu(x @ g.state("w1", init=random(6, 5)))
    g.result("logits", ls.graph.relu(hidden) @ g.state("w2", init=random(5, 3, seed=1)))
    return g.finish()


def test_nodes_are_read_and_replaced() -> None:
    x = random(4, 6)
    g = Builder.of(network())
    with g.before(g.nodes("relu")[1]):
        with g.before(g.nodes("matmul")[0]):
            first = ls.graph.exp(g.value("x"))
        second = ls.graph.sin(first)
    at_end = ls.graph.neg(second)
    assert [node.op for node in g.nodes()] == ["exp", "matmul", "relu", "sin", "relu", "matmul", "neg"]
    relu = g.nodes("relu")[0]
    assert relu.operands[0].shape == (4, 5) and relu.source.startswith("python:test_graph_builder.py:")
    assert g.nodes("matmul")[0].attributes["transpose_b"] is False
    for node in g.nodes("relu"):
        with g.before(node):  # the operand of the second is then the first's new value
            g.replace(node.results[0], ls.graph.tanh(node.operands[0]))
    product = g.nodes("matmul")[-1].results[0]
    g.replace(product, product * 2)  # but not in the product by 2 itself
    g.remove_unused()
    assert [node.op for node in g.nodes()] == ["matmul", "tanh", "tanh", "matmul", "constant", "broadcast", "mul"]
    for gone in (first, at_end, relu.results[0]):
        with raises("the value was removed from @network"):
            gone + 1
    with raises("the value was removed from @network"), g.before(relu):
        pass
    changed = g.finish()
    np.testing.assert_array_equal(changed.initial_value("w1"), random(6, 5))
    (results,) = ls.interpret(changed, [{"x": x}])
    expected = 2 * np.tanh(np.tanh(x @ random(6, 5))) @ random(5, 3, seed=1)
    np.testing.assert_allclose(results["logits"], expected, rtol=1e-5)


def test_a_training_step_is_changed() -> None:
    """Settings of the optimizer are values, and schedules stay."""
    rate = ls.schedule.cosine(0.5, steps=4)
    step = ls.train_step(network(), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(rate))
    g = Builder.of(step)
    for node in g.nodes("sgd"):
        assert node.attributes["learning_rate"].name == "optimizer/learning_rate" and len(node.operands) == 2
        with g.before(node):
            w, gradient = node.operands
            changed = ls.graph.sgd(w, gradient * 2, learning_rate=node.attributes["learning_rate"])
        g.replace(node.results[0], changed)
    g.remove_unused()
    batch = {"x": random(4, 6), "label": np.array([0, 1, 2, 0])}
    faster = ls.train_step(
        network(), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(ls.schedule.cosine(1.0, steps=4))
    )
    executables = [ls.compile(each) for each in (g.finish(), faster)]
    losses = [[float(exe(**batch)["loss"]) for _ in range(6)] for exe in executables]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    assert losses[0][5] == losses[0][4] != losses[0][3]  # the rate has reached zero


def test_the_communication_of_a_distributed_program_is_changed() -> None:
    """The gradients of two ranks are added in bf16: the losses are those of a sum in f32, nearly."""
    step = ls.train_step(network(), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.5))
    placed = ls.distribute(step, {"data": 2})
    g = Builder.of(placed)
    sums = [node for node in g.nodes("all_reduce") if node.operands[0].ndim == 2]
    assert [node.operands[0].placements for node in sums] == [{"data": "partial(sum)"}] * 2
    for node in sums:
        with g.before(node):
            low = ls.graph.convert(node.operands[0], dtype="bf16", rounds_parts=True)
            total = ls.graph.all_reduce(low, axis="data", kind="sum").to("f32")
        assert total.placements == {}
        g.replace(node.results[0], total)
    g.remove_unused()
    low = g.finish()
    batch = {"x": random(4, 6), "label": np.array([0, 1, 2, 0])}

    def losses(graph: ls.Graph) -> list[Any]:
        def body(world: ls.Communicator) -> list[float]:
            exe = ls.compile(graph, world=world)
            return [float(exe(**part_of(batch, world))["loss"]) for _ in range(4)]

        return run_in_threads(2, body)

    exact, rounded = losses(placed), losses(low)
    np.testing.assert_allclose(rounded, exact, rtol=2e-2)
    assert rounded != exact and rounded[0] == rounded[1]


def test_a_change_that_is_wrong() -> None:
    g = Builder.of(network())
    x, relu = g.value("x"), g.nodes("relu")[0]
    with raises("%x is f32[4,6] and cannot be replaced by %0, which is f32[4,5]"):
        g.replace(x, g.value("0"))
    with raises("graph @network has no value %nothing"):
        g.value("nothing")
    g.replace(relu.results[0], ls.graph.exp(relu.operands[0]))  # inserted at the end, after its use
    with raises("before it is defined; an op is inserted at the end: write it in `with g.before(node)`"):
        g.finish()


def test_gradients_are_inserted_before_a_node() -> None:
    """Their rules replace attention meanwhile."""
    x = random(1, 1, 3, 2)
    g = Builder("early")
    v = g.input("x", "f32", x.shape)
    y = nn.attention(v, v, v)
    squares, late = (y * y).sum(), ls.graph.neg(v)
    g.result("y", ls.graph.exp(late))
    with g.before(g.nodes("exp")[0]):
        (slope,) = ls.gradients(squares, [v])
        g.replace(late, slope * 2)
    g.remove_unused()
    assert g.nodes()[-1].op == "exp"
    tensor = torch.tensor(x, requires_grad=True)
    (torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor) ** 2).sum().backward()
    np.testing.assert_allclose(results_of(g, x=x)["y"], np.exp(2 * tensor.grad.numpy()), rtol=1e-4)


def test_the_gradient_of_a_loss_that_is_computed_later() -> None:
    g = Builder("early")
    x = g.input("x", "f32", (3,))
    first = ls.graph.tanh(x)
    loss = (first * first).sum()
    with g.before(g.nodes("tanh")[0]):
        (slope,) = ls.gradients(loss, [x])
    g.result("slope", slope)
    with raises("before it is defined; an op is inserted at the end"):
        g.finish()


# --- Sources and errors ----------------------------------------------------------------------------------------------


def line() -> int:
    """The line of the caller."""
    return inspect.currentframe().f_back.f_lineno  # type: ignore[union-attr]


def test_the_source_of_a_node_is_the_line_that_made_it() -> None:
    g = Builder("sources")
    x, here = g.input("x", "f32", (2, 3)), line()
    y = nn.gelu(x) @ x.T
    z = ls.graph.exp(y)
    (gradient,) = ls.gradients(z.sum(), [x])
    g.result("gradient", gradient)
    text = str(g.finish())
    before, _, after = text.partition(" = exp ")
    nodes = before.splitlines()[1:-1]
    assert len(nodes) > 5 and all(each.endswith(f'@"python:test_graph_builder.py:{here + 1}"') for each in nodes)
    assert after.splitlines()[0].endswith(f' : f32[2,2] @"python:test_graph_builder.py:{here + 2}"')
    assert f'@"gradient of python:test_graph_builder.py:{here + 2}"' in text


def test_an_error_names_the_op_the_rule_the_operands_and_the_line() -> None:
    g = Builder("wrong")
    x, w = g.input("x", "f32", (4, 3)), g.input("w", "f32", (4, 3))
    with pytest.raises(ls.Error) as caught:
        x @ w
    here = line() - 1
    assert str(caught.value).startswith("matmul (C4): ")
    assert str(caught.value).endswith(f", at python:test_graph_builder.py:{here}; operands: %x: f32[4,3], %w: f32[4,3]")
    assert caught.traceback[0].lineno == here - 1  # the traceback begins at the line that is wrong
    with pytest.raises(ls.Error) as caught:
        g.input("x", "f32", (2,))
    assert caught.traceback[0].lineno == line() - 2 and "test_graph_builder.py" not in str(caught.value)
    assert (x + w).shape == (4, 3)  # the builder stays usable
    step = g.state("steps", (3,))
    y = ls.graph.floor(x * step)
    with raises(f"floor %3 (at python:test_graph_builder.py:{line() - 1}) is on its only path"):
        ls.gradients(y.sum(), [step])


def test_later_errors_name_the_line() -> None:
    g = Builder("later")
    logits = ls.graph.floor(g.input("x", "f32", (6, 5)) * g.state("w", (5,)))
    here = line() - 1
    g.result("logits", logits)
    with raises(f"at python:test_graph_builder.py:{here}"):
        ls.train_step(g.finish(), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1))


def dense(x: Value, name: str, outputs: int) -> Value:
    with x.graph.scope(name):
        return x @ x.graph.state("weight", (x.shape[-1], outputs), init=1.0) + 1


def scoped() -> Builder:
    """An MLP in scopes, with a product that is in none."""
    g = Builder("scoped")
    x = g.input("x", "f32", (8, 6), split=0)
    for i in range(2):
        with g.scope(f"blocks/{i}"):
            x = dense(ls.graph.tanh(dense(x, "up", 5)), "down", 6)
    g.result("logits", x @ x.T)
    return g


def test_a_scope_is_a_layer() -> None:
    inner = [f"blocks/{i}{part}" for i in range(2) for part in ("/up", "", "/down")]
    g = scoped()
    file = r"test_graph_builder\.py:\d+"
    sources = [re.sub(file, "line", node.source) for node in g.nodes()]
    assert list(dict.fromkeys(sources)) == [*(f"python:{name}/line" for name in inner), "python:line"]
    model = g.finish()
    assert [each.name for each in model.states] == [
        f"{name.replace('/', '.')}.weight" for name in inner if name[-1] in "pn"
    ]
    names = [line.split()[0] for line in model.summary().partition("layers (")[2].splitlines()[2:-1]]
    assert names[:-1] == inner and re.fullmatch(file, names[-1])
    parts = [line.split()[0] for line in model.summary(depth=1).partition("layers (")[2].splitlines()[2:-1]]
    assert parts[0] == "blocks" and len(parts) == 2
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1))
    rows = {line.split()[0]: line.split() for line in step.summary().splitlines() if line.startswith("  blocks/")}
    assert list(rows) == inner
    product = 2 * 8 * 6 * 5
    assert rows["blocks/1/up"][1:5] == ["f32[8,5]", "30", str(product + 8 * 5), str(2 * product)]


def test_names_in_a_scope() -> None:
    g = Builder("names")
    with g.scope("bn"), pytest.raises(KeyError), g.scope("inner"):
        raise KeyError  # the scope ends all the same
    with g.scope("bn"):
        x = g.input("x", "f32", (3,))
        mean = g.state("mean", (3,), init=ls.graph.init.normal())
        other = Builder("other").input("x", "f32", (2,))
        assert "bn" not in ls.graph.exp(other).graph.nodes()[0].source  # a scope is one builder's
        g.next_state("mean", mean + x * g.setting("rate", 0.5).to("f32"))
        g.result("mean", mean)
        with raises(f"at python:bn/test_graph_builder.py:{line() + 1}; operands: %x: f32[3]"):
            ls.graph.softmax(x, dim=4)
        with raises("an input of graph @names has no name"):
            g.state("")
    outside = g.state("mean", init=np.ones(3, np.float32))
    assert outside.name == "mean" and mean.name == "bn.mean"
    graph = g.finish()
    assert [each.name for each in graph.inputs if each not in graph.states] == ["x"]
    plain = Builder("plain")
    plain.state("bn.mean", (3,), init=ls.graph.init.normal())
    np.testing.assert_array_equal(graph.initial_value("bn.mean"), plain.finish().initial_value("bn.mean"))
    exe = ls.compile(graph)
    exe(x=np.float32([2, 4, 6]))
    np.testing.assert_allclose(exe.state["bn.mean"], graph.initial_value("bn.mean") + [1, 2, 3], rtol=1e-6)
    with raises("scope: the graph @names is finished"), g.scope("late"):
        pass


@pytest.mark.parametrize("name", ["", "/fc", "fc/", "a//b"])
def test_the_name_of_a_scope(name: str) -> None:
    with raises(f"scope: the name is {name!r}, expected one or several"), Builder("g").scope(name):
        pass


def both() -> tuple[Value, Value]:
    return Builder("one").input("x", "f32", (2, 3)), Builder("two").input("y", "f32", (2, 3))


def stale() -> Value:
    g = Builder("done")
    x = g.input("x", "f32", (2, 3))
    g.result("x", x)
    g.finish()
    return x


def of_two_dtypes() -> tuple[Value, Value]:
    g = Builder("dtypes")
    return g.input("x", "f32", (2,)), g.input("n", "i32", (2,))


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: both()[0] + both()[1], "add: the operands are of two graphs: <lockstep.graph.Value %x: f32[2,3] of @one>"),
    (lambda: both()[0].graph.result("z", both()[1]), "result z: <lockstep.graph.Value %y: f32[2,3] of @two> is not a value of @one"),
    (lambda: ls.gradients(both()[0].sum(), [both()[1]]), "gradients: the operands are of two graphs"),
    (lambda: stale() + 1, "add: the graph @done is finished, and its values cannot be used any more"),
    (lambda: stale().graph.input("y", "f32", ()), "input: the graph @done is finished"),
    (lambda: stale().graph.state("y"), "state: the graph @done is finished"),
    (lambda: stale().graph.setting("y", 1), "setting: the graph @done is finished"),
    (lambda: stale().graph.constant(1), "constant: the graph @done is finished"),
    (lambda: stale().graph.result("z", stale()), "result z: the graph @done is finished"),
    (lambda: stale().graph.finish(), "finish: the graph @done is finished"),
    (lambda: str(stale().graph), "str(): the graph @done is finished"),
    (lambda: stale()[0], "slice: the graph @done is finished"),
    (lambda: ls.gradients(stale(), [stale()]), "gradients: the graph @done is finished"),
    (lambda: ls.graph.iota(stale().graph, shape=[1], dtype="i64", dim=0), "iota: the graph @done is finished"),
    (lambda: both()[0] + random(2, 4), "add: the shapes cannot be broadcast to one, at python:test_graph_builder.py:"),
    (lambda: operator.add(*of_two_dtypes()), "; operands: %x: f32[2], %n: i32[2]"),
    (lambda: both()[0] + "text", "add: an operand is 'text', expected a lockstep.graph.Value, a number or an array"),
    (lambda: ls.graph.select(both()[0] > 0, 1.0, 0.0), "select: 1.0 would be a bool, as <lockstep.graph.Value %2: bool[2,3] of @one> is: make a number a value: g.constant(1.0, 'f32')"),
    (lambda: (both()[0] > 0) * 2, "bool[2,3] of @one> is: convert that by .to()"),
    (lambda: Builder("g").state("w", (3, 4), init=ls.graph.init.kaiming_uniform), "the initial value of state w is the function kaiming_uniform: call it"),
    (lambda: ls.graph.init.normal(0.0, -0.02), "normal: std is -0.02, expected at least 0"),
    (lambda: ls.graph.init.uniform(1, 0), "uniform: low is 1.0 and high is 0.0"),
    (lambda: nn.dropout(both()[0], 1.5), "dropout: p is 1.5, expected 0 to 1"),
    (lambda: nn.dropout(both()[0], math.nan), "dropout: p is nan, expected 0 to 1"),
    (lambda: nn.linear(both()[0], np.ones((1, 3)), np.ones(7)), "linear: bias is <lockstep.graph.Value %2: f32[7] of @one>, expected the shape [1]"),
    (lambda: nn.layer_norm(both()[0], np.ones((5, 2, 3))), "layer_norm: weight is"),
    (lambda: nn.layer_norm(both()[0], bias=np.ones(2)), "f32[2] of @one>, expected the shape [3]"),
    (lambda: nn.batch_norm(both()[0], np.zeros(3), np.ones(2)), "batch_norm: variance is"),
    (lambda: nn.conv(both()[0].reshape(1, 2, 3), np.ones((4, 2, 1)), np.ones(2)), "conv: bias is"),
    (lambda: nn.attention(both()[0].sum(), both()[0], both()[0]), "attention: q is <lockstep.graph.Value %0: f32[] of @one>, expected [..., heads, queries, size]"),
    (lambda: nn.gelu(both()[0], "erf"), "gelu: approximate is 'erf', expected True or False"),
    (lambda: both()[0] + 1j, "add: an operand is 1j, expected a lockstep.graph.Value"),
    (lambda: both()[0].graph.constant(None), "constant: the value is None, expected a number or an array"),
    (lambda: Builder("g").state("w", init=np.array("a")), "the initial value of state w is array('a'"),
    (lambda: Builder("g").state("w", (3,), init=lambda shape, random: None), "the initial value of state w is None"),
    (lambda: both()[0].graph.result("", both()[0]), "a result of graph @one has no name"),
    (lambda: both()[0].graph._native.describe(9), "the value was removed from @one"),
    (lambda: both()[0] if both()[0] > 0 else 1, "has no truth value while the graph is built"),
    (lambda: np.asarray(both()[0]), "has no elements while the graph is built"),
    (lambda: both()[0].to("i32") / 2, "/ divides floats"),
    (lambda: both()[0] @ 2, "@: a scalar is multiplied by *"),
    (lambda: both()[0][1.5], "is indexed by 1.5, expected integers, slices, None or ..."),
    (lambda: both()[0][2], "index 2 of <lockstep.graph.Value %x: f32[2,3] of @one> is outside of the extent 2"),
    (lambda: both()[0][0, 0, 0], "is indexed by 3 numbers and slices"),
    (lambda: both()[0][..., both()[0]], "expected integers, slices, None or ..."),
    (lambda: both()[0].sum(2), "dimension 2 of <lockstep.graph.Value %x: f32[2,3] of @one> does not exist"),
    (lambda: both()[0].reshape(4, -1), "reshape (C2)"),
    (lambda: both()[0].broadcast_to((3, 3)), "broadcast_to: <lockstep.graph.Value %x: f32[2,3] of @one> cannot be broadcast to [3, 3], at python:test_graph_builder.py:"),
    (lambda: both()[0].to("float128x"), "to: the dtype is 'float128x', expected one of f64, f32"),
    (lambda: ls.graph.relu(2.0), "relu: no operand is a lockstep.graph.Value"),
    (lambda: ls.graph.matmul(both()[0], both()[0], transpose_b="yes"), "matmul: transpose_b is 'yes', expected True or False"),
    (lambda: ls.graph.convert(both()[0], dtype="f31"), "convert: dtype is 'f31', expected one of f64"),
    (lambda: ls.graph.slice(both()[0], start=[0], limit=[1], stride=[1]), "slice (C1)"),
    (lambda: ls.graph.slice(both()[0], start="0", limit=[1], stride=[1]), "slice: start is '0', expected a list of whole numbers"),
    (lambda: ls.graph.scan(both()[0], body="text", length=3), "scan: body is 'text', expected a lockstep.Graph"),
    (lambda: ls.graph.iota(both()[0], shape=[1], dtype="i64", dim=0), "iota: the graph is <lockstep.graph.Value"),
    (lambda: ls.graph.all_reduce(both()[0], axis="data", kind="sum"), "@one has no mesh: Builder(…, mesh={'data': 4}) has one"),
    (lambda: nn.conv(both()[0], both()[0]), "conv: x is <lockstep.graph.Value %x: f32[2,3] of @one>, expected [N, C, spatial...]"),
    (lambda: Builder("g").input("x", "f32", (2,), split=1), "input x is split along dimension 1, but is f32[2]"),
    (lambda: Builder("g").input("x", "f32", (-2,)), "the shape of input x: an extent is -2, expected at least 0"),
    (lambda: Builder("g").input("x", "f32", (2**40, 2**40)), "is too large to address"),
    (lambda: Builder("g").input("", "f32", ()), "an input of graph @g has no name"),
    (lambda: both()[0].graph.input("x", "f32", ()), "two values of graph @one are named %x"),
    (lambda: Builder("g").state("w", (2,), init=random(3)), "the initial value of state w is f32[3], the state f32[2]"),
    (lambda: Builder("g").state("w", (2,), init=ls.graph.init.kaiming_uniform()), "kaiming_uniform: the shape is (2,)"),
    (lambda: Builder("g").setting("rate", 2, most=1), "setting %rate is 2"),
    (lambda: both()[0].graph.next_state("x", both()[0]), "is not a value of @one"),
    (lambda: ls.gradients(both()[0], []), "gradients are taken of a float scalar; %x is f32[2,3]"),
    (lambda: ls.gradients(both()[0].sum(), "x"), "gradients of a value are with respect to a list of values; found 'x'"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(WRONG)))
def test_an_error(i: int) -> None:
    call, text = WRONG[i]
    with raises(text):
        call()


def test_errors_of_python_itself() -> None:
    x, _ = both()
    with pytest.raises(TypeError, match="is a scalar"):
        len(x.sum())
    with pytest.raises(TypeError, match=r"convolution\(\) has no option 'strides'; is stride meant\?"):
        ls.graph.convolution(x, x, strides=[1])
    with pytest.raises(TypeError, match=r"Value\.sum\(\) has no option 'axis'; is dims meant\?"):
        x.sum(axis=1)
    with pytest.raises(TypeError, match=r"softmax\(\) has no option 'axis'; is dim meant\?"):
        ls.graph.softmax(x, axis=1)
    with pytest.raises(TypeError, match=r"max_pool\(\) has no option 'kernel_size'; is window meant\?"):
        nn.max_pool(x, kernel_size=2)
    for name, here in {"view": "reshape", "permute": "transpose", "size": "shape", "unsqueeze": "reshape"}.items():
        with pytest.raises(AttributeError, match=f"a lockstep.graph.Value has no '{name}'; is {here} meant"):
            getattr(x, name)
    assert not hasattr(x, "__dlpack__")
    with pytest.raises(TypeError, match=r"matmul\(x: .*missing a required argument: 'y'"):
        ls.graph.matmul(x)
    for what in (x, x.graph):
        with pytest.raises(TypeError, match="can be neither copied nor pickled"):
            copy.copy(what)
    assert repr(x) == "<lockstep.graph.Value %x: f32[2,3] of @one>" and repr(x.graph) == "<lockstep.graph.Builder @one>"
    assert len({x, x}) == 1


def test_a_gradient_that_does_not_exist() -> None:
    x, _ = both()
    other = x.graph.input("other", "f32", ())
    with raises("does not depend on <lockstep.graph.Value %other: f32[] of @one> through floats"):
        ls.gradients(x.sum(), [other])
    assert (x + other).shape == (2, 3)
