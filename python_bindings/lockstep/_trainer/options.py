"""Support for MXNet's terms in `Trainer`: optimizers by name, and stores as the ranks that train together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .. import optim
from .._base import checks, job
from .._base import names as _names
from .._base.errors import Error
from .._graph.train_step import uneven_of as _is_uneven
from .._lockstep import Communicator

_ONE_PROCESS = ("local", "device")
_SYNCHRONOUS = ("dist_sync", "dist_device_sync", "dist")
_SERVED = "parameter_server"  # a strategy of compile

# MXNet's names of optimizers that have other names here, with their options.
_NAMES = {"nag": ("SGD", {"nesterov": True, "momentum": 0.9}), "adagrad": ("Adagrad", {}), "rmsprop": ("RMSprop", {})}
_DEFAULTS = {"sgd": {"learning_rate": 0.01}, "nag": {"learning_rate": 0.01}}  # for options that are required here
_SPELLINGS = {
    "lr": "learning_rate",
    "wd": "weight_decay",
    "gamma1": "alpha",
    "rho": "alpha",
    "lr_scheduler": "learning_rate",
}
_OWN = {"model", "loss", "optimizer", "optimizer_params", "kvstore", "dims", "uneven"}  # options of Trainer itself
_DEVICES = ("devices", "ctx", "context")
_ELSEWHERE = {
    "rescale_grad": "the loss is a mean over the global batch, so nothing has to be rescaled",
    "clip_gradient": "Trainer(..., clip=lockstep.clip.value(...)) clips gradients",
    "param_dict": "Trainer(..., groups={...}) gives states an optimizer of their own",
    "param_idx2name": "states have names",
    "multi_precision": 'Trainer(..., precision="bf16") keeps weights in f32',
}


def optimizer_of(optimizer: Any, params: Any) -> optim.Optimizer:
    """Returns the optimizer for a name, with options of MXNet or of this package, or the given lockstep.optim one.

    Raises:
      Error: a name or option is unknown. The message lists the known ones.
    """
    if not isinstance(optimizer, str):
        if params is not None and isinstance(optimizer, optim.Optimizer):
            raise Error(
                f"Trainer: {optimizer!r} has its own options, but optimizer_params is also given: leave out one"
            )
        return optim._groups(optimizer, None)[""]
    if not isinstance(params, (Mapping, type(None))):
        raise Error(
            f'Trainer: optimizer_params is {params!r}, expected options by name, such as {{"learning_rate": 0.1}}'
        )
    classes = {name.lower(): name for name in optim.__all__ if name != "Optimizer"}
    name = optimizer.lower()
    kind, fixed = _NAMES.get(name, (classes.get(name), {}))
    if kind is None:
        suggestion = _names.suggest(name, {*classes, "nag"})
        raise Error(
            f"Trainer: there is no optimizer {optimizer!r}{suggestion} There are: {', '.join(sorted({*classes, 'nag'}))}"
        )
    options = {**_DEFAULTS.get(name, {}), **fixed, **_respelt(kind, params or {})}
    known = getattr(optim, kind)._definition["options"]
    names = {each["name"] for each in known} | {*optim._spellings(known)}
    unknown = [option for option in options if option not in names]
    if unknown:
        raise Error(
            f"Trainer: the optimizer {optimizer} has no option {unknown[0]!r}{_names.suggest_option(unknown[0], names)} "
            f"It has: {', '.join(sorted(names))}"
        )
    return getattr(optim, kind)(**options)


def check_is_no_optimizer(loss: Any) -> None:
    """Detects an optimizer in the place of the loss, where MXNet's Trainer has it.

    Raises:
      Error: shows how to call this Trainer.
    """
    names = {*(each.lower() for each in optim._CLASSES), *_NAMES}
    if isinstance(loss, optim.Optimizer) or (isinstance(loss, str) and loss.lower() in names):
        raise Error(
            f"Trainer: the loss is {loss!r}, an optimizer; expected Trainer(model, loss, optimizer), such as "
            'Trainer(model, lockstep.loss.softmax_cross_entropy(), "sgd", {"learning_rate": 0.1}). A store updates parameters by '
            "gradients of your own: lockstep.kv.create(...).set_optimizer(...)"
        )


def _respelt(kind: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options under this package's names."""
    options: dict[str, Any] = {}
    has = {each["name"] for each in getattr(optim, kind)._definition["options"]}
    for given, value in params.items():
        name = checks.text("Trainer: the name of an option of optimizer_params", given)
        if _says_nothing(name, value):
            continue
        if name in _ELSEWHERE:
            raise Error(f"Trainer: optimizer_params has {name}: {_ELSEWHERE[name]}")
        option = name if name in has else _SPELLINGS.get(name, name)
        if option in options:
            raise Error(f"Trainer: optimizer_params has {option} twice, also as {name}: leave out one")
        options[option] = value
    return options


