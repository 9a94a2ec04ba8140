"""Complete published recipes: 50 steps on 1, 2 and 4 ranks, compared with PyTorch's numbers (published_recipes.py)."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest

import architectures
import lockstep as ls
import published_recipes as recipes
from ranks import run_in_threads

EXPECTED = json.loads(recipes.EXPECTED.read_text())
LEFT = recipes.STEPS - recipes.WARM_UP


def warmed(schedule: ls.schedule.Schedule) -> ls.schedule.Schedule:
    return schedule.after_warmup(recipes.WARM_UP, 0.1)


def without_decay(model: ls.Graph, optimizer: Any) -> dict[str, Any]:
    """A group for each weight without decay."""
    weights = [each for each in model.states if ".running_" not in each.name]
    return {each.name: optimizer for each in weights if not recipes.decays(len(each.shape))}


def step_of(name: str, batch: int = recipes.BATCH, uneven: bool = False) -> ls.Graph:
    model = ls.load_onnx(architectures.model_bytes(f"{recipes.NAMES[name]}.export"), {"batch": batch})
    train_step = functools.partial(ls.train_step, uneven=uneven)
    loss, optim, schedule = ls.loss.softmax_cross_entropy, ls.optim, ls.schedule
    if name == "resnet":
        rate = warmed(schedule.cosine(0.02, LEFT))
        sgd = lambda decay: optim.SGD(rate, momentum=0.9, nesterov=True, weight_decay=decay)
        groups = without_decay(model, sgd(0.0))
        return train_step(model, loss("output", "label", label_smoothing=0.1), sgd(1e-4), groups=groups)
    if name == "bert":
        rate = warmed(schedule.polynomial(2e-3, LEFT))
        adamw = lambda decay: optim.AdamW(rate, weight_decay=decay)
        clip, groups = ls.clip.global_norm(1.0), without_decay(model, adamw(0.0))
        return train_step(model, loss("output", "label"), adamw(0.01), groups=groups, clip=clip)
    if name == "gpt":
        rate = warmed(schedule.cosine(3e-3, LEFT, 3e-4))
        adamw = lambda decay: optim.AdamW(rate, betas=(0.9, 0.95), weight_decay=decay)
        clip, groups = ls.clip.global_norm(1.0), without_decay(model, adamw(0.0))
        tokens = loss("output", "label", ignore_index=recipes.IGNORED)
        return train_step(model, tokens, adamw(0.1), groups=groups, clip=clip, accumulate=2)
    if name == "unet":
        pixels = loss("output", "label", class_weights=recipes.CLASS_WEIGHTS)
        return train_step(model, pixels, optim.SGD(0.01, momentum=0.99))
    assert name == "lstm"
    sgd = optim.SGD(schedule.step(1.0, every=20, gamma=0.25))
    return train_step(model, loss("output", "label"), sgd, clip=ls.clip.global_norm(0.25))


def train(name: str, world: ls.Communicator) -> tuple[list[float], dict[str, bytes]]:
    """The losses, and the bits of all final states."""
    exe = ls.compile(step_of(name), world=world, threads=1)
    share = recipes.BATCH // world.size
    mine = slice(world.rank * share, (world.rank + 1) * share)
    losses = [
        float(exe(**{key: value[mine] for key, value in inputs.items()}, label=label[mine])["loss"])
        for inputs, label in recipes.batches(name)
    ]
    exe.check_replicas()
    return losses, {state: exe.state[state].tobytes() for state in exe.state}


@pytest.mark.parametrize("name", recipes.NAMES)
def test_any_number_of_ranks_trains_as_pytorch(name: str) -> None:
    results = {ranks: run_in_threads(ranks, lambda world: train(name, world)) for ranks in (1, 2, 4)}
    [(of_one, _)] = results[1]
    assert len(of_one) == recipes.STEPS and of_one[-1] < of_one[0]
    np.testing.assert_allclose(of_one, EXPECTED[name], rtol=1e-4)
    for ranks, of_ranks in results.items():
        assert len(of_ranks) == ranks
        for result in of_ranks:
            assert not isinstance(result, Exception), result
            losses, states = result
            np.testing.assert_allclose(losses, of_one, rtol=1e-4, err_msg=f"{ranks} ranks")
            assert losses == of_ranks[0][0] and states == of_ranks[0][1]


@pytest.mark.parametrize("name", [name for name in recipes.NAMES if name != "bert"])
def test_ranks_with_different_numbers_of_rows_train_as_one_with_all(name: str) -> None:
    """Six rows in each step, on ranks with room for four or two. Not BERT: its exported file picks the mask from that
    of all rows.
    """
    rows, steps = 6, 4
    shares = {2: [[4, 2], [3, 3], [2, 4], [4, 2]], 4: [[2, 2, 2, 0], [1, 2, 2, 1], [0, 2, 2, 2], [2, 1, 1, 2]]}
    batches = recipes.batches(name)[:steps]

    def train_on(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray]]:
        alone = world.size == 1
        exe = ls.compile(step_of(name, rows if alone else recipes.BATCH, uneven=not alone), world=world, threads=1)
        losses = []
        for step, (inputs, label) in enumerate(batches):
            of_ranks = [rows] if alone else shares[world.size][step]
            begin = sum(of_ranks[: world.rank])
            mine = slice(begin, begin + of_ranks[world.rank])
            given = {key: value[mine] for key, value in inputs.items()}
            losses.append(float(exe(**given, label=label[mine])["loss"]))
        exe.check_replicas()
        return losses, dict(exe.state)

    losses, states = train_on(ls.Communicator.single())
    for ranks in shares:
        for found in run_in_threads(ranks, train_on):
            assert not isinstance(found, Exception), found
            np.testing.assert_allclose(found[0], losses, rtol=2e-4)
            for state, value in states.items():
                bound = 2e-4 * max(np.abs(value).max(), 1e-3)
                np.testing.assert_allclose(found[1][state], value, rtol=2e-4, atol=bound, err_msg=state)


def test_nothing_is_compiled_for_a_schedule() -> None:
    """The step is one program, and the rate is a setting of it."""
    exe = ls.compile(step_of("lstm"), threads=1)
    steps, rates = exe.steps, set()
    for inputs, label in recipes.batches("lstm")[:25]:
        exe(**inputs, label=label)
        rates.add(exe.settings["optimizer/learning_rate"])
    assert rates == {1.0, 0.25}
    assert exe.steps == steps
