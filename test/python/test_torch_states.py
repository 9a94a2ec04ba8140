"""Parameters of PyTorch modules become states, and go back by to_torch()."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import raises
from test_torch import stepped

torch = pytest.importorskip("torch")
nn = torch.nn
LOSS = ls.loss.softmax_cross_entropy("logits", "label")


def model_of(module: nn.Module, x: torch.Tensor) -> ls.Graph:
    return ls.from_torch(module, x, dims={"batch": x.shape[0]}, output_names=["logits"])


def zero(module: nn.Module) -> dict[str, torch.Tensor]:
    """Sets all parameters to zero, and returns their old values."""
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return before


def test_a_module_that_does_not_fit_stays_as_it_was() -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), torch.randn(6, 4)
    exe = ls.compile(ls.train_step(model_of(module, x), LOSS, ls.optim.SGD(0.1)))
    module.extra = nn.Linear(2, 2)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with raises("the executable has no state extra.weight, which is a parameter of Sequential"):
        ls.to_torch(exe, module)
    narrow = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with raises("1.weight is [2, 4], the state [3, 4]"):
        ls.to_torch(exe, narrow)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_parameter_without_a_dimension_is_trained() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.scale = nn.Linear(3, 4), nn.Parameter(torch.tensor(0.5))
            self.fixed = nn.Parameter(torch.tensor(2.0), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.fc(x) * self.scale * self.fixed).square().mean()

    module, x = Scaled(), torch.randn(4, 3)
    model = ls.from_torch(module, x, dims={"batch": 4}, output_names=["y"])
    assert model.constants == ["fixed"]
    exe = ls.compile(ls.train_step(model, ls.loss.result("y"), ls.optim.SGD(0.1)))
    exe(x=x)
    module(x).backward()
    expected = module.scale.item() - 0.1 * module.scale.grad.item()
    ls.to_torch(exe, module)
    assert module.scale.item() == pytest.approx(expected, abs=1e-6)


def test_ranks_that_draw_other_weights_are_told_of_seeds() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    steps = [ls.train_step(model_of(nn.Linear(4, 3), x), LOSS, ls.optim.SGD(0.1)) for _ in range(2)]
    for result in run_in_threads(2, lambda world: ls.compile(steps[world.rank], world=world)):
        message = str(result)
        assert "differs between rank 0 and rank 1; ranks that draw their weights need the same seed" in message
        assert "torch.manual_seed()" in message and "from_torch(..., world=world)" in message


def test_what_forward_does_not_use_is_a_state_that_stays() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(2, 2, dtype=torch.bfloat16)
            self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    module, x = Half(), torch.randn(6, 4)
    exe = ls.compile(ls.train_step(model_of(module, x), LOSS, ls.optim.AdamW(0.1, weight_decay=0.5)))
    exe(x=x, label=np.arange(6) % 3)
    before = zero(module)
    ls.to_torch(exe, module)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name]) == (not name.startswith("used")), name


@pytest.mark.parametrize("has_ml_dtypes", [True, False])
def test_bfloat16_goes_back_by_its_bits(has_ml_dtypes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = nn.Linear(3, 4).to(torch.bfloat16), torch.randn(4, 3, dtype=torch.bfloat16)
    exe = ls.compile(model_of(module, x))
    if not has_ml_dtypes:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    before = zero(module)
    ls.to_torch(exe, module)
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("dtypes", itertools.permutations([torch.bfloat16, torch.float16, torch.float32], 2), ids=str)
def test_states_go_into_a_module_of_another_dtype(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    made, other = nn.Linear(3, 4).to(dtypes[0]), nn.Linear(3, 4).to(dtypes[1])
    exe = ls.compile(model_of(made, torch.randn(4, 3, dtype=dtypes[0])))
    ls.to_torch(exe, other)
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, made.get_parameter(name).to(dtypes[1])), name


def test_what_is_frozen_in_pytorch_can_be_named_frozen_too() -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)), torch.randn(6, 4)
    module[0].requires_grad_(False)
    model = model_of(module, x)
    assert sorted(model.constants) == ["0.bias", "0.weight"]
    for frozen in ["0.weight", "0.*", "*.bias"]:
        step = ls.train_step(model, LOSS, ls.optim.SGD(0.1), frozen=[frozen])
        exe = ls.compile(step)
        exe(input=x, label=np.arange(6) % 3)
        changed = {name for name in exe.state if not np.array_equal(exe.state[name], model.initial_value(name))}
        assert changed == ({"1.weight"} if frozen == "*.bias" else {"1.weight", "1.bias"}), frozen
    with raises("frozen: no state of graph @main_graph is named '2.*'"):
        ls.train_step(model, LOSS, ls.optim.SGD(0.1), frozen=["2.*"])


def test_a_network_that_follows_another_is_set_by_the_program() -> None:
    class Follows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.target = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.online(x) - self.target(x).detach()).square().mean()

    torch.manual_seed(3)
    module, x = Follows(), torch.randn(6, 4)
    model = ls.from_torch(module, x, dims={"batch": 6}, output_names=["y"])
    exe = ls.compile(ls.train_step(model, ls.loss.result("y"), ls.optim.SGD(0.1)))
    optimizer = torch.optim.SGD(module.online.parameters(), 0.1)
    for _ in range(3):
        assert exe(x=x)["loss"] == pytest.approx(stepped(module, optimizer, x), abs=1e-6)
        for name in ("weight", "bias"):
            online, target = module.get_parameter(f"online.{name}"), module.get_parameter(f"target.{name}")
            target.data.lerp_(online.data, 0.25)
            state = exe.state[f"target.{name}"]
            exe.state[f"target.{name}"] = state + 0.25 * (exe.state[f"online.{name}"] - state)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(exe.state[name], parameter.detach(), atol=1e-6, err_msg=name)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda net: torch.compile(nn.DataParallel(net))])
def test_the_module_inside_of_a_wrapper_is_imported(wrap: Callable[[nn.Module], nn.Module]) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), torch.randn(6, 4)
    wrapped = wrap(module)
    model = model_of(wrapped, x)
    assert str(model) == str(model_of(module, x))
    exe = ls.compile(ls.train_step(model, LOSS, ls.optim.SGD(0.1)))
    exe(input=x, label=np.arange(6) % 3)
    ls.to_torch(exe, wrapped)
    for name, value in module.state_dict().items():
        if name in exe.state:
            np.testing.assert_array_equal(exe.state[name], value)
    assert "0.weight" in exe.state and "1.running_mean" in exe.state


def test_the_second_name_of_a_parameter_leads_to_the_first() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.tokens(ids))

    model = model_of(Tied(), torch.arange(4))
    assert [state.name for state in model.states] == ["tokens.weight"]
    sgd, said = (
        ls.optim.SGD(0.1),
        "head.weight is another name of tokens.weight; the state is called tokens.weight, so give that name",
    )
    for option in ({"groups": {"head.weight": sgd}}, {"frozen": ["head.weight"]}, {"trained": ["head.weight"]}):
        with raises(f"{next(iter(option))}: {said}"):
            ls.train_step(model, LOSS, sgd, **option)
    assert ls.train_step(model, LOSS, sgd, groups={"tokens.weight": ls.optim.SGD(0.2)}).trained == ["tokens.weight"]


def test_statistics_that_no_result_depends_on_are_noted() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm, self.unused = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.unused(x)
            return self.norm(self.fc(x))

    module, x = Unused(), torch.randn(6, 4)
    said = "no result depends on unused.running_mean, unused.running_var, which do not move as in PyTorch"
    assert model_of(module, x).notes == [said]
    assert said not in model_of(module.eval(), x).notes