def _says_nothing(name: str, value: Any) -> bool:
    return (name == "rescale_grad" and value == 1) or (name in ("lr_scheduler", "clip_gradient") and value is None)


def uneven_of(uneven: Any, strategy: Any) -> bool:
    """Returns true if batches need not be full. If `uneven` is None, this depends on the strategy of compile.

    Raises:
      Error: `uneven` is True, and the strategy requires full batches.
    """
    is_served = strategy == _SERVED
    if uneven is None:
        return not is_served
    is_uneven = _is_uneven("Trainer: uneven", uneven)
    if is_uneven and is_served:
        raise Error(
            f'Trainer: uneven={uneven!r} does not go with strategy="{_SERVED}": a step without a row on any worker updates nothing, and what '
            "is pushed to servers is an update. Without uneven, only full batches are used for training"
        )
    return is_uneven


def world_of(kvstore: Any, strategy: Any = None, replicated: bool = False) -> Communicator:
    """Returns the ranks that train together by a store: one rank for None and for kinds of one process.

    Args:
      strategy: of compile. Servers update the weights of a job's workers, not of a single process.
      replicated: of compile. Each process of a job may train its own model.

    Raises:
      Error: the workers of the store do not wait for each other; `kvstore` is not a store; or one process of a job
        trains alone.
    """
    if isinstance(kvstore, Communicator):
        return kvstore
    if kvstore is None:
        return _one_process(kvstore, strategy, replicated)
    kind = kvstore if isinstance(kvstore, str) else getattr(kvstore, "type", None)
    if not isinstance(kind, str):
        raise Error(
            f'Trainer: kvstore is {kvstore!r}, expected a store, its kind, such as "dist_sync", or a Communicator'
        )
    if "async" in kind:
        raise Error(
            f"Trainer: a store of the kind {kind} is not supported: a step of all workers is one program, in which they wait for "
            'each other; use "dist_sync", or, in a loop of your own, compile(strategy="parameter_server", asynchronous=True)'
        )
    if kind not in _ONE_PROCESS + _SYNCHRONOUS:
        raise Error(
            f"Trainer: there is no store of the kind {kind!r}; there are {', '.join(_ONE_PROCESS + _SYNCHRONOUS)}"
        )
    if getattr(kvstore, "_compression", None) is not None:
        raise Error(
            'Trainer: the store compresses pushes, but a step pushes nothing; wire="bf16" or wire="int8" of Trainer compresses '
            "the messages of its ranks"
        )
    if kind in _ONE_PROCESS:
        return _one_process(kind, strategy, replicated)
    return Communicator.from_environment() if isinstance(kvstore, str) else kvstore._world


def _one_process(kind: str | None, strategy: Any, replicated: bool) -> Communicator:
    if strategy == _SERVED:
        raise Error(
            f'Trainer: strategy="{_SERVED}" needs a job with several workers, and kvstore={kind!r} is one process; give '
            'kvstore="dist_sync", in a job that `lockstep launch -n N -s S PROGRAM` starts'
        )
    if not replicated:
        job.check_is_one(f"Trainer: kvstore={kind!r}", 'kvstore="dist_sync"')
    return Communicator.single()


def divided(
    options: Mapping[str, Any], train_step: Callable[..., Any], compile: Callable[..., Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divides options into those of train_step and those of compile, by the functions' keywords.

    Raises:
      Error: an option names devices, or a Trainer does not support it.
      TypeError: neither function has the option.
    """

    def keywords(function: Callable[..., Any]) -> set[str]:
        parameters = inspect.signature(function).parameters.values()
        return {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY}

    of_step, of_compile = keywords(train_step) - {"uneven", "keep_results"}, keywords(compile) | {"backend"}
    for name in options:
        if name in _DEVICES:
            raise Error(
                f"Trainer: {name}: a worker of a compiled step is one device. Start a rank for each by `mpirun -n N`: ranks of a host reduce first "
                "among themselves, in shared memory. On a CPU, threads=N is one device of N cores. For several devices in one "
                "process, whose gradients a store sums, use lockstep.kv.Devices"
            )
        if name not in of_step | of_compile:
            suggestion = _names.suggest_option(name, sorted(of_step | of_compile | _OWN))
            raise TypeError(f"Trainer: {name!r} is an option of neither train_step nor compile{suggestion}")
    if options.get("asynchronous", False) is not False:
        raise Error(
            "Trainer: with asynchronous=True each worker has its own program, but a Trainer's workers share each batch: train in your "
            'own loop, or only with strategy="parameter_server"'
        )
    return (
        {name: value for name, value in options.items() if name in of_step},
        {name: value for name, value in options.items() if name in of_compile},
    )
