"""PyTorch cases: a module or function with one changed option, trained for some steps in PyTorch and in Lockstep.

This file makes cases of the table in `torch_options.py` and compares them. Many cases form one module, because even a
small export takes half a second.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import statistics
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import lockstep as ls

STEPS = 3
RATE = 0.5
MOVE = 0.05  # the largest change of an element in the first step
DRAWS = 300


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor that a case needs: a parameter if it is trained, else a constant."""

    make: Callable[[], torch.Tensor]
    trained: bool


def normal(*shape: int) -> Value:
    return Value(lambda: torch.randn(shape), True)


def between(low: float, high: float, *shape: int) -> Value:
    return Value(lambda: low + (high - low) * torch.rand(shape), True)


def spread(*shape: int) -> Value:
    """Values whose distances are larger than a step's changes, so that their order stays."""
    count = int(np.prod(shape))
    return Value(lambda: (torch.randperm(count) / 4.0 - count / 8.0 + 0.1).reshape(shape), True)


def constant(data: Any) -> Value:
    return Value(lambda: torch.as_tensor(data), False)


def below(count: int, *shape: int) -> Value:
    """Whole numbers from 0 to `count` - 1."""
    return Value(lambda: torch.randint(count, shape), False)


def signs(*shape: int) -> Value:
    return Value(lambda: torch.randint(2, shape) * 2.0 - 1.0, False)


@dataclass(frozen=True)
class Given:
    """One value of an option, with the inputs and other arguments that it requires."""

    value: Any
    inputs: Sequence[Any] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    forward: Mapping[str, Any] = field(default_factory=dict)


def given(value: Any, /, *inputs: Any, forward: Mapping[str, Any] | None = None, **arguments: Any) -> Given:
    return Given(value, inputs or None, arguments, forward or {})


@dataclass(frozen=True)
class Subject:
    """A module class or a function: the arguments of its base case, and the other values of its options."""

    function: Any
    inputs: Sequence[Any]
    arguments: Mapping[str, Any]
    options: Mapping[str, Sequence[Any]]
    forward: Mapping[str, Sequence[Any]]  # options of a module's `forward`
    left_out: Mapping[str, str]
    draws: bool  # draws random numbers in training mode

    @property
    def is_module(self) -> bool:
        return inspect.isclass(self.function) and issubclass(self.function, nn.Module)

    @property
    def name(self) -> str:
        return self.function.__name__ if self.is_module else f"F.{self.function.__name__}"


def of(
    function: Any,
    *inputs: Any,
    base: Mapping[str, Any] | None = None,
    forward: Mapping[str, Sequence[Any]] | None = None,
    left_out: Mapping[str, str] | None = None,
    draws: bool = False,
    **options: Sequence[Any],
) -> Subject:
    return Subject(function, inputs, base or {}, options, forward or {}, left_out or {}, draws)


@dataclass(frozen=True)
class Case:
    """A call of a module or function in training or evaluation mode, in which one option differs from the subject's
    base.
    """

    name: str
    subject: Subject
    arguments: Mapping[str, Any]
    inputs: Sequence[Any]
    forward: Mapping[str, Any]
    training: bool
    shows_input: bool  # its result includes the input after the call


def cases_of(subject: Subject) -> Iterator[Case]:
    """The cases, the base first. Modules that draw are in evaluation mode; functions that draw have no cases here."""
    if not subject.draws or subject.is_module:
        yield from _cases(subject, not subject.draws)


def draws_of(subject: Subject) -> Iterator[Case]:
    """The cases of a subject that draws, in training mode."""
    for case in _cases(subject, True) if subject.draws else ():
        yield dataclasses.replace(case, name=f"{case.name} in training")


def _cases(subject: Subject, training: bool) -> Iterator[Case]:
    yield Case(f"{subject.name}()", subject, subject.arguments, subject.inputs, {}, training, False)
    seen: set[str] = set()
    for where, options in (("", subject.options), (".forward", subject.forward)):
        for option, values in options.items():
            for place, value in enumerate(values):
                value = value if isinstance(value, Given) else Given(value)
                name = f"{subject.name}{where}({_text(option, value, place)})"
                name += f" #{place}" if name in seen else ""
                seen.add(name)
                yield _changed(subject, name, option, value, bool(where), training)


