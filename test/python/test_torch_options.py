"""Every option of torch.nn that changes PyTorch's results changes Lockstep's too, or Lockstep refuses it.

The table is torch_options.py, functions without a module are in torch_functions.py, hooks, modes and the like in
torch_specials.py. Refusals and known differences are in torch_outcomes.py: a list that may only become shorter.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.nn import functional as F

import torch_cases
import torch_functions
import torch_options
import torch_specials
from torch_cases import Part, Subject
from torch_outcomes import DIFFERS, REFUSED, REFUSED_BY_TORCH

AT_ONCE = 40  # cases per export
ALONE = ("numpy() of a value",)  # torch exports it in another mode, which cannot export all of the others

Make = Callable[[], nn.Module]
SUBJECTS = [*torch_options.MODULES, *torch_functions.FUNCTIONS]
CASES: dict[str, Make] = {
    **{case.name: lambda case=case: Part(case) for subject in SUBJECTS for case in torch_cases.cases_of(subject)},
    **torch_specials.SPECIALS,
}
DRAWS: dict[str, Make] = {
    **{
        case.name: lambda case=case: Part(case)
        for subject in SUBJECTS
        if subject.draws
        for case in torch_cases.draws_of(subject)
    },
    **torch_specials.DRAWN,
}


def listed(name: str, outcomes: Iterable[str]) -> str | None:
    """The key for a case: its name, or a prefix of its name followed by an asterisk."""
    return next((key for key in outcomes if name == key or (key[-1] == "*" and name.startswith(key[:-1]))), None)


def agreeing(cases: Iterable[str]) -> list[str]:
    return [name for name in cases if not listed(name, REFUSED) and not listed(name, DIFFERS)]


def chunks(names: Sequence[str]) -> list[list[str]]:
    others = [name for name in names if name not in ALONE]
    together = [others[start : start + AT_ONCE] for start in range(0, len(others), AT_ONCE)]
    return [*together, *([name] for name in names if name in ALONE)]


def shared_out(names: Sequence[str]) -> list[object]:
    """Chunks of names. `make test` runs a third of them."""
    marks = (), pytest.mark.everything, pytest.mark.everything
    return [pytest.param(chunk, marks=marks[i % 3], id=id_of(chunk)) for i, chunk in enumerate(chunks(names))]


def id_of(chunk: list[str]) -> str:
    return f"{chunk[0]} to {chunk[-1]}".replace("[", "(").replace("]", ")")


def test_nothing_is_said_of_what_is_no_case() -> None:
    names = [*CASES, *DRAWS]
    assert len(names) == len(set(names))
    for key in [*REFUSED, *DIFFERS]:
        assert any(listed(name, [key]) for name in names), key
    assert not [name for name in names if listed(name, REFUSED) and listed(name, DIFFERS)]


def test_all_cases_have_a_gradient() -> None:
    parts = {name: CASES[name]() for name in CASES if name not in torch_specials.SPECIALS}
    assert [name for name, part in parts.items() if part.factor == 1] == ["F.one_hot()", "F.one_hot(num_classes=5)"]


# --- Cases


Outcomes = dict[str, str]


def options_become(names: Sequence[str]) -> Outcomes:
    return become(names, CASES, torch_cases.differences, torch_cases.outcome)


def draws_become(names: Sequence[str]) -> Outcomes:
    return become(names, DRAWS, torch_cases.spread_differences, torch_cases.spread_outcome)


def become(
    names: Sequence[str],
    cases: dict[str, Make],
    differences: Callable[[Sequence[nn.Module]], list[str]],
    outcome: Callable[[Make], str],
) -> Outcomes:
    """The outcomes of cases, run as one module; if that raises an error, one by one."""
    try:
        found = differences([cases[name]() for name in names])
    except Exception as error:
        outcomes = {name: outcome(cases[name]) for name in names}
        if any(found.startswith(("refused: ", "raises ")) for found in outcomes.values()):
            return outcomes
        raise AssertionError("the cases fail together, but none of them fails alone") from error
    return {name: what and f"differs: {what}" for name, what in zip(names, found, strict=True)}


def assert_none(outcomes: Outcomes) -> None:
    wrong = [f"{name}: {what}" for name, what in outcomes.items() if what]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("names", shared_out(agreeing(CASES)))
def test_options_train_as_in_pytorch(names: list[str]) -> None:
    assert_none(options_become(names))


@pytest.mark.parametrize("names", shared_out(agreeing(DRAWS)))
def test_draws_have_the_mean_and_spread_of_those_of_pytorch(names: list[str]) -> None:
    assert_none(draws_become(names))


def refused() -> Iterator[object]:
    """The refused cases. `make test` runs the first case of each entry that Lockstep itself refuses; `make
    test-everything` runs all.
    """
    seen: set[str] = set()
    for name in [*CASES, *DRAWS]:
        key = listed(name, REFUSED)
        if key is not None:
            marks = [pytest.mark.everything] if key in seen or key in REFUSED_BY_TORCH else []
            seen.add(key)
            yield pytest.param(name, REFUSED[key], marks=marks)


@pytest.mark.parametrize(("name", "words"), refused())
def test_what_is_refused_says_so(name: str, words: str) -> None:
    found = torch_cases.outcome(CASES[name]) if name in CASES else torch_cases.spread_outcome(DRAWS[name])
    assert found.startswith("refused: "), found or "agrees"
    assert words in found


def differing(cases: Iterable[str]) -> list[list[str]]:
    """Chunks of cases, and separately each case that raises an error that is not Lockstep's."""
    found = {name: DIFFERS[key] for name in cases if (key := listed(name, DIFFERS)) is not None}
    raising = [name for name, what in found.items() if what.startswith("raises ")]
    return [*chunks([name for name in found if name not in raising]), *([name] for name in raising)]


