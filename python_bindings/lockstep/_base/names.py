"""Names that do not exist: which one was probably meant. Other libraries' words for a thing lead to this package's."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# Options of PyTorch, Keras and MXNet, by their form in `plain`, and what they are called here, where there is such an option.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "accumulategradbatches": ("accumulate",),
    "alpha": ("rho",),
    "amp": ("precision",),
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
    """Whether it is a torch.nn.Module; does not import torch."""
    return any(f"{kind.__module__}.{kind.__name__}" == "torch.nn.modules.module.Module" for kind in type(value).__mro__)


def meant(name: object, known: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """ "; is softmax_cross_entropy meant?" for a name that is not among `known`, or ".": what goes on a message about it.

    Args:
      elsewhere: what other libraries call a thing, by its form in `plain`, and what it is called here.
    """
    near = nearest(name, known, elsewhere or {}) if isinstance(name, str) else None
    return f"; is {near} meant?" if near else "."


def meant_option(name: str, known: Iterable[str]) -> str:
    """The same of an option, which other libraries may call otherwise."""
    names = list(known)
    here = next((each for each in _OPTIONS.get(plain(name), ()) if each in names), None)
    return meant(name, names, {plain(name): here} if here else None)


def plain(name: str) -> str:
    """As names are compared: CrossEntropyLoss, cross_entropy_loss and cross_entropy are one."""
    letters = name.lower().replace("_", "")
    return letters.removesuffix("loss") or letters


def nearest(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str | None:
    """The one among `known` that was probably meant."""
    names, asked = list(known), plain(name)
    by_plain = {plain(each): each for each in reversed(names)}
    if asked in by_plain or asked in elsewhere:
        return by_plain.get(asked) or elsewhere[asked]
    near = difflib.get_close_matches(name, names, n=1) or difflib.get_close_matches(asked, by_plain, n=1)
    if near:
        return by_plain.get(near[0], near[0])
    parts = [each for each in names if len(name) > 3 and (name in each or (len(each) > 3 and each in name))]
    return parts[0] if len(parts) == 1 else None


def guard(module: dict[str, Any], elsewhere: Mapping[str, str] | None = None) -> None:
    """Completes a module, given as its globals(), whose public names are its `__all__`.

    A name that it does not have, and an option that a function, a class or a method of it does not have, is then an error that says which
    is meant; and dir() lists the public names alone.
    """
    path, names = module["__name__"], module["__all__"]

    def missing(name: str) -> Any:
        if name.startswith("_"):  # Python itself asks for such names
            raise AttributeError(f"module {path!r} has no attribute {name!r}")
        if module.get("__path__") and importlib.util.find_spec(f"{path}.{name}"):
            raise AttributeError(f"{path}.{name} is a module that has to be imported: import {path}.{name}")
        raise AttributeError(f"{path} has no {name!r}{meant(name, names, elsewhere)} There are: {', '.join(names)}")

    module["__getattr__"] = missing
    module["__dir__"] = lambda: sorted([*names, *(name for name in module if name.startswith("__"))])
    for name in names:
        value = module[name]
        if inspect.isfunction(value):
            module[name] = _with_hints(value, name)
            module[name].__module__ = path  # where pickle finds this function, and not the one within
        elif inspect.isclass(value) and value.__module__.startswith("lockstep."):
            for method, function in list(vars(value).items()):
                if inspect.isfunction(function) and (method == "__init__" or not method.startswith("_")):
                    called = name if method == "__init__" else f"{name}.{method}"
                    setattr(value, method, _with_hints(function, called))


def check_options(called: str, given: Iterable[str], options: Iterable[str]) -> None:
    """A TypeError of the first of the given names that is no option of what is called."""
    for name in given:
        if name not in options:
            raise TypeError(
                f"{called}() has no option {name!r}{meant_option(name, options)} It has: {', '.join(options)}"
            )


def _with_hints(function: Callable[..., Any], called: str) -> Callable[..., Any]:
    takes_any = bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS)  # and checks them itself
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