def _changed(subject: Subject, name: str, option: str, value: Given, of_forward: bool, training: bool) -> Case:
    change = {option: value.value}
    arguments = {**subject.arguments, **value.arguments, **({} if of_forward else change)}
    forward = {**value.forward, **(change if of_forward else {})}
    inputs = subject.inputs if value.inputs is None else value.inputs
    return Case(name, subject, arguments, inputs, forward, training, option == "inplace")


def _text(option: str, value: Given, place: int) -> str:
    """Returns "option=value, other=1", with the other arguments that the option requires, if they can be written."""
    given_too = {**value.arguments, **value.forward}
    texts = [f"{option}={_written(value.value) or f'#{place}'}"]
    return ", ".join(
        texts + [f"{name}={_written(each) or '...'}" for name, each in given_too.items() if name != option]
    )


def _written(value: Any) -> str:
    if callable(value) and not isinstance(value, Value):
        return getattr(value, "__name__", type(value).__name__)
    leaves = pytree.tree_leaves(value)
    return repr(value) if all(isinstance(leaf, (int, float, str, type(None), torch.dtype)) for leaf in leaves) else ""


class Part(nn.Module):
    """A case as a module without inputs: the inputs of the call are its parameters and buffers, and its result is a
    loss.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        torch.manual_seed(zlib.crc32(case.name.encode()))
        self.shows_input = case.shows_input
        self.inputs, self.keywords = self._kept("input", list(case.inputs)), {}
        if case.subject.is_module:
            self.module = case.subject.function(**_made(case.arguments))
            _disturb(self.module)
            self.keywords = self._kept("forward", dict(case.forward))
        else:
            self.module = case.subject.function
            self.keywords = self._kept("option", dict(case.arguments))
        self.train(case.training)
        with torch.no_grad():
            outputs = copy.deepcopy(self).outputs()
        for place, output in enumerate(outputs):
            self.register_buffer(f"target{place}", torch.randn_like(output))
        self.factor = 1.0
        self.factor = _factor(copy.deepcopy(self))

    def _kept(self, name: str, values: Any) -> Any:
        """`values`, with each Value replaced by the name of a parameter or buffer."""
        leaves, structure = pytree.tree_flatten(values, is_leaf=lambda leaf: isinstance(leaf, Value))
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Value):
                own, value = f"{name}{place}", leaf.make()
                self.register_parameter(own, nn.Parameter(value)) if leaf.trained else self.register_buffer(own, value)
                leaves[place] = _Kept(own)
        return pytree.tree_unflatten(leaves, structure)

    def _fetched(self, values: Any) -> Any:
        def fetch(leaf: Any) -> Any:
            tensor = getattr(self, leaf.name) if isinstance(leaf, _Kept) else None
            return leaf if tensor is None else tensor.clone() if isinstance(tensor, nn.Parameter) else tensor

        return pytree.tree_map(fetch, values)

    def outputs(self) -> list[torch.Tensor]:
        inputs = self._fetched(self.inputs)
        result = self.module(*inputs, **self._fetched(self.keywords))
        shown = [result, inputs] if self.shows_input else [result]
        return [leaf.float() for leaf in pytree.tree_leaves(shown) if isinstance(leaf, torch.Tensor)]

    def forward(self) -> torch.Tensor:
        losses = [F.mse_loss(output, getattr(self, f"target{place}")) for place, output in enumerate(self.outputs())]
        return torch.stack(losses).sum() * self.factor


def _factor(module: nn.Module) -> float:
    """The factor of a module's loss with which a step of SGD changes the parameter that moves most by MOVE."""
    loss = module()
    if not loss.requires_grad:
        return 1.0
    loss.backward()
    gradients = [each.grad.to_dense() for each in module.parameters() if each.grad is not None and each.numel() > 0]
    largest = max(float(each.abs().max()) for each in gradients)
    return MOVE / RATE / largest if largest else 1.0


@dataclass(frozen=True)
class _Kept:
    name: str


