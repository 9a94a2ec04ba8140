"""Settings: numbers of a compiled step that change between calls, by hand or by a schedule."""

from __future__ import annotations

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import LABELS, X, raises, training


def exe(optimizer: ls.optim.Optimizer, **options: object) -> ls.Executable:
    return ls.compile(training(optimizer), threads=1, **options)


def batch(salt: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(salt).random(X.shape, np.float32), "label": LABELS}


def states(executable: ls.Executable) -> dict[str, np.ndarray]:
    return dict(executable.state)


def same(a: ls.Executable, b: ls.Executable) -> bool:
    return all(np.array_equal(value, b.state[name]) for name, value in a.state.items())


def test_an_optimizers_numbers_are_settings() -> None:
    graph = training(ls.optim.SGD(0.1, momentum=0.9))
    assert graph.settings == {"optimizer/learning_rate": 0.1, "optimizer/momentum": 0.9}  # without decay: no setting
    assert [each.name for each in graph.inputs] == ["x", "label"]
    assert "settings (2, 2 elements)\n  optimizer/learning_rate: 0.1 in [0.0, inf)\n" in graph.summary()
    assert training(ls.optim.SGD(0.1)).settings == {"optimizer/learning_rate": 0.1}
    adamw = training(ls.optim.AdamW()).settings
    assert adamw.keys() >= {f"optimizer/{name}" for name in ("learning_rate", "weight_decay", "beta1", "beta2")}
    assert ls.parse(str(graph)).settings == graph.settings


@pytest.mark.parametrize(
    ("optimizer", "other"),
    [
        (ls.optim.SGD(0.1, weight_decay=0.01), ls.optim.SGD(0.02, weight_decay=0.3)),
        (ls.optim.SGD(0.1, momentum=0.9), ls.optim.SGD(0.02, momentum=0.5)),
        (ls.optim.AdamW(0.01), ls.optim.AdamW(0.03, betas=(0.8, 0.95), weight_decay=0.2)),
        (ls.optim.Adagrad(0.1, weight_decay=0.1), ls.optim.Adagrad(0.3, weight_decay=0.2)),
        (ls.optim.RMSprop(0.01, momentum=0.5), ls.optim.RMSprop(0.02, momentum=0.8, alpha=0.5)),
    ],
    ids=["sgd", "momentum", "adamw", "adagrad", "rmsprop"],
)
def test_setting_them_is_as_compiling_with_them(optimizer: ls.optim.Optimizer, other: ls.optim.Optimizer) -> None:
    set_later, compiled = exe(optimizer), exe(other)
    wanted = training(other).settings
    assert wanted.keys() == set_later.settings.keys()
    steps = set_later.steps
    set_later.set(**wanted)
    for run in range(4):
        assert set_later(**batch(run))["loss"] == compiled(**batch(run))["loss"]
    assert same(set_later, compiled) and set_later.steps == steps
    assert dict(set_later.settings) == wanted


def test_by_its_name_or_the_last_part_of_it() -> None:
    executable = exe(ls.optim.SGD(0.1, momentum=0.9))
    executable.set(learning_rate=0.5, **{"optimizer/momentum": np.float32(0.25)})
    assert dict(executable.settings) == {"optimizer/learning_rate": 0.5, "optimizer/momentum": 0.25}
    executable.set(lr=0.25)  # PyTorch's spelling
    assert executable.settings["lr"] == executable.settings["learning_rate"] == 0.25
    executable.settings["momentum"] = 0
    assert executable.settings["optimizer/momentum"] == 0 and len(executable.settings) == 2
    assert "optimizer/learning_rate" in repr(executable.settings)


