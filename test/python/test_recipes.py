"""The parts of a step beside loss and optimizer (parameter groups, clipping, averages), compared with PyTorch on 1, 2
and 3 ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import MLP, raises, training

EXPECTED = json.loads(Path(__file__).with_name("pytorch_recipes.json").read_text())
STEPS, BATCH = 12, 12
SGD = ls.optim.SGD(0.5, momentum=0.9)
GROUPS = {"*.bias": ls.optim.SGD(0.2), "fc2*": ls.optim.AdamW(0.05)}

RECIPES: dict[str, dict[str, Any]] = {
    "groups": {"optimizer": ls.optim.SGD(0.1, momentum=0.9, weight_decay=0.01), "groups": GROUPS},
    "value": {"optimizer": SGD, "clip": ls.clip.value(0.02)},
    "norm": {"optimizer": SGD, "clip": ls.clip.norm(0.1)},
    "global_norm": {"optimizer": SGD, "clip": ls.clip.global_norm(0.3)},
    "exponential": {"optimizer": SGD, "average": ls.average.exponential(0.9)},
    "stochastic": {"optimizer": SGD, "average": ls.average.stochastic(4, every=3)},
}


def model() -> ls.Graph:
    return ls.load_onnx(MLP, dims={"batch": BATCH})


def step_of(**options: Any) -> ls.Graph:
    options = {"optimizer": SGD} | options
    return ls.train_step(model(), loss=ls.loss.softmax_cross_entropy("logits", "label"), **options)


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.Generator(np.random.PCG64(3))
    return [
        (random.standard_normal((BATCH, 12)).astype(np.float32), random.integers(0, 5, BATCH)) for _ in range(STEPS)
    ]


def train(world: ls.Communicator, **options: Any) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The results of the steps on this rank, and the final states and averages."""
    exe = ls.compile(step_of(**options), world=world, threads=1)
    share = BATCH // world.size
    rows = slice(world.rank * share, (world.rank + 1) * share)
    results = [exe(x=x[rows], label=label[rows]) for x, label in batches()]
    exe.check_replicas()
    return results, dict(exe.state)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_as_pytorch(name: str, ranks: int) -> None:
    expected = EXPECTED[name]
    by_rank = run_in_threads(ranks, lambda world: train(world, **RECIPES[name]))
    assert len(by_rank) == ranks
    for results, states in by_rank:
        np.testing.assert_allclose([each["loss"] for each in results], expected["losses"], rtol=2e-5)
        assert ("gradient_norm" in results[0]) == ("norms" in expected)
        if "norms" in expected:
            np.testing.assert_allclose([each["gradient_norm"] for each in results], expected["norms"], rtol=2e-5)
        for state, value in expected["states"].items():
            np.testing.assert_allclose(states[state], value, rtol=1e-4, atol=2e-6, err_msg=state)
        assert ("fc1.bias/average" in states) == ("averages" in expected)
        for state, value in expected.get("averages", {}).items():
            np.testing.assert_allclose(states[f"{state}/average"], value, rtol=1e-4, atol=2e-6, err_msg=state)
            assert not np.array_equal(states[f"{state}/average"], states[state])


# --- Groups


def test_each_group_has_settings_and_states_of_its_own() -> None:
    step = step_of(optimizer=ls.optim.SGD(0.1, momentum=0.9), groups=GROUPS)
    assert step.settings == {
        "optimizer/*.bias/learning_rate": 0.2,
        "optimizer/fc2*/learning_rate": 0.05,
        "optimizer/fc2*/beta1": 0.9,
        "optimizer/fc2*/beta2": 0.999,
        "optimizer/fc2*/weight_decay": 0.01,
        "optimizer/learning_rate": 0.1,
        "optimizer/momentum": 0.9,
    }
    kept = {each.name for each in step.states if "/" in each.name}
    assert kept == {
        "fc1.weight/momentum",
        "fc3.weight/momentum",
        "fc2.weight/adam_m",
        "fc2.weight/adam_v",
        "optimizer/step",
    }
    exe = ls.compile(step, threads=1)
    for value in (0.0, rising := ls.schedule.linear(0.0, 0.1, 10)):
        with raises(
            "several settings are called lr: optimizer/*.bias/learning_rate, optimizer/fc2*/learning_rate, optimizer/learning_rate; "
            'give the full name, as in exe.settings["optimizer/*.bias/learning_rate"] = 0.1, or set all, as in exe.set(lr=0.1)'
        ):
            exe.settings["lr"] = value
    exe.set(**{"optimizer/*.bias/learning_rate": rising})  # as the message suggests; the rate is 0 in the first step
    before = dict(exe.state)
    x, label = batches()[0]
    exe(x=x, label=label)
    moved = {name for name, value in exe.state.items() if "/" not in name and not np.array_equal(value, before[name])}
    assert moved == {"fc1.weight", "fc2.weight", "fc3.weight"}


