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
from .._compile.mistakes import check_second_names, warn_of_dropout, wrong_labels
from .._exchange.define import Definition, Exchange
from .._exchange.define import checked as exchanges
from .._lockstep import Graph
from ..clip import Clip
from ..loss import Loss, _checked


def train_step(
    model: Graph,
    loss: Loss,
    optimizer: optim.Optimizer | None,
    *,
    groups: Mapping[str | tuple[str, ...], optim.Optimizer] | None = None,
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
    uneven: bool | str = False,
    exchange: Exchange | Definition[...] | Mapping[str, Exchange | Definition[...]] | None = None,
) -> Graph:
    """Makes the training step of a model: loss, gradients, and the optimizer's update of each trained state.

    Batch normalisation is in training mode, whatever the file says. Its running statistics become states that the step
    updates. Dropout drops random values, which differ between calls. The model itself drops none.

    The random numbers of a step depend on its states `random/seed` and `random/step`, which counts the calls, and on
    the position of an element in the whole tensor. So n ranks draw the same numbers as one, and a step that continues
    from saved states draws the same numbers as without the interruption. A step that draws nothing has neither state.

    Args:
      model: with the states to train.
      loss: of `lockstep.loss`, over the global batch; one, or a sum such as `a + 0.1 * b`.
      optimizer: of `lockstep.optim`. Its numbers are `settings` of the step, under "optimizer/", which `Executable.set` changes
        between calls; but for those that need not be given and are 0, such as a weight decay, and follow no schedule: that part is
        left out. Those that follow a schedule do so when the step is compiled; a text of the step knows no schedules. With None nothing
        is updated: beside `loss` the gradient of each trained state is a result, `grad/<state>`, for those who update weights
        themselves, as by a store of `lockstep.kv`.
      groups: states that have an optimizer of their own: by name or pattern, of which the first that matches counts, such as
        `{"*.bias": lockstep.optim.SGD(0.1)}`. The settings of this one are under "optimizer/*.bias/". A key may be a tuple of names and
        patterns, each of which then has that optimizer, and settings of its own.
      clip: of `lockstep.clip`: a limit to the gradients of all groups together.
      precision: "bf16" or "f16": products of matrices, convolutions and attention compute in 16 bits, and what is between them
        lies in 16 bits, where that loses little; weights, gradients and what the optimizer keeps stay f32 (docs/precision.md).
        f16, whose range is small, scales the loss before gradients are taken, by the state `loss_scale/scale`: 65536 at first,
        doubled after 2000 steps in a row whose gradients were finite. A step whose gradients are not all finite changes no
        weight and nothing that the optimizer keeps, and halves it. "loss_scale/growth", "loss_scale/backoff" and
        "loss_scale/interval" are settings. The result `loss` and what `clip` sees are not scaled.
      average: of `lockstep.average`, or any function of the step from 0 to 1: the part of an average of each trained state that
        the step replaces by the state. The average of a state `w` is the state `w/average`; `exe.state.averaged()` has it in the
        place of `w`.
      trained: names of the states to train, or patterns such as "fc*.weight"; all float states that the loss depends on if
        empty. A name or pattern that matches no state may be of `model.constants`: float initializers that are no states,
        which become states then.
      frozen: names or patterns of states that are not trained.
      keep_results: keep the model's own results beside `loss`.
      accumulate: in how many micro-batches the step computes its batch, one after the other, each with the activations of that one
        alone in memory. Gradients are added up, and the optimizer, clipping and averages see the sum: the step computes, to
        rounding, what one of the whole batch does, whatever of it counts in which micro-batch, and draws the same numbers. It
        divides each rank's batch, of which row i is in micro-batch i modulo `accumulate`. Batch normalisation is the exception: it is by the statistics of a micro-batch, and the running
        statistics move once a step, by the mean of the micro-batches'; several ranks need `batch_statistics="rank"` for it. With `uneven` its
        statistics are those of all micro-batches and ranks, and neither holds. A loss
        that compares the samples of a batch with each other computes micro-batches more than once, and one rank alone can.
      batch_statistics: of batch normalisation: "global" are those of the global batch, so that n ranks compute what one
        would; "rank" are those of each rank's share, which saves communication and changes with the number of ranks. What
        concatenates batches before it normalises them is normalised as a whole, of all ranks and micro-batches, either way.
      dropout: "off" trains a model that drops values at random without doing so. Other random numbers that `forward` draws, such as
        the paths that a drop path takes, are drawn all the same, which is a warning where the module draws them in training mode alone.
      seed: a whole number of 64 bits. Steps with other seeds draw other numbers.
      uneven: batches need not be full. A rank may call the step with fewer rows than its share, or with none, and the step is that
        of one rank with all rows that there were; `Executable.joined` does so until all ranks have run out. The step gets the
        input `rows`, f32[batch], 1 for a row that is there and 0 for one that pads, which calls make by themselves, and the result `rows`, f32[],
        how many there were on all ranks; a model with an input `rows` of its own is an error. If there were none, no state changes, and the loss is not a number. Statistics of
        batch normalisation are of the rows that are there, on all ranks; with `accumulate`, of all micro-batches. What pads draws numbers, too, so that draws depend on how rows
        are shared. An op that mixes rows, other than batch normalisation, is an error, and so is a loss that the model computes itself.
        "measured": the same, and the ranks' shares of a batch follow their speeds. They are equal at first. `Executable.balance` measures
        and changes them, at the end of `Executable.joined` by itself, and `lockstep.data.batches(..., shares=exe)` gives each rank its rows.
      exchange: how the ranks bring the gradients of some states together, by name or pattern, of which the first that
        matches counts: one of `lockstep.exchange`, such as `{"*.weight": lockstep.exchange.power_sgd(rank=4)}`. The others, and all
        if it is None, are summed by an all_reduce (docs/exchanges.md).

    Returns:
      A graph with the result `loss`, a scalar of the prediction's dtype.

    Raises:
      Error: names the wrong result, state or option, or the op that has no gradient.
    """
    checks.graph("the model", model)
    _checked("loss", loss)
    trained, frozen = checks.names("trained", trained), checks.names("frozen", frozen)
    checks.choice("batch_statistics", batch_statistics, ("global", "rank"))
    is_uneven = uneven_of("uneven", uneven)
    if is_uneven and batch_statistics == "rank":
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
    given = {"trained": trained, "frozen": frozen, "groups": [each for each in choices if each]}
    check_second_names(model, given)
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
        is_uneven,
        [] if exchange is None else exchanges(exchange),
    )
    _say_what_is_supposed(step, trained)
    _say_what_looks_alike(model, given)
    warn_of_dropout(model, dropout)
    if uneven == "measured":
        step._measured_in = accumulate
    step._wrong_labels = wrong_labels(model, loss)
    # Groups may have left no state to the optimizer, and so no settings.
    settings = step.settings
    step._schedules = {name: each for name, each in _schedules_of(choices, clip, average).items() if name in settings}
    return step


def uneven_of(what: str, value: Any) -> bool:
    """True if batches need not be full, for a value of the option `uneven`."""
    is_measured = isinstance(value, str) and value == "measured"
    if isinstance(value, str) and not is_measured:
        raise Error(f'{what} is {value!r}, expected True or False, or "measured"')
    return is_measured or checks.flag(what, value)


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