def test_what_is_refused_changes_nothing() -> None:
    executable = exe(ls.optim.SGD(0.1, momentum=0.9))
    with raises(
        "there is no setting learning_rat; is", "meant? There are: optimizer/learning_rate, optimizer/momentum"
    ):
        executable.set(momentum=0.5, learning_rat=0.2)
    with pytest.raises(KeyError):
        executable.settings["w"]
    with raises("setting optimizer/learning_rate is -1, expected a finite number of at least 0"):
        executable.set(momentum=0.5, learning_rate=-1)
    with raises("setting optimizer/learning_rate is '0.1', expected a number"):
        executable.set(momentum=0.5, learning_rate="0.1")
    with raises("setting optimizer/learning_rate is nan, expected a finite number of at least 0"):
        executable.set(momentum=0.5, learning_rate=float("nan"))
    with pytest.raises(TypeError):
        del executable.settings["momentum"]
    assert dict(executable.settings) == {"optimizer/learning_rate": 0.1, "optimizer/momentum": 0.9}
    model = ls.compile(ls.parse("graph @f(%x: f32[2]) -> (y: f32[2]) { return %x }"), threads=1)
    with raises("there is no setting learning_rate. There are: none"):
        model.set(learning_rate=0.1)


def test_two_settings_of_one_last_part() -> None:
    text = """graph @f(setting %"a/rate": f64[] in [0.0, inf) = 1.0, setting %"b/rate": f64[] in [0.0, inf) = 2.0) -> (y: f64[]) {
      %y = add %"a/rate", %"b/rate" : f64[]
      return %y
    }"""
    executable = ls.compile(ls.parse(text), threads=1)
    with raises(
        'several settings are called rate: a/rate, b/rate; give the full name, as in exe.settings["a/rate"] = 0.1, or set all'
    ):
        executable.settings["rate"] = 3
    executable.set(**{"b/rate": 5})
    assert executable()["y"] == 6
    with raises("setting a/rate is nan, expected a finite number"):
        executable.set(rate=float("nan"))
    executable.set(rate=4)
    assert dict(executable.settings) == {"a/rate": 4, "b/rate": 4} and executable()["y"] == 8
    executable.set(rate=lambda step: float(step))
    assert executable()["y"] == 4, "the third call is step 2"
    assert ls.interpret(ls.parse(text), [{}])[0]["y"] == 3
    assert ls.interpret(ls.parse(text), [{"a/rate": np.array(7.0)}])[0]["y"] == 9


def test_groups_by_several_names_are_as_a_group_each() -> None:
    sgd = ls.optim.SGD(0.5, momentum=0.5)
    together = ls.compile(training(ls.optim.SGD(0.1), groups={("fc1.bias", "*2.weight"): sgd}), threads=1)
    apart = ls.compile(training(ls.optim.SGD(0.1), groups={"fc1.bias": sgd, "*2.weight": sgd}), threads=1)
    assert dict(together.settings) == dict(apart.settings)
    assert together.settings["optimizer/*2.weight/momentum"] == 0.5
    for run in range(3):
        assert together(**batch(run))["loss"] == apart(**batch(run))["loss"]
    assert same(together, apart)
    together.set(lr=0.25)
    assert {together.settings[f"optimizer/{group}learning_rate"] for group in ("", "fc1.bias/", "*2.weight/")} == {0.25}
    with raises("groups: 'fc1.bias' is in two keys"):
        training(ls.optim.SGD(0.1), groups={"fc1.bias": sgd, ("fc2.bias", "fc1.bias"): sgd})
    with raises("groups: a pattern is empty"):
        training(ls.optim.SGD(0.1), groups={("fc1.bias", ""): sgd})


@pytest.mark.parametrize("start", [False, True], ids=["called", "started"])
def test_a_schedule_is_followed(start: bool) -> None:
    schedule = ls.schedule.cosine(0.3, 5).after_warmup(3, start=0.1)
    scheduled, by_hand = exe(ls.optim.SGD(schedule, momentum=0.9)), exe(ls.optim.SGD(0.3, momentum=0.9))
    for step in range(8):
        assert scheduled.step == step
        by_hand.set(learning_rate=schedule(step))
        expected = by_hand(**batch(step))["loss"]
        assert (scheduled.start(**batch(step)) if start else scheduled(**batch(step)))["loss"] == expected
        assert scheduled.settings["learning_rate"] == schedule(step)
    assert same(scheduled, by_hand)
    scheduled.set(learning_rate=0.125)  # replaces the schedule
    scheduled(**batch(8))
    assert scheduled.settings["learning_rate"] == 0.125
    scheduled.set(learning_rate=lambda step: step / 100)
    scheduled.step = 40
    scheduled(**batch(9))
    assert scheduled.settings["learning_rate"] == 0.4 and scheduled.step == 41