def test_groups_that_count_steps_share_the_count() -> None:
    both = step_of(optimizer=ls.optim.Adam(0.01), groups={"*.bias": ls.optim.Adam(0.01)})
    one = step_of(optimizer=ls.optim.Adam(0.01))
    exes = [ls.compile(each, threads=1) for each in (both, one)]
    for x, label in batches():
        assert exes[0](x=x, label=label)["loss"] == exes[1](x=x, label=label)["loss"]
    assert exes[0].state["optimizer/step"] == STEPS
    assert all(np.array_equal(value, exes[0].state[name]) for name, value in exes[1].state.items())


def test_a_group_follows_its_schedule() -> None:
    rate = ls.schedule.step(0.2, every=2, gamma=0.5)
    exe = ls.compile(step_of(groups={"*.bias": ls.optim.SGD(rate)}), threads=1)
    x, label = batches()[0]
    for at in range(5):
        exe(x=x, label=label)
        assert exe.settings["optimizer/*.bias/learning_rate"] == rate(at)
    assert exe.settings["optimizer/learning_rate"] == 0.5


def test_an_optimizer_to_which_groups_leave_no_state_follows_nothing() -> None:
    rate = ls.schedule.step(0.2, every=2, gamma=0.5)
    exe = ls.compile(step_of(optimizer=ls.optim.SGD(rate), groups={"*": ls.optim.SGD(0.1)}), threads=1)
    assert dict(exe.settings) == {"optimizer/*/learning_rate": 0.1}
    x, label = batches()[0]
    assert exe(x=x, label=label)["loss"] != exe(x=x, label=label)["loss"]


def test_the_first_pattern_that_matches_counts() -> None:
    step = step_of(groups={"fc1.bias": ls.optim.Lion(), "*.bias": ls.optim.Adagrad(0.1)})
    kept = {each.name for each in step.states if "bias/" in each.name}
    assert kept == {"fc1.bias/lion_m", "fc2.bias/adagrad_sum", "fc3.bias/adagrad_sum"}


def test_wrong_groups() -> None:
    with raises(
        "groups: no trained state that is in no earlier group is named 'fc9*' or matches it; the trained states are fc1"
    ):
        step_of(groups={"fc9*": SGD})
    with raises("groups: no trained state that is in no earlier group is named 'fc1.bias' or matches it"):
        step_of(groups={"*.bias": SGD, "fc1.bias": SGD})
    with raises("groups: no trained state", "'fc1.bias'", "trained states are fc1.weight, fc2"):
        step_of(groups={"fc1.bias": SGD}, frozen=["fc1.bias"])
    with raises("the optimizer of group '*.bias' is the class SGD, expected one with its options, such as SGD()"):
        step_of(groups={"*.bias": ls.optim.SGD})
    with raises("unknown optimizer 0.1 of group '*.bias'. lockstep.optim has SGD, "):
        step_of(groups={"*.bias": 0.1})
    with raises("groups is [", "expected optimizers by name or pattern of states"):
        step_of(groups=[("*.bias", SGD)])
    with raises("groups: a pattern is 1, expected text"):
        step_of(groups={1: SGD})
    with raises("groups: a pattern is empty"):
        step_of(groups={"": SGD})


# --- Clipping


def test_the_limit_is_a_setting_and_may_follow_a_schedule() -> None:
    schedule = ls.schedule.linear(0.5, 0.1, 4)
    assert step_of(clip=ls.clip.value(0.25)).settings["clipping/limit"] == 0.25
    assert step_of(clip=ls.clip.value(schedule)).settings["clipping/limit"] == schedule(0)
    scheduled = ls.compile(step_of(clip=ls.clip.global_norm(schedule)), threads=1)
    by_hand = ls.compile(step_of(clip=ls.clip.global_norm(1.0)), threads=1)
    for at, (x, label) in enumerate(batches()):
        by_hand.set(limit=schedule(at))
        assert scheduled(x=x, label=label)["loss"] == by_hand(x=x, label=label)["loss"]
        assert scheduled.settings["clipping/limit"] == schedule(at)


