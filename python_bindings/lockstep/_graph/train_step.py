"""The training step of a model."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from .. import _lockstep, optim
from .._base import checks
from .._base.errors import Error, listed
from .._base.log import warn_once
from .._lockstep import Graph
from ..clip import Clip
from ..loss import Loss, _checked


def train_step(
    model: Graph,
    loss: Loss,
    optimizer: optim.Optimizer | None,
    *,
    groups: Mapping[str, optim.Optimizer] | None = None,
    clip: Clip | None = None,
    precision: str = "f32",
    average: Callable[[int], float] | None = None,
    trained: Sequence[str] = (),
    frozen: Sequence[str] = (),
    keep_results: bool = False,
    accumulate: int = 1,
    batch_statistics: str = "global",
    dropout: str = "on",
    seed: int = 0,
    uneven: bool = False,
) -> Graph:
    """Makes the training step of a model: loss, gradients, and the optimizer's update of each trained state.

    Batch normalisation is in training mode, whatever the file says. Its running statistics become states that the step
    updates. Dropout drops random values, which differ between calls. The model itself drops none.

    The random numbers of a step depend on its states `random/seed` and `random/step`, which counts the calls, and on
    the position of an element in the whole tensor. So n ranks draw the same numbers as one, and a step that continues
    from saved states draws the same numbers as without the interruption. A step that draws nothing has neither state.

    Args:
      model: with the states to train.
      loss: a loss of `lockstep.loss` over the global batch, or a sum such as `a + 0.1 * b`.
      optimizer: of `lockstep.optim`. Its numbers are `settings` of the step, under "optimizer/", which `Executable.set`
        changes between calls. Optional numbers that are 0 and follow no schedule, such as a weight decay, are no
        settings: that part of the update is left out. Schedules apply to the compiled step; the text of a step does not
        contain them. If None, nothing is updated, and the gradient of each trained state is a result, `grad/<state>`,
        beside `loss`, for users who update weights themselves, for example by a store of `lockstep.kv`.
      groups: optimizers of groups of states, by name or pattern, such as `{"*.bias": lockstep.optim.SGD(0.1)}`. The
        first pattern that matches a state applies. The settings of this group are under "optimizer/*.bias/".
      clip: of `lockstep.clip`: a limit on the gradients of all groups together.
      precision: "bf16" or "f16": matrix products, convolutions and attention compute in 16 bits, and values between
        them are stored in 16 bits where little accuracy is lost. Weights, gradients and optimizer states stay f32
        (docs/precision.md). f16 has a small range, so the loss is scaled before gradients are computed, by the state
        `loss_scale/scale`. It is 65536 at first, and doubles after 2000 steps in a row with finite gradients. A step
        with a gradient that is not finite changes no weight and no optimizer state, and halves the scale.
        "loss_scale/growth", "loss_scale/backoff" and "loss_scale/interval" are settings. The result `loss` and the
        input of `clip` are not scaled.
      average: of `lockstep.average`, or any function of the step with values from 0 to 1: the part of each trained
        state's average that the step replaces by the state. The average of a state `w` is the state `w/average`.
        `exe.state.averaged()` returns it in place of `w`.
      trained: names of the states to train, or patterns such as "fc*.weight". If empty, all float states on which the
        loss depends. A name or pattern that matches no state may match `model.constants`: float initializers that are
        not states, and that then become states.
      frozen: names or patterns of states that are not trained.
      keep_results: keep the model's own results beside `loss`.
      accumulate: the number of micro-batches in which the step computes its batch, one after the other. Only the
        activations of one micro-batch are in memory. Gradients are summed before the optimizer, clipping and averages.
        So the step computes, up to rounding, the same as with the whole batch, even if micro-batches have different
        numbers of counted samples, and draws the same random numbers. It divides each rank's batch: row i is in
        micro-batch i modulo `accumulate`. Batch normalisation is different: it uses the statistics of a micro-batch,
        and the running statistics change once a step, by the mean over the micro-batches. On several ranks it requires
        `batch_statistics="rank"`. With `uneven`, statistics cover all ranks and micro-batches, so neither restriction
        applies. A loss that compares the samples of a batch with each other computes micro-batches more than once, and
        requires one rank.
      batch_statistics: of batch normalisation. "global": the statistics of the global batch, so that n ranks compute
        the same as one. "rank": the statistics of each rank's share, which saves communication but depends on the
        number of ranks. A model that concatenates batches before it normalises them always uses the statistics of all
        ranks and micro-batches.
      dropout: "off" trains a model with dropout without dropping values.
      seed: a whole number of 64 bits. Steps with different seeds draw different numbers.
      uneven: batches need not be full. A rank may call the step with fewer rows than its share, or with none. The step
        then equals that of one rank with all existing rows. `Executable.joined` calls it until no rank has rows left.
        The step gets the input `rows`, f32[batch], which is 1 for an existing row and 0 for padding, and which calls
        make themselves. Its result `rows`, f32[], is the number of rows on all ranks. If there are no rows, no state
        changes, and the loss is not a number. Statistics of batch normalisation cover the existing rows of all ranks
        and, with `accumulate`, of all micro-batches. Padding draws random numbers too, so the numbers depend on the
        distribution of rows. An op that mixes rows, other than batch normalisation, is an error, and so is a loss that
        the model computes itself.

    Returns:
      A graph with the result `loss`, a scalar of the prediction's dtype.

    Raises:
      Error: names the wrong result, state or option, or the op that has no gradient.
    """
    checks.graph("the model", model)
    _checked("loss", loss)
    trained, frozen = checks.names("trained", trained), checks.names("frozen", frozen)
    checks.choice("batch_statistics", batch_statistics, ("global", "rank"))
    if checks.flag("uneven", uneven) and batch_statistics == "rank":
        raise Error(
            'uneven and batch_statistics="rank" exclude each other: a rank without rows has no statistics of its own'
        )
    checks.choice("dropout", dropout, ("on", "off"))
    checks.choice("precision", precision, ("f32", "bf16", "f16"))
    choices = {} if optimizer is None and groups is None else optim._groups(optimizer, groups)
    if clip is not None:
        checks.instance("clip", clip, Clip, "one of lockstep.clip, such as lockstep.clip.global_norm(1.0)")
    if average is not None:
        _check_average(average)
    step = _lockstep._train_step(
        model,
        loss._choices(),
        [(states, *each._choice()) for states, each in choices.items()],
        ("", 1.0) if clip is None else (clip.by, clip._first()),
        average is not None,
        trained,
        frozen,
        checks.flag("keep_results", keep_results),
        checks.integer("accumulate", accumulate, 1),
        batch_statistics,
        dropout == "on",
        checks.integer("seed", seed),
        precision,
        checks.flag("uneven", uneven),
    )
    _say_what_is_supposed(step, trained)
    _say_what_looks_alike(model, {"trained": trained, "frozen": frozen, "groups": [each for each in choices if each]})
    # Groups may leave no state, and so no settings, to the optimizer.
    settings = step.settings
    step._schedules = {name: each for name, each in _schedules_of(choices, clip, average).items() if name in settings}
    return step


def _say_what_is_supposed(step: Graph, trained: Sequence[str]) -> None:
    """Warns about states that are trained although neither the file nor `trained` says that they are parameters."""
    known = {name for name in step.trained if any(fnmatch.fnmatchcase(name, pattern) for pattern in trained)}
    names = [name for name in step._supposed_parameters if name in step.trained and name not in known]
    if names:
        warn_once(
            f"{step.name}: the file does not say which initializers are parameters; {listed(names)} are trained. Choose by `trained` "
            "or `frozen`"
        )


def _say_what_looks_alike(model: Graph, patterns: Mapping[str, Sequence[str]]) -> None:
    """Warns about similar names that a pattern such as "*.bias" does not match, such as in_proj_bias."""
    names = [state.name for state in model.states]
    for option, given in patterns.items():
        for pattern in given:
            word = pattern.removeprefix("*.")
            if word == pattern or not word.isidentifier():
                continue
            matched = [name for name in names if any(fnmatch.fnmatchcase(name, each) for each in given)]
            left_out = [name for name in names if name not in matched and name.endswith(f"_{word}")]
            if left_out:
                warn_once(f'{model.name}: "{pattern}" of {option} matches no {listed(left_out)}; "*_{word}" would')


def _check_average(average: Any) -> None:
    first = average(0) if callable(average) else None
    if not isinstance(first, Real) or not 0 <= first <= 1:
        found = f"which gives {first!r} at step 0, " if callable(average) else ""
        raise Error(
            f"average is {average!r}, {found}expected one of lockstep.average, such as lockstep.average.exponential(0.999), "
            "or a function from the step to a number from 0 to 1"
        )


def _schedules_of(
    optimizers: Mapping[str, optim.Optimizer], clip: Clip | None, average: Callable[[int], float] | None
) -> dict[str, Callable[[int], float]]:
    """Returns the settings of a training step that follow a schedule, by name."""
    schedules = {
        f"optimizer/{states}/{option}" if states else f"optimizer/{option}": schedule
        for states, each in optimizers.items()
        for option, schedule in each._schedules().items()
    }
    if clip is not None and callable(clip.limit):
        schedules["clipping/limit"] = clip.limit
    if average is not None:
        schedules["averaging/weight"] = average
    return schedules