def _made(values: Any) -> Any:
    """Makes the values for a case: new tensors, and copies of modules."""

    def make(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return leaf.make()
        return copy.deepcopy(leaf) if isinstance(leaf, nn.Module) else leaf

    return pytree.tree_map(make, values, is_leaf=lambda leaf: isinstance(leaf, Value))


def _disturb(module: nn.Module) -> None:
    """Moves parameters and running statistics away from their initial zeros and ones."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.add_(torch.rand_like(buffer), alpha=0.2)


class Whole(nn.Module):
    """Parts side by side: the sum of their losses, and each loss."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self) -> tuple[torch.Tensor, ...]:
        losses = [part() for part in self.parts]
        return (torch.stack(losses).sum(), *losses)


def compiled(whole: Whole, rate: float = RATE) -> ls.Executable:
    names = ["total", *(f"loss{place}" for place in range(len(whole.parts)))]
    model = ls.from_torch(whole, [], output_names=names)
    step = ls.train_step(model, ls.loss.result("total"), ls.optim.SGD(rate), keep_results=True)
    return ls.compile(step, threads=1)


def differences(parts: Sequence[nn.Module]) -> list[str]:
    """The difference from PyTorch after some steps of SGD, for each part; "" if there is none.

    Raises:
      Error: if Lockstep refuses one of them.
    """
    whole = Whole(parts)
    exe = compiled(whole)
    before = {name: tensor.detach().clone() for name, tensor in _tensors(whole)}
    optimizer = torch.optim.SGD([each for each in whole.parameters() if each.requires_grad], RATE)
    found = ["" for _ in parts]
    for step in range(STEPS):
        total, *losses = whole()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        ours = exe()
        for place, loss in enumerate(losses):
            theirs, mine = loss.item(), float(ours[f"loss{place}"])
            if not abs(mine - theirs) <= 1e-4 * abs(theirs) + 1e-5:
                found[place] = found[place] or f"loss {step} is {mine:.6g}, PyTorch's {theirs:.6g}"
    for name, tensor in _tensors(whole):
        _, place, own = name.split(".", 2)
        what = _difference(own, exe.state.get(name, None), tensor.detach(), before[name])
        found[int(place)] = found[int(place)] or what
    return found


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    statistics_of_norms = (item for item in module.named_buffers() if "running_" in item[0])
    return itertools.chain(module.named_parameters(), statistics_of_norms)


def _difference(name: str, ours: np.ndarray | None, theirs: torch.Tensor, before: torch.Tensor) -> str:
    if theirs.numel() == 0:
        return ""
    if theirs.is_complex():
        theirs, before = torch.view_as_real(theirs), torch.view_as_real(before)
    moved = float((theirs - before).abs().max())
    if ours is None:
        return "" if moved == 0 else f"{name} is not trained, in PyTorch it is"
    off = float((torch.from_numpy(np.array(ours, float)) - theirs).abs().max())
    allowed = 1e-3 * moved + 3e-6 * max(1.0, float(theirs.abs().max()))
    return "" if off <= allowed else f"{name} is off by {off:.2g} where PyTorch moves it by {moved:.2g}"


def outcome(make: Callable[[], nn.Module]) -> str:
    """The outcome of one part: "" if it agrees with PyTorch, else "refused: …", "raises …" or "differs: …"."""
    return _outcome(make, differences)


def _outcome(make: Callable[[], nn.Module], compare: Callable[[Sequence[nn.Module]], list[str]]) -> str:
    part = make()
    try:
        found = compare([part])[0]
    except ls.Error as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 (any error that is not a lockstep.Error)
        return f"raises {type(error).__name__}: {error}"
    return found and f"differs: {found}"


def spread_differences(parts: Sequence[nn.Module]) -> list[str]:
    """The difference from PyTorch in mean and spread of the losses of many calls, for each part; "" if there is none."""
    whole = Whole(parts)
    exe = compiled(whole, 0.0)
    results = [exe() for _ in range(DRAWS)]
    torch.manual_seed(0)
    with torch.no_grad():
        losses = [[float(loss) for loss in whole()[1:]] for _ in range(DRAWS)]
    return [
        _spread_difference([float(result[f"loss{place}"]) for result in results], [of[place] for of in losses])
        for place in range(len(parts))
    ]


def _spread_difference(ours: list[float], theirs: list[float]) -> str:
    (mine, deviation), (other, other_deviation) = ((statistics.mean(of), statistics.stdev(of)) for of in (ours, theirs))
    off = abs(mine - other) > 5 * ((deviation**2 + other_deviation**2) / DRAWS) ** 0.5 + 1e-5
    if off or not 1 / 1.5 <= (deviation + 1e-6) / (other_deviation + 1e-6) <= 1.5:
        return f"the loss is {mine:.4g} ± {deviation:.2g}, PyTorch's {other:.4g} ± {other_deviation:.2g}"
    return ""


def spread_outcome(make: Callable[[], nn.Module]) -> str:
    """Like `outcome`, for parts that draw random numbers."""
    return _outcome(make, spread_differences)