@pytest.mark.parametrize("clip", [ls.clip.value(1e9), ls.clip.norm(1e9), ls.clip.global_norm(1e9)], ids=lambda c: c.by)
def test_a_limit_that_nothing_reaches_changes_nothing(clip: ls.clip.Clip) -> None:
    clipped, plain = ls.compile(step_of(clip=clip), threads=1), ls.compile(step_of(), threads=1)
    for x, label in batches():
        assert clipped(x=x, label=label)["loss"] == plain(x=x, label=label)["loss"]


def test_a_gradient_that_is_no_number_is_not_hidden() -> None:
    x, label = batches()[0]
    x[0, 0] = np.nan
    for clip in (ls.clip.value(1.0), ls.clip.norm(1.0), ls.clip.global_norm(1.0)):
        exe = ls.compile(step_of(clip=clip), threads=1)
        exe(x=x, label=label)
        assert np.isnan(exe.state["fc1.weight"]).any(), clip.by


def test_wrong_limits() -> None:
    for wrong in (0, -1, float("nan"), float("inf")):
        with raises("clip.norm: limit is", "expected a finite number above 0"):
            ls.clip.norm(wrong)
    with raises("clip.value: limit is 'x', expected a number"):
        ls.clip.value("x")
    with raises("clip.global_norm: limit is 0, expected a finite number above 0"):
        ls.clip.global_norm(lambda step: 0)
    with raises("clip is 1.0, expected one of lockstep.clip"):
        step_of(clip=1.0)
    exe = ls.compile(step_of(clip=ls.clip.value(1.0)), threads=1)
    with raises("setting clipping/limit is 0, expected a finite number above 0"):
        exe.set(limit=0)


def test_a_model_with_a_result_of_that_name() -> None:
    text = """graph @f(%x: f32[4,3] split(0), state %w: f32[3,2]) -> (logits: f32[4,2] split(0), gradient_norm: f32[4,2] split(0)) {
      %z = matmul %x, %w : f32[4,2]
      return %z, %z
    }"""
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    with raises("gradient_norm"):
        ls.train_step(ls.parse(text), loss, SGD, clip=ls.clip.global_norm(1.0), keep_results=True)
    ls.train_step(ls.parse(text), loss, SGD, clip=ls.clip.global_norm(1.0))  # that result is dropped


# --- Averages


def test_averages_begin_as_the_weights_and_follow() -> None:
    exe = ls.compile(step_of(average=lambda step: 0.0), threads=1)
    first = dict(exe.state)
    for x, label in batches():
        exe(x=x, label=label)
    for name in ("fc1.weight", "fc3.bias"):
        assert np.array_equal(exe.state[f"{name}/average"], first[name])
        assert not np.array_equal(exe.state[name], first[name])


def test_a_number_that_is_none_reaches_no_average_that_takes_nothing_of_it() -> None:
    exe = ls.compile(step_of(average=lambda step: float(step == 0)), threads=1)
    x, label = batches()[0]
    exe(x=x, label=label)
    after = exe.state["fc1.weight"]
    assert np.array_equal(exe.state["fc1.weight/average"], after)
    exe(x=np.full_like(x, np.nan), label=label)
    assert np.isnan(exe.state["fc1.weight"]).any()
    assert np.array_equal(exe.state["fc1.weight/average"], after)


def test_they_stand_for_the_weights_in_an_evaluation() -> None:
    exe = ls.compile(step_of(average=ls.average.exponential(0.9)), threads=1)
    for x, label in batches():
        exe(x=x, label=label)
    averaged = exe.state.averaged()
    assert set(averaged) == {name for name in exe.state if not name.endswith("/average")}
    assert np.array_equal(averaged["fc1.weight/momentum"], exe.state["fc1.weight/momentum"])
    evaluated = ls.compile(model(), threads=1)
    for name in evaluated.state:
        assert np.array_equal(averaged[name], exe.state[f"{name}/average"])
    evaluated.state.update({name: averaged[name] for name in evaluated.state})
    x, _ = batches()[0]
    on_weights = ls.compile(model(), threads=1)
    on_weights.state.update({name: exe.state[name] for name in on_weights.state})
    assert not np.array_equal(evaluated(x=x)["logits"], on_weights(x=x)["logits"])


