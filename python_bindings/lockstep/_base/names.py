"""Suggestions for unknown names. The words of other libraries lead to the names of this package."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

# Options of PyTorch, Keras and MXNet, in the form of `plain`, with the names that they may have here.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "accumulategradbatches": ("accumulate",),
    "alpha": ("rho",),
    "amp": ("precision",),
    "axis": ("dims", "dim"),
    "batchsize": ("size",),
    "beta": ("momentum", "beta1"),
    "ctx": ("backend",),
    "decay": ("weight_decay",),
    "device": ("backend",),
    "dtype": ("precision",),
    "ema": ("average",),
    "eps": ("epsilon",),
    "epsilon": ("eps",),
    "gamma1": ("alpha",),
    "gradientaccumulationsteps": ("accumulate",),
    "input": ("logits", "prediction"),
    "kernelsize": ("window",),
    "label": ("target",),
    "labels": ("target",),
    "lr": ("learning_rate",),
    "optim": ("optimizer",),
    "paramgroups": ("groups",),
    "rho": ("alpha",),
    "shuffle": ("seed",),
    "tmax": ("steps",),
    "totalsteps": ("steps",),
    "wd": ("weight_decay",),
    "weight": ("class_weights",),
    "ypred": ("logits", "prediction"),
    "ytrue": ("target",),
}


FROM_TORCH = "lockstep.from_torch(module, example_inputs)"


def is_torch_module(value: object) -> bool:
    """True if `value` is a torch.nn.Module. Does not import torch."""
    return any(f"{kind.__module__}.{kind.__name__}" == "torch.nn.modules.module.Module" for kind in type(value).__mro__)


def suggest(name: object, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Returns the end of a message about a name that is not in `known`: "; is softmax_cross_entropy meant?", or ".".

    Args:
      elsewhere: names of other libraries, in the form of `plain`, with the names here.
    """
    near = nearest(name, known, elsewhere or {}) if isinstance(name, str) else None
    return f"; is {near} meant?" if near else "."


def suggest_option(name: str, known: Iterable[str]) -> str:
    """Does the same for an option, including the names that other libraries give it."""
    names = list(known)
    here = next((each for each in _OPTIONS.get(plain(name), ()) if each in names), None)
    return suggest(name, names, {plain(name): here} if here else None)


def plain(name: str) -> str:
    """The form in which names are compared: CrossEntropyLoss, cross_entropy_loss and cross_entropy are equal."""
    letters = name.lower().replace("_", "")
    return letters.removesuffix("loss") or letters


def nearest(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str | None:
    """Returns the name in `known` that is the likely intention; None if there is none."""
    names, asked = list(known), plain(name)
    by_plain = {plain(each): each for each in reversed(names)}
    if asked in by_plain or asked in elsewhere:
        return by_plain.get(asked) or elsewhere[asked]
    near = difflib.get_close_matches(name, names, n=1) or difflib.get_close_matches(asked, by_plain, n=1)
    if near:
        return by_plain.get(near[0], near[0])
    parts = [each for each in names if len(name) > 3 and (name in each or (len(each) > 3 and each in name))]
    return parts[0] if len(parts) == 1 else None


def guard(module: dict[str, Any], elsewhere: Mapping[str, str] | None = None, later: ModuleType | None = None) -> None:
    """Completes a module, given as its globals(), whose public names are its `__all__`.

    An unknown name in the module, or an unknown option of one of its functions, classes or methods, is then an error
    that suggests a name. dir() lists the public names only.

    Args:
      later: a module whose public names this one has too, each from its first use on.
    """
    path, names = module["__name__"], module["__all__"]

    def missing(name: str) -> Any:
        if later is not None and name in later.__all__:
            return module.setdefault(name, _guarded(getattr(later, name), name, path))
        if name.startswith("_"):  # Python itself asks for such names
            raise AttributeError(f"module {path!r} has no attribute {name!r}")
        if module.get("__path__") and importlib.util.find_spec(f"{path}.{name}"):
            raise AttributeError(f"{path}.{name} is a module that has to be imported: import {path}.{name}")
        raise AttributeError(f"{path} has no {name!r}{suggest(name, names, elsewhere)} There are: {', '.join(names)}")

    module["__getattr__"] = missing
    module["__dir__"] = lambda: sorted(names)
    for name in names:
        if later is None or name not in later.__all__:
            module[name] = _guarded(module[name], name, path)


def _guarded(value: Any, name: str, path: str) -> Any:
    """Returns the function with hints, or the class with hints in its methods. Other values stay as they are."""
    if inspect.isfunction(value):
        guarded = _with_hints(value, name)
        guarded.__module__ = path  # pickle finds the wrapper here, not the wrapped function
        return guarded
    if inspect.isclass(value) and value.__module__.startswith("lockstep."):
        for method, function in list(vars(value).items()):
            if inspect.isfunction(function) and (method == "__init__" or not method.startswith("_")):
                called = name if method == "__init__" else f"{name}.{method}"
                setattr(value, method, _with_hints(function, called))
    return value


def check_options(called: str, given: Iterable[str], options: Iterable[str]) -> None:
    """Raises a TypeError for the first given name that is not among the options."""
    for name in given:
        if name not in options:
            raise TypeError(
                f"{called}() has no option {name!r}{suggest_option(name, options)} It has: {', '.join(options)}"
            )


def _with_hints(function: Callable[..., Any], called: str) -> Callable[..., Any]:
    takes_any = bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS)  # the function checks them itself
    options = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not takes_any:
            check_options(called, kwargs, options)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            is_of_call = error.__traceback__ is not None and error.__traceback__.tb_next is None
            if is_of_call and any(is_torch_module(each) for each in (*args, *kwargs.values())):
                raise TypeError(f"{error}; {FROM_TORCH} makes a lockstep.Graph of a module") from None
            raise

    return call