@pytest.mark.parametrize("names", differing(CASES), ids=id_of)
def test_what_is_known_to_differ_does(names: list[str]) -> None:
    agree = [name for name, found in options_become(names).items() if not found.startswith(("differs: ", "raises "))]
    assert not agree, f"no longer in DIFFERS: {agree}"


@pytest.mark.parametrize("names", differing(DRAWS), ids=id_of)
def test_draws_that_are_known_to_differ_do(names: list[str]) -> None:
    agree = [name for name, found in draws_become(names).items() if not found.startswith(("differs: ", "raises "))]
    assert not agree, f"no longer in DIFFERS: {agree}"


# --- Completeness


def parameters_of(function: object) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    named = [each for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return {each.name: each for each in named if each.name != "self"}


def options_of(module: type[nn.Module]) -> set[str]:
    if issubclass(module, nn.RNNBase):
        own = {"nonlinearity"} if module is nn.RNN else set()
        sizes = set() if module is nn.LSTM else {"proj_size"}
        return (set(parameters_of(nn.RNNBase.__init__)) | own) - {"mode"} - sizes
    return set(parameters_of(module.__init__)) - {"args", "kwargs"}


def forward_options_of(module: type[nn.Module]) -> set[str]:
    return {name for name, each in parameters_of(module.forward).items() if each.default is not each.empty}


def subjects_of(function: object) -> list[Subject]:
    return [subject for subject in SUBJECTS if subject.function is function]


MODULES = {
    name: each
    for name, each in vars(nn).items()
    if inspect.isclass(each) and issubclass(each, nn.Module) and name not in torch_options.MODULES_LEFT_OUT
}


@pytest.mark.parametrize("name", MODULES)
def test_all_options_of_a_module_are_tried(name: str) -> None:
    subjects = subjects_of(MODULES[name])
    assert subjects, f"torch.nn.{name} is neither tried nor left out"
    tried = {option for subject in subjects for option in (*subject.options, *subject.left_out)}
    missing = options_of(MODULES[name]) - tried - torch_options.NOWHERE_AN_OPTION.keys()
    assert not missing, f"{name}: {missing}"
    forward = {option for subject in subjects for option in subject.forward}
    missing = forward_options_of(MODULES[name]) - forward
    assert not missing, f"{name}.forward: {missing}"


FUNCTIONS = {
    name: each
    for name, each in vars(F).items()
    if callable(each) and not inspect.isclass(each) and name[0] != "_" and getattr(each, "__module__", "") != "typing"
}


def function_parameters(name: str) -> list[str]:
    """The parameters of a function. For functions in C++ they are taken from the first lines of the docstring."""
    function = FUNCTIONS[name]
    text = (inspect.getdoc(function) or "").split("->")[0]
    if "*args" in str(inspect.signature(function)) if _has_signature(function) else True:
        written = re.match(rf"\s*{name}\((.*?)\)", text, re.DOTALL)
        return re.findall(r"(\w+)\s*(?:=[^,)]*)?(?:,|$)", written[1]) if written else []
    return list(parameters_of(function))


def _has_signature(function: object) -> bool:
    try:
        inspect.signature(function)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in torch_functions.FUNCTIONS_LEFT_OUT])
def test_all_options_of_a_function_are_tried(name: str) -> None:
    subjects = subjects_of(FUNCTIONS[name])
    module = torch_functions.SAME_AS_MODULE.get(name)
    assert subjects or module, f"torch.nn.functional.{name} is neither tried nor left out"
    known = {*torch_options.NOWHERE_AN_OPTION, *torch_functions.BEYOND_MODULE.get(name, ())}
    for subject in subjects:
        known |= {*subject.options, *subject.left_out, *subject.arguments}
        known |= set(function_parameters(name)[: len(subject.inputs)])
    if module is not None:
        of_module = MODULES[module]
        known |= options_of(of_module) | set(parameters_of(of_module.forward)) | torch_functions.OF_MODULES
    missing = [each for each in function_parameters(name) if each not in known]
    assert not missing, f"{name}: {missing}"
