"""Optimizers that combine elements, or whose states have another shape than the variable: with split weights, saved and
loaded, and in compiled steps compared with PyTorch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import lockstep as ls
from cases import MLP_SPLIT
from ranks import run_in_threads
from test_checkpoint import assert_same_bits, share, states_of
from test_choices import OPTIMIZERS, of
from test_errors import raises, training
from test_mesh import MESH

ADAMW = ls.optim.AdamW(0.01)
ROWS = {"adafactor_rows": 0, "adafactor_columns": 1}  # the remaining dimension of a matrix


def step_of(optimizer: ls.optim.Optimizer) -> ls.Graph:
    """A step of a model with biases, which Muon does not update."""
    return training(optimizer, groups={"*.bias": ADAMW} if isinstance(optimizer, ls.optim.Muon) else None)


def run(
    optimizer: ls.optim.Optimizer, world: ls.Communicator, mesh: dict[str, int] | None = None, **options: Any
) -> tuple[list[float], ls.Executable]:
    exe = ls.compile(step_of(optimizer), world=world, mesh=mesh, threads=1, **options)
    return [float(exe(**share(world, mesh, step))["loss"]) for step in range(4)], exe


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MESH, id="data_model"),
        pytest.param({"model": 2, "data": 2}, id="model_data", marks=pytest.mark.everything),
    ],
)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_split_weights_learn_what_whole_ones_do(
    kind: type[ls.optim.Optimizer], mesh: dict[str, int], tmp_path: Path
) -> None:
    """Norms, means and products are those of the whole weights, not of a rank's part."""

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, tuple[int, ...]]]:
        losses, exe = run(of(kind), world, **({"mesh": mesh, "split": MLP_SPLIT} if world.size > 1 else {}))
        exe.check_replicas()
        exe.save(tmp_path / str(world.size))
        return losses, {name: exe.state[name].shape for name in exe.state}

    [(losses, _)] = run_in_threads(1, body)
    results = run_in_threads(4, body)
    failures = [result for result in results if isinstance(result, Exception)]
    assert not failures, failures
    assert len(results) == 4
    assert all(np.isfinite(losses)) and len(set(losses)) == len(losses)
    for found, _ in results:
        np.testing.assert_allclose(found, losses, rtol=1e-4)
    parts = results[0][1]
    assert parts["fc1.weight"] == (8, 12) and parts["fc2.weight"] == (8, 8)
    expected, states = (safetensors.numpy.load_file(tmp_path / size) for size in ("1", "4"))
    assert states.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(states[name], value, rtol=1e-3, atol=2e-5, err_msg=name)
        of_state, _, kept = name.rpartition("/")
        dim = MLP_SPLIT.get(of_state or kept, {}).get("model")
        is_shared = dim is not None and value.ndim > 0 and ROWS.get(kept, dim) == dim
        assert (parts[name] != value.shape) == is_shared, name


@pytest.mark.parametrize("kind", [ls.optim.NAdam, ls.optim.Adafactor, ls.optim.Muon, ls.optim.LAMB])
def test_a_run_goes_on_from_a_file_on_any_ranks(kind: type[ls.optim.Optimizer], tmp_path: Path) -> None:
    """Saved on a mesh whose ranks split weights, rows and columns; loaded on it with the same bits, and on one and two
    ranks with equal results.
    """
    path = tmp_path / "c.safetensors"

    def first(world: ls.Communicator) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        _, exe = run(of(kind), world, MESH, split=MLP_SPLIT)
        exe.save(path)
        saved = states_of(exe)
        exe(**share(world, MESH, 4))
        return saved, states_of(exe)

    def again(world: ls.Communicator, mesh: dict[str, int] | None, **options: Any) -> dict[str, np.ndarray]:
        exe = ls.compile(step_of(of(kind)), world=world, mesh=mesh, threads=1, **options)
        exe.load(path)
        exe(**share(world, mesh, 4))
        exe.check_replicas()
        return states_of(exe)

    of_ranks = run_in_threads(4, first)
    assert not [each for each in of_ranks if isinstance(each, Exception)], of_ranks
    for found, (_, expected) in zip(
        run_in_threads(4, lambda world: again(world, MESH, split=MLP_SPLIT)), of_ranks, strict=True
    ):
        assert_same_bits(found, expected)
    [of_one] = run_in_threads(1, lambda world: again(world, None))
    of_two = run_in_threads(2, lambda world: again(world, None))
    assert len(of_two) == 2
    for found in of_two:
        for name, value in of_one.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_what_is_kept() -> None:
    shapes = {state.name: (state.dtype, tuple(state.shape)) for state in step_of(ls.optim.NAdam()).states}
    assert shapes["fc1.weight/nadam_missing"] == ("f64", ())
    shapes = {state.name: (state.dtype, tuple(state.shape)) for state in step_of(ls.optim.Adafactor()).states}
    assert shapes["fc1.weight/adafactor_rows"] == ("f32", (16, 1))
    assert shapes["fc1.weight/adafactor_columns"] == ("f32", (1, 12))
    assert shapes["fc1.bias/adafactor_square"] == ("f32", (16,))
    kept = {
        frozenset(state.name.rpartition("/")[2] for state in training(each).states if "fc1.weight/" in state.name)
        for each in (
            ls.optim.RMSprop(),
            ls.optim.RMSprop(centered=True),
            ls.optim.RMSprop(momentum=0.5),
            ls.optim.RMSprop(momentum=0.5, centered=True),
        )
    }
    square, mean, momentum = "rmsprop_square", "rmsprop_mean", "rmsprop_momentum"
    assert kept == {
        frozenset({square}),
        frozenset({square, mean}),
        frozenset({square, momentum}),
        frozenset({square, mean, momentum}),
    }


