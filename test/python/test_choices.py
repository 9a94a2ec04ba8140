"""Optimizers and losses for users: classes and functions made from the compiled-in definitions, all by the same rules."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
import re
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import mlp, raises

OPTIMIZERS = [getattr(ls.optim, name) for name in ls.optim.__all__ if name != "Optimizer"]
# The losses of one result and a target.
LOSSES = [
    getattr(ls.loss, name)
    for name in ls.loss.__all__
    if list(inspect.signature(getattr(ls.loss, name)).parameters)[1:2] == ["target"]
]


def of(kind: type[ls.optim.Optimizer]) -> ls.optim.Optimizer:
    return kind(learning_rate=0.01)


def test_the_lists_have_what_users_know() -> None:
    names = {kind.__name__ for kind in OPTIMIZERS}
    assert {"SGD", "Adam", "AdamW", "NAdam", "RMSprop", "LAMB", "LARS", "Adafactor", "Muon"} <= names
    assert {"softmax_cross_entropy", "mean_squared_error"} <= {loss.__name__ for loss in LOSSES}
    assert len(LOSSES) > 7


def test_signatures_and_documentation_read_well() -> None:
    assert str(inspect.signature(ls.optim.SGD)) == (
        "(learning_rate: float | None = None, momentum: float = 0.0, nesterov: bool = False, "
        "weight_decay: float = 0.0, *, lr: float | None = None)"
    )
    assert str(inspect.signature(ls.optim.AdamW)) == (
        "(learning_rate: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-08, "
        "weight_decay: float = 0.01, *, lr: float | None = None, betas: tuple[float, float] | None = None, "
        "eps: float | None = None)"
    )
    help_text = pydoc.plain(pydoc.render_doc(ls.optim.Adam))
    assert "class Adam(Optimizer)" in help_text
    assert "beta1: the share of m that remains; a finite number of at least 0 and below 1." in help_text
    assert (
        "it keeps `w/adam_m` and `w/adam_v`; the steps of the program, not of each state, are counted in" in help_text
    )
    softmax = inspect.signature(ls.loss.softmax_cross_entropy)
    assert str(softmax) == (
        "(logits: str = 'logits', target: str = 'label', class_weights: collections.abc.Sequence[float] | None = None, "
        "ignore_index: int | None = None, label_smoothing: float = 0.0, soft_targets: bool = False, "
        "reduction: str = 'mean', sample_weight: str | None = None, element_weight: str | None = None) -> "
        "lockstep.loss.Loss"
    )
    softmax_text = pydoc.plain(pydoc.render_doc(ls.loss.softmax_cross_entropy))
    assert "each in [0, classes)" in " ".join(softmax_text.split())
    assert (
        "one number for each; the mean is divided by the weights of the labels; each a finite number of at least 0"
        in (" ".join(softmax_text.split()))
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_is_a_value(kind: type[ls.optim.Optimizer]) -> None:
    made = of(kind)
    assert made == of(kind) != kind(learning_rate=0.02)
    assert hash(made) == hash(of(kind))
    assert copy.deepcopy(made) == made == pickle.loads(pickle.dumps(made))
    assert dataclasses.replace(made, learning_rate=0.5) == kind(learning_rate=0.5)
    assert repr(made).startswith(f"{kind.__name__}(learning_rate=0.01, ")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.learning_rate = 1.0
    assert made.learning_rate == 0.01
    assert kind.__doc__ is not None
    for each in dataclasses.fields(made):
        assert f"  {each.name}: " in kind.__doc__


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_options_are_checked_where_they_are_given(kind: type[ls.optim.Optimizer]) -> None:
    checked = 0
    for each in dataclasses.fields(of(kind)):
        if each.type is not float:
            continue
        may_be_negative = each.name in ("beta2_decay", "ns_a", "ns_b", "ns_c")
        for wrong in (*(() if may_be_negative else (-0.5,)), float("nan"), float("inf"), "0.1"):
            with raises(f"{kind.__name__}: {each.name} is {wrong!r}", "expected a"):
                kind(**{"learning_rate": 0.01, each.name: wrong})
            checked += 1
    assert checked >= 4  # at least the learning rate
    with pytest.raises(TypeError, match=rf"{kind.__name__}\(\) has no option 'decay'.*learning_rate"):
        kind(learning_rate=0.01, decay=0.1)
    unset = {each.name: None for each in dataclasses.fields(of(kind)) if each.name != "learning_rate"}
    assert kind(learning_rate=0.01, **unset) == of(kind)


# Patterns with which docstrings state the end of a range, and two distances from it: one inside the range, one outside.
ENDS = {
    r"of at least (\S+?)( and below \S+)?": (0, -1),
    r"above (\S+?)( and below \S+)?": (1, 0),
    r".*and below (\S+)": (-1, 0),
    r"of at most (\S+)": (0, 1),
    r"from (\S+) to \S+": (0, -1),
    r"from \S+ to (\S+)": (0, 1),
}
RANGED = [*OPTIMIZERS, *(getattr(ls.loss, name) for name in ls.loss.__all__[2:] if name not in ("ctc", "result"))]
WITHOUT_A_RANGE = ["kl_div", "mean_squared_error", "l1"]


@pytest.mark.parametrize("kind", RANGED)
def test_ranges_are_those_of_the_documentation(kind: Any) -> None:
    """Checks both ends of each range, and if they are included."""
    parameters = inspect.signature(kind).parameters
    needed = {name: name for name, each in parameters.items() if each.default is each.empty}
    if kind in OPTIMIZERS:
        needed = {"learning_rate": 0.01}
    said = {}
    for option in parameters:
        text = re.search(rf"^  {option}: (.*?)(?=^  \w+: |\Z)", kind.__doc__, re.MULTILINE | re.DOTALL)
        found = re.search(r"a finite number ?(.*)\.$", " ".join(text[1].split())) if text else None
        said |= {option: found[1]} if found else {}
    assert bool(said) == (kind.__name__ not in WITHOUT_A_RANGE)
    for option, range_of in said.items():
        is_list = option in ("class_weights", "pos_weight")
        step = 1 if isinstance(parameters[option].default, int) else 1e-6
        name = f"{option}{'[0]' if is_list else ''} is "
        with raises(name, "expected a"):
            kind(**needed | {option: [float("nan")] if is_list else float("nan")})
        ends = [(found[1], *sides) for end, sides in ENDS.items() if (found := re.fullmatch(end, range_of))]
        assert ends or not range_of, range_of
        for end, inside, outside in ends:
            values = [type(step)(end) + side * step for side in (inside, outside)]
            good, bad = ([value] if is_list else value for value in values)
            kind(**needed | {option: good})
            with raises(name, "expected a finite number"):
                kind(**needed | {option: bad})


def test_the_class_of_all_is_no_optimizer() -> None:
    with raises("Optimizer is no optimizer", "SGD, Adam"):
        ls.optim.Optimizer()


def batches(step: ls.Graph, count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.Generator(np.random.PCG64(3))

    def value(info: ls.ValueInfo) -> np.ndarray:
        if info.dtype == "i64":
            return random.integers(0, 5, info.shape)
        values = random.random(info.shape).astype(np.float32)
        return np.sign(values - 0.5) if info.name == "signs" else values

    return [{info.name: value(info) for info in step.inputs} for _ in range(count)]


def trained(step: ls.Graph, world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
    exe = ls.compile(step, world=world, threads=1)
    losses = []
    for batch in batches(step, 4):
        share = {name: np.split(value, world.size)[world.rank] for name, value in batch.items()}
        losses.append(float(exe(**share)["loss"]))
    return losses, {name: np.array(value) for name, value in exe.state.items()}


def expect_one_rank_results(step: ls.Graph) -> None:
    losses, states = trained(step, ls.Communicator.single())
    assert len(states) >= 2
    assert all(np.isfinite(losses)) and len(set(losses)) == len(losses)
    results: list[Any] = run_in_threads(2, lambda world: trained(step, world))
    assert len(results) == 2
    for of_rank, states_of_rank in results:
        np.testing.assert_allclose(of_rank, losses, rtol=2e-5)
        for name, value in states.items():
            np.testing.assert_allclose(states_of_rank[name], value, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_two_ranks_train_as_one_with_every_optimizer(kind: type[ls.optim.Optimizer]) -> None:
    groups = {"*.bias": ls.optim.AdamW()} if kind is ls.optim.Muon else None  # Muon updates only matrices
    expect_one_rank_results(ls.train_step(mlp(), ls.loss.softmax_cross_entropy(), of(kind), groups=groups))


# ctc takes other results: test_losses.py.
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss is not ls.loss.ctc])
def test_two_ranks_train_as_one_with_every_loss(loss: Any) -> None:
    names = ("logits", "signs") if loss is ls.loss.hinge_embedding else ("logits",)
    expect_one_rank_results(ls.train_step(mlp(), loss(*names), ls.optim.SGD(0.1)))