def test_what_a_schedule_may_be_given_for() -> None:
    rising = ls.schedule.linear(0.0, 0.5, 10)
    graph = training(ls.optim.SGD(0.1, momentum=rising, weight_decay=rising))  # both start at 0
    assert graph.settings.keys() == {f"optimizer/{name}" for name in ("learning_rate", "momentum", "weight_decay")}
    assert ls.compile(ls.distribute(graph, {"data": 1}), threads=1)._schedules.keys() == {
        "optimizer/momentum",
        "optimizer/weight_decay",
    }
    with raises("Adam: epsilon cannot change between steps"):
        ls.optim.Adam(epsilon=ls.schedule.constant(1e-8))
    with raises("SGD: learning_rate is -1, expected a finite number of at least 0"):
        ls.optim.SGD(lambda step: -1)


def test_a_schedule_that_is_wrong_later() -> None:
    executable = exe(ls.optim.SGD(lambda step: 0.1 if step < 1 else "low"))
    executable(**batch(0))
    before = states(executable)
    with raises("the schedule of setting optimizer/learning_rate gives 'low' at step 1, expected a number"):
        executable(**batch(1))
    executable.set(learning_rate=lambda step: 0.1 - step)
    with raises("the schedule at step 1", "setting optimizer/learning_rate is -0.9"):
        executable(**batch(1))
    assert executable.step == 1
    for name, value in before.items():
        np.testing.assert_array_equal(executable.state[name], value)
    executable.set(learning_rate=lambda step: 1 // (step - 1))
    with pytest.raises(ZeroDivisionError) as raised:
        executable(**batch(1))
    assert raised.value.__notes__ == ["in the schedule of setting optimizer/learning_rate, at step 1"]
    executable.set(learning_rate=0.1)
    executable(**batch(1))
    with raises("step is -1, expected at least 0"):
        executable.step = -1


def test_a_call_that_fails_is_no_step() -> None:
    executable = exe(ls.optim.SGD(ls.schedule.constant(0.1)))
    with raises("input x"):
        executable(x=X[:2], label=LABELS)
    assert executable.step == 0


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_set_other_values_are_told(ranks: int) -> None:
    def body(world: ls.Communicator) -> None:
        executable = exe(ls.optim.SGD(0.1), world=world)
        rows = slice(6 // ranks * world.rank, 6 // ranks * (world.rank + 1))
        executable(x=X[rows], label=LABELS[rows])
        executable.set(learning_rate=0.5 if world.rank == ranks - 1 else 0.25)
        executable(x=X[rows], label=LABELS[rows])

    for error in run_in_threads(ranks, body):
        assert isinstance(error, ls.Error)
        for part in ("settings have different values on them", "learning_rate=0.5", "learning_rate=0.25"):
            assert part in str(error)


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_schedule_on_ranks_is_one_ranks(ranks: int) -> None:
    optimizer = ls.optim.SGD(ls.schedule.step(0.5, 2), momentum=0.9)
    alone = exe(optimizer)
    for run in range(6):
        alone(**batch(run))

    def body(world: ls.Communicator) -> dict[str, np.ndarray]:
        executable = exe(optimizer, world=world)
        rows = slice(6 // ranks * world.rank, 6 // ranks * (world.rank + 1))
        for run in range(6):
            executable(**{name: value[rows] for name, value in batch(run).items()})
        return states(executable)

    for found in run_in_threads(ranks, body):
        for name, value in alone.state.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