def test_muon_names_what_it_does_not_update() -> None:
    with raises("Muon updates states of 2 dimensions, and %fc1.bias is f32[16]: give it another optimizer, by groups"):
        training(ls.optim.Muon())
    with raises("group '*.bias'", "Muon updates states of 2 dimensions, and %fc1.bias"):
        training(ADAMW, groups={"*.bias": ls.optim.Muon()})


def test_spellings_of_pytorch() -> None:
    muon = ls.optim.Muon(lr=0.02, ns_coefficients=(3, -3.5, 1.5), ns_steps=3, eps=1e-5, adjust_lr_fn="match_rms_adamw")
    assert (muon.learning_rate, muon.ns_a, muon.ns_b, muon.ns_c, muon.ns_steps) == (0.02, 3, -3.5, 1.5, 3)
    assert (muon.epsilon, muon.adjust_lr_fn) == (1e-5, "match_rms_adamw")
    adafactor = ls.optim.Adafactor(eps=(None, 0.5), d=2.0, beta2_decay=-0.5)
    assert (adafactor.epsilon1, adafactor.epsilon2, adafactor.d) == (0.0, 0.5, 2.0)
    assert ls.optim.NAdam(betas=(0.8, 0.9)).beta1 == 0.8
    with raises("Adafactor: eps is 0.1, expected two numbers"):
        ls.optim.Adafactor(eps=0.1)
    with raises("Muon: ns_coefficients is (1, 2), expected three numbers"):
        ls.optim.Muon(ns_coefficients=(1, 2))
    with raises("Muon: adjust_lr_fn is 'none', expected one of original, match_rms_adamw"):
        ls.optim.Muon(adjust_lr_fn="none")
    with raises("Muon: ns_steps is 0, expected a finite number from 1 to 99"):
        ls.optim.Muon(ns_steps=0)
    with raises("Adafactor: d is 0.5, expected a finite number of at least 1"):
        ls.optim.Adafactor(d=0.5)


def test_help_says_what_is_kept() -> None:
    doc = {kind.__name__: " ".join((kind.__doc__ or "").split()) for kind in OPTIMIZERS}
    assert (
        "Of a state `w` of at least 2 dimensions it keeps `w/adafactor_rows` (a number for each row) and "
        "`w/adafactor_columns` (a number for each column)" in doc["Adafactor"]
    )
    assert "of at most 1 dimension it keeps `w/adafactor_square`" in doc["Adafactor"]
    assert (
        "`w/nadam_m`, `w/nadam_v` and `w/nadam_missing` (a scalar); the steps of the program, not of each"
        in doc["NAdam"]
    )
    assert "Of a state `w` of 2 dimensions it keeps `w/muon_momentum`." in doc["Muon"]


# Compiled, in f32, with a new rate at each step. The formulas themselves are compared in f64, with stored numbers.

PAIRS: list[tuple[ls.optim.Optimizer, str, dict[str, Any]]] = [
    (ls.optim.NAdam(0.01, weight_decay=0.01), "NAdam", {"weight_decay": 0.01}),
    (ls.optim.RMSprop(0.01, centered=True), "RMSprop", {"centered": True}),
    (ls.optim.RMSprop(0.01, momentum=0.5, centered=True), "RMSprop", {"momentum": 0.5, "centered": True}),
    (ls.optim.Adafactor(0.01, weight_decay=0.01), "Adafactor", {"weight_decay": 0.01}),
    (ls.optim.Muon(0.01), "Muon", {}),
]


def rate(step: int) -> float:
    return 0.01 * (1 + step % 5)


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_compiled_step_is_pytorchs(ours: ls.optim.Optimizer, theirs: str, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(3)
    values = {"a": random.standard_normal((6, 4)), "b": random.standard_normal((4, 5))}
    if theirs != "Muon":
        values["c"] = random.standard_normal(5)
    graph = ls.parse(
        "graph @g(%x: f32[3,6], state %a: f32[6,4], state %b: f32[4,5]"
        + (", state %c: f32[5]" if "c" in values else "")
        + ") -> (y: f32[3,5]) {\n  %h = matmul %x, %a : f32[3,4]\n  %t = tanh %h : f32[3,4]\n"
        + "  %p = matmul %t, %b : f32[3,5]\n"
        + ("  %s = broadcast %c {dims=[1], shape=[3,5]} : f32[3,5]\n  %y = add %p, %s : f32[3,5]\n  return %y\n}\n"
           if "c" in values else "  return %p\n}\n")
    )  # fmt: skip
    following = type(ours)(**{**vars(ours), "learning_rate": rate})
    exe = ls.compile(ls.train_step(graph, ls.loss.mean_squared_error("y"), following), threads=1)
    parameters = {name: torch.nn.Parameter(torch.tensor(value, dtype=torch.float32)) for name, value in values.items()}
    for name, value in values.items():
        exe.state[name] = value.astype(np.float32)
    optimizer = getattr(torch.optim, theirs)(parameters.values(), **options)
    in_bf16 = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = torch.Tensor.clone  # Muon rounds its products to bf16
    try:
        for step in range(20):
            x, target = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 6), (3, 5)))
            y = torch.tanh(torch.tensor(x) @ parameters["a"]) @ parameters["b"] + parameters.get("c", 0)
            loss = torch.nn.functional.mse_loss(y, torch.tensor(target))
            optimizer.zero_grad()
            loss.backward()
            optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.step()
            assert exe(x=x, target=target)["loss"] == pytest.approx(loss.item(), rel=1e-4)
    finally:
        torch.Tensor.bfloat16 = in_bf16
    for name, value in parameters.items():
        np.testing.assert_allclose(exe.state[name], value.detach(), rtol=1e-4, atol=1e-4, err_msg=name)
