"""Schedules: PyTorch's numbers, step by step, and refusals."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import lockstep as ls
from test_errors import LABELS, X, raises, training

STEPS = 60


def torch_values(scheduler: Callable[..., Any], rate: float) -> list[float]:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    schedule = scheduler(torch.optim.lr_scheduler, optimizer)
    values = []
    for _ in range(STEPS):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return values


CASES: dict[str, tuple[ls.schedule.Schedule, float, Callable[..., Any]]] = {
    "constant": (ls.schedule.constant(0.3), 0.3, lambda s, o: s.ConstantLR(o, 1.0)),
    "step": (ls.schedule.step(0.3, 7), 0.3, lambda s, o: s.StepLR(o, 7)),
    "step_gamma": (ls.schedule.step(0.3, 7, gamma=0.5), 0.3, lambda s, o: s.StepLR(o, 7, 0.5)),
    "step_each": (ls.schedule.step(0.3, 1, gamma=0.9), 0.3, lambda s, o: s.StepLR(o, 1, 0.9)),
    "multi_step": (ls.schedule.multi_step(0.3, [30, 5, 12]), 0.3, lambda s, o: s.MultiStepLR(o, [5, 12, 30])),
    "multi_step_twice": (
        ls.schedule.multi_step(0.3, [5, 5, 12], 0.5), 0.3, lambda s, o: s.MultiStepLR(o, [5, 5, 12], 0.5)
    ),
    "exponential": (ls.schedule.exponential(0.3, 0.93), 0.3, lambda s, o: s.ExponentialLR(o, 0.93)),
    "linear": (ls.schedule.linear(0.1, 0.3, 20), 0.3, lambda s, o: s.LinearLR(o, 1 / 3, 1.0, 20)),
    "linear_down": (ls.schedule.linear(0.3, 0.03, 9), 0.3, lambda s, o: s.LinearLR(o, 1.0, 0.1, 9)),
    "polynomial": (ls.schedule.polynomial(0.3, 40), 0.3, lambda s, o: s.PolynomialLR(o, 40)),
    "polynomial_power": (ls.schedule.polynomial(0.3, 40, 2.5), 0.3, lambda s, o: s.PolynomialLR(o, 40, 2.5)),
    "cosine": (ls.schedule.cosine(0.3, STEPS), 0.3, lambda s, o: s.CosineAnnealingLR(o, STEPS)),
    "cosine_minimum": (ls.schedule.cosine(0.3, 25, 0.05), 0.3, lambda s, o: s.CosineAnnealingLR(o, 25, 0.05)),
    "restarts": (ls.schedule.cosine_with_restarts(0.3, 9), 0.3, lambda s, o: s.CosineAnnealingWarmRestarts(o, 9)),
    "restarts_growing": (
        ls.schedule.cosine_with_restarts(0.3, 4, growth=2, minimum=0.01),
        0.3,
        lambda s, o: s.CosineAnnealingWarmRestarts(o, 4, 2, 0.01),
    ),
    "one_cycle": (
        ls.schedule.one_cycle(0.3, STEPS + 1), 0.3, lambda s, o: s.OneCycleLR(o, 0.3, STEPS + 1, cycle_momentum=False)
    ),
    "one_cycle_options": (
        ls.schedule.one_cycle(0.3, STEPS + 5, rising=0.5, start_divisor=10, final_divisor=50),
        0.3,
        lambda s, o: s.OneCycleLR(
            o, 0.3, STEPS + 5, pct_start=0.5, div_factor=10, final_div_factor=50, cycle_momentum=False
        ),
    ),
    "warm_up": (
        ls.schedule.constant(0.3).after_warmup(10, start=0.1), 0.3, lambda s, o: s.LinearLR(o, 0.1, 1.0, 10)
    ),
    "warm_up_before_cosine": (
        ls.schedule.cosine(0.3, 40).after_warmup(12, start=0.25),
        0.3,
        lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.25, 1.0, 12), s.CosineAnnealingLR(o, 40)], [12]),
    ),
    "warm_up_before_steps": (
        ls.schedule.multi_step(0.3, [20, 30]).after_warmup(5, start=0.5),
        0.3,
        lambda s, o: s.SequentialLR(o, [s.LinearLR(o, 0.5, 1.0, 5), s.MultiStepLR(o, [20, 30])], [5]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_pytorchs(name: str) -> None:
    schedule, rate, scheduler = CASES[name]
    expected = torch_values(scheduler, rate)
    assert [schedule(step) for step in range(STEPS)] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_every_schedule_is_compared() -> None:
    made = {repr(schedule).removeprefix("lockstep.schedule.").partition("(")[0] for schedule, _, _ in CASES.values()}
    assert made == set(ls.schedule.__all__) - {"Schedule"}


def test_where_they_end() -> None:
    assert ls.schedule.polynomial(0.3, 40)(1000) == 0
    assert ls.schedule.linear(0.1, 0.3, 20)(1000) == pytest.approx(0.3)
    cycle = ls.schedule.one_cycle(0.3, 50)
    assert cycle(1000) == cycle(49) == pytest.approx(0.3 / 25 / 1e4)
    assert ls.schedule.one_cycle(0.3, 1)(0) == pytest.approx(0.3 / 25 / 1e4)
    assert ls.schedule.one_cycle(0.3, 10, rising=1.0)(9) == pytest.approx(0.3)
    assert ls.schedule.one_cycle(0.3, 10, rising=0.1)(0) == pytest.approx(0.3)  # without steps in which to rise
    assert ls.schedule.cosine(0.4, 10)(20) == pytest.approx(0.4)  # back at the start
    assert ls.schedule.constant(0.5).after_warmup(4)(0) == 0
    assert ls.schedule.cosine(0.4, 10).after_warmup(0)(3) == ls.schedule.cosine(0.4, 10)(3)


def test_they_are_values() -> None:
    schedule = ls.schedule.cosine(0.1, steps=100).after_warmup(10)
    assert repr(schedule) == "lockstep.schedule.cosine(0.1, 100, 0.0).after_warmup(10, 0.0)"
    assert schedule == ls.schedule.cosine(0.1, 100).after_warmup(10) != ls.schedule.cosine(0.1, 100)
    assert eval(repr(schedule), {"lockstep": ls}) == schedule
    assert len({schedule, ls.schedule.cosine(0.1, 100).after_warmup(10)}) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ls.schedule.step("0.1", 3), "schedule.step: value is '0.1', expected a number"),
        (lambda: ls.schedule.step(math.nan, 3), "schedule.step: value is nan, expected a finite number"),
        (lambda: ls.schedule.step(0.1, 0), "schedule.step: every is 0, expected at least 1"),
        (lambda: ls.schedule.step(0.1, 2.5), "schedule.step: every is 2.5, expected a whole number"),
        (lambda: ls.schedule.step(0.1, True), "schedule.step: every is True, expected a whole number"),
        (lambda: ls.schedule.multi_step(0.1, [3, 0]), "schedule.multi_step: a milestone is 0, expected at least 1"),
        (lambda: ls.schedule.multi_step(0.1, 5), "schedule.multi_step: milestones is 5, expected a list of whole"),
        (lambda: ls.schedule.cosine(0.1, -1), "schedule.cosine: steps is -1"),
        (lambda: ls.schedule.cosine_with_restarts(0.1, 3, 0), "growth is 0, expected at least 1"),
        (lambda: ls.schedule.one_cycle(0.1, 10, rising=1.5), "rising is 1.5, expected at least 0 and at most 1"),
        (lambda: ls.schedule.one_cycle(0.1, 10, rising=-0.5), "rising is -0.5, expected at least 0 and at most 1"),
        (lambda: ls.schedule.one_cycle(0.1, 10, start_divisor=-2), "start_divisor is -2.0, expected a number above 0"),
        (lambda: ls.schedule.constant(0.1).after_warmup(5, math.nan), "after_warmup: start is nan, expected a finite"),
        (lambda: ls.schedule.one_cycle(0.1, 10, final_divisor=0), "final_divisor is 0.0, expected a number above 0"),
        (lambda: ls.schedule.constant(0.1).after_warmup(-1), "after_warmup: steps is -1, expected at least 0"),
    ],
)
def test_what_is_refused(make: Callable[[], object], message: str) -> None:
    with raises(message):
        make()


def test_a_schedule_without_a_value_names_itself_and_the_step() -> None:
    with raises("schedule.exponential(1.0, 10.0) has no value at step 400"):
        ls.schedule.exponential(1.0, 10.0)(400)
    with raises("schedule.polynomial(1.0, 3, -1.0) has no value at step 3"):
        ls.schedule.polynomial(1.0, 3, -1.0)(3)


SCHEDULES = [
    ls.schedule.constant(0.1),
    ls.schedule.step(0.1, 3),
    ls.schedule.multi_step(0.1, [2, 5]),
    ls.schedule.exponential(0.1, 0.9),
    ls.schedule.linear(0.1, 0.5, 7),
    ls.schedule.polynomial(0.1, 7, 2.0),
    ls.schedule.cosine(0.1, 7).after_warmup(3, 0.5),
    ls.schedule.cosine_with_restarts(0.1, 3, 2),
    ls.schedule.one_cycle(0.1, 9),
    ls.average.exponential(0.9),
    ls.average.stochastic(3, 2),
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_are_copied_and_pickled(schedule: ls.schedule.Schedule) -> None:
    values = [schedule(at) for at in range(12)]
    assert len(set(values)) > 1 or schedule == ls.schedule.constant(0.1)
    for other in (copy.copy(schedule), copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule))):
        assert other == schedule and [other(at) for at in range(12)] == values


def test_so_are_recipes_with_schedules() -> None:
    recipe = (
        ls.optim.AdamW(ls.schedule.cosine(1e-3, 9).after_warmup(2), weight_decay=0.1),
        ls.clip.global_norm(ls.schedule.linear(1, 2, 5)),
        ls.loss.softmax_cross_entropy(label_smoothing=0.1) + 0.5 * ls.loss.result("penalty"),
    )
    assert pickle.loads(pickle.dumps(recipe)) == recipe == copy.deepcopy(recipe)


def test_a_schedule_of_pytorch_leads_to_those_of_this_package() -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    schedulers = torch.optim.lr_scheduler
    said = "expected a number or a function of the step; lockstep.schedule has PyTorch's, such as lockstep.schedule.cosine("
    for scheduler in (schedulers.CosineAnnealingLR(optimizer, 10), schedulers.ReduceLROnPlateau(optimizer)):
        with raises("SGD: learning_rate is <torch.optim.lr_scheduler", said, "ReduceLROnPlateau"):
            ls.optim.SGD(scheduler)
        with raises("Adam: beta1 is <torch.optim.lr_scheduler", said):
            ls.optim.Adam(0.1, beta1=scheduler)
        exe = ls.compile(training(ls.optim.SGD(0.1)), threads=1)
        with raises("setting optimizer/learning_rate is <torch.optim.lr_scheduler", said):
            exe.set(learning_rate=scheduler)
        with raises("clip.norm: limit is <torch.optim.lr_scheduler", said):
            ls.clip.norm(scheduler)
    with raises("SGD: learning_rate is 'fast', expected a number") as caught:
        ls.optim.SGD("fast")
    assert str(caught.value).endswith("expected a number")


def test_momentum_follows_a_cycle_as_that_of_pytorch() -> None:
    """The recipe of docs/frameworks.md: OneCycleLR also cycles the momentum."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
    momentum = ls.schedule.one_cycle(0.85, STEPS, start_divisor=0.85 / 0.95, final_divisor=1.0)
    rate = ls.schedule.one_cycle(0.1, STEPS)
    exe = ls.compile(training(ls.optim.SGD(rate, momentum=momentum)), threads=1)
    for step in range(STEPS):
        group = optimizer.param_groups[0]
        assert momentum(step) == pytest.approx(group["momentum"], abs=1e-12)
        assert rate(step) == pytest.approx(group["lr"], abs=1e-12)
        if step in (0, 1, 30):
            exe.step = step
            exe(x=X, label=LABELS)
            assert exe.settings["momentum"] == pytest.approx(group["momentum"], abs=1e-12)
        optimizer.step()
        if step < STEPS - 1:
            schedule.step()