def test_frozen_states_have_none_and_stay_what_they_are() -> None:
    exe = ls.compile(step_of(average=ls.average.stochastic(0), frozen=["fc1*"]), threads=1)
    assert {name for name in exe.state if name.endswith("/average")} == {
        f"fc{i}.{part}/average" for i in (2, 3) for part in ("weight", "bias")
    }
    x, label = batches()[0]
    exe(x=x, label=label)
    assert np.array_equal(exe.state.averaged()["fc1.weight"], exe.state["fc1.weight"])


def test_wrong_averages() -> None:
    with raises("average is 0.9, expected one of lockstep.average, such as"):
        step_of(average=0.9)
    with raises("average is <function exponential", "which gives", "at step 0, expected one of lockstep.average"):
        step_of(average=ls.average.exponential)  # the function is not called
    with raises("which gives 1.5 at step 0, expected"):
        step_of(average=lambda step: 1.5)
    for wrong in (1, -0.1, float("nan")):
        with raises("average.exponential: decay is", "expected at least 0 and below 1"):
            ls.average.exponential(wrong)
    assert [ls.average.exponential(0)(step) for step in (0, 5)] == [1, 1], "the average is the weights themselves"
    with raises("average.stochastic: start is -1, expected at least 0"):
        ls.average.stochastic(-1)
    with raises("average.stochastic: every is 0, expected at least 1"):
        ls.average.stochastic(0, every=0)
    exe = ls.compile(step_of(average=lambda step: 1.0 + step), threads=1)
    x, label = batches()[0]
    exe(x=x, label=label)
    with raises("averaging/weight is 2, expected", "from 0 to 1"):
        exe(x=x, label=label)
    with raises("the step keeps no averages; make it with train_step(average="):
        ls.compile(training(), threads=1).state.averaged()


# --- Samples that do not fill a batch


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_an_epoch_counts_each_sample_once(ranks: int) -> None:
    """Padded batches with weights: the sum over an epoch is that of the samples, for any number of ranks."""
    random = np.random.Generator(np.random.PCG64(4))
    x, label = random.standard_normal((BATCH + 7, 12)).astype(np.float32), random.integers(0, 5, BATCH + 7)
    loss = ls.loss.softmax_cross_entropy("logits", "label", sample_weight="weight")

    def epoch(world: ls.Communicator) -> tuple[float, float]:
        """The mean loss and the accuracy of the untrained model."""
        step = ls.train_step(model(), loss, ls.optim.SGD(0.0), keep_results=True)
        exe = ls.compile(step, world=world, threads=1)
        mean, accuracy = ls.metrics.Mean(), ls.metrics.Accuracy()
        for samples, labels, weights in ls.data.batches(x, label, size=BATCH, world=world, last="pad"):
            results = exe(x=samples, label=labels, weight=weights)
            accuracy.add(results["logits"], labels, weights)
            total = sum(float(part) for part in world.gather_bytes(str(weights.sum()).encode()))
            mean.add(results["loss"], total / world.size)  # equal on each rank
        return mean.compute(world), accuracy.compute(world)

    logits = ls.compile(ls.load_onnx(MLP, dims={"batch": len(x)}), threads=1)(x=x)["logits"].astype(np.float64)
    of_sample = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(x)), label]
    for found, accuracy in run_in_threads(ranks, epoch):
        assert found == pytest.approx(of_sample.mean(), rel=1e-6)
        assert accuracy == pytest.approx(np.mean(logits.argmax(axis=1) == label))


def test_padding_trains_no_weight() -> None:
    """A step of a padded batch is a step of only the samples in it."""
    x, label = batches()[0]
    loss = ls.loss.softmax_cross_entropy("logits", "label", sample_weight="weight")
    padded = ls.compile(ls.train_step(model(), loss, SGD), threads=1)
    ((samples, labels, weights),) = ls.data.batches(x[:5], label[:5], size=BATCH, last="pad")
    padded(x=samples, label=labels, weight=weights)
    few = ls.load_onnx(MLP, dims={"batch": 5})
    alone = ls.compile(ls.train_step(few, ls.loss.softmax_cross_entropy("logits", "label"), SGD), threads=1)
    alone(x=x[:5], label=label[:5])
    for name, value in alone.state.items():
        np.testing.assert_allclose(padded.state[name], value, rtol=1e-5, atol=1e-7, err_msg=name)
