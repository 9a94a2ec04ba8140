"""Modules that torch cannot export: the error is short, starts with the reason, and has torch's own text on request."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from test_errors import raises
from test_torch import Net

torch = pytest.importorskip("torch")
nn, l1_loss = torch.nn, torch.nn.functional.l1_loss

PROGRAM = """
import lockstep, torch
class Branches(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x
lockstep.from_torch(Branches(), torch.randn(2, 3))
"""


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_the_reason_comes_first_and_the_rest_is_the_context(capfd: pytest.CaptureFixture[str]) -> None:
    with raises(
        "torch cannot export Branches: forward branches on the values of a tensor, which a graph cannot: GuardOnData",
        "(at test_torch_failures.py:",
        "in forward)",
    ) as caught:
        ls.from_torch(Branches(), torch.randn(2, 3))
    message = str(caught.value)
    assert "\n" not in message and len(message) < 300
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert isinstance(caught.value.__context__, torch.onnx.OnnxExporterError)
    assert len(str(caught.value.__context__)) > len(message)
    assert capfd.readouterr() == ("", "")


def test_an_operator_that_the_exporter_does_not_have_is_named_with_its_line() -> None:
    class Shuffles(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, torch.randperm(4)]

    place = line_of(Shuffles, "randperm").replace("(", "(at ")
    with raises("torch cannot export Shuffles: DispatchError: No ONNX function found for", "randperm", place):
        ls.from_torch(Shuffles(), torch.randn(4, 4))


class Masked(nn.Module):
    """The mean of the positive scores, as PyTorch's users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.fc(x).sum(1)
        return scores[scores > 0].mean()


class Looped(Masked):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)[torch.nonzero(x.sum(1) > 0)].sum()


def test_an_error_of_the_import_names_the_line() -> None:
    said = "how many elements a mask chooses depends on data, which no graph can; instead of t[mask].mean(), write"
    for module, text in ((Masked(), "scores > 0"), (Looped(), "torch.nonzero")):
        place = line_of(type(module), text).replace("(", "(at ")
        with raises("must be known before the program runs", place, said, "(t * mask).sum() / mask.sum()"):
            ls.from_torch(module, torch.randn(4, 4), dims={"batch": 4})


@pytest.mark.parametrize(("p", "rows"), [(2.0, 4), (2.0, 40), (1.0, 4), (3.0, 40)])
def test_distances_of_any_number_of_rows(p: float, rows: int) -> None:
    class Distances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = self.fc(x)
            return torch.cdist(z, z.flip(1), p=p).mean()

    module, x = Distances(), torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    model = ls.from_torch(module, x[:3], dims={"batch": rows}, output_names=["y"])
    found = ls.compile(ls.train_step(model, ls.loss.result("y"), None), threads=1)(x=x)
    expected = module(x)
    expected.backward()
    np.testing.assert_allclose(found["loss"], expected.detach(), rtol=1e-5)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(found[f"grad/{name}"], parameter.grad, rtol=1e-4, atol=1e-5, err_msg=name)
    assert "cdist" not in vars(torch._VF)


def test_a_mask_that_may_be_the_causal_one() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encoder(x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))

    with raises(
        "torch cannot export Encoder: torch tests if a mask is causal, which it cannot export; pass is_causal=True",
        "(at test_",
    ):
        ls.from_torch(Encoder(), torch.randn(2, 3, 8))


def test_a_program_that_fails_so_ends_with_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[-1].startswith("lockstep.Error: torch cannot export Branches: forward branches on the values")
    assert len(lines) < 20 and "def forward" not in done.stderr, done.stderr


def test_example_inputs_and_dimensions_that_do_not_fit() -> None:
    with raises("the example inputs do not fit Net.forward"):
        ls.from_torch(Net(), [torch.randn(2, 1, 4, 4)] * 2)
    with raises("dims has the symbols a, b", "dynamic_shapes"):
        ls.from_torch(Net(), torch.randn(2, 1, 4, 4), dims={"a": 4, "b": 4})
    with raises("the module is 3, expected a torch.nn.Module"):
        ls.from_torch(3, torch.randn(2))  # type: ignore[arg-type]


class Weighted(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return l1_loss(x, 2 * x, weight=weight)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x @ self.weight
        hidden.data.mul_(2)
        return hidden @ self.weight.data


def line_of(function: object, text: str) -> str:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return f"(test_torch_failures.py:{first + next(i for i, line in enumerate(lines) if text in line)})"


def replaced_while_tracing() -> list[object]:
    apply, modules = vars(torch.autograd.Function)["apply"], nn.Module.__setattr__
    hooks, enter = torch.Tensor.register_hook, torch.inference_mode.__enter__
    return [
        torch.export.export,
        nn.functional.handle_torch_function,
        "data" in vars(torch.Tensor),
        torch.SymBool.__bool__,
        apply,
        modules,
        hooks,
        enter,
    ]


@pytest.mark.parametrize("module", [nn.Linear(3, 3), Branches(), InPlace()], ids=lambda each: type(each).__name__)
def test_torch_is_as_it_was(module: nn.Module) -> None:
    before = replaced_while_tracing()
    with contextlib.suppress(ls.Error):
        ls.from_torch(module, torch.randn(2, 3))
    assert replaced_while_tracing() == before


def test_what_torch_leaves_out_of_the_trace_is_refused_with_its_line() -> None:
    with raises("Weighted has l1_loss with weight " + line_of(Weighted, "l1_loss")):
        ls.from_torch(Weighted(), [torch.ones(3)] * 2)
    place = line_of(InPlace, "mul_")
    with raises(f"InPlace changes a value in place without gradient, through detach(), .data or in no_grad() {place}"):
        ls.from_torch(InPlace(), torch.ones(2, 3))


def test_own_gradients_ignore_takes_the_values_of_what_is_changed_in_place() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    graph = ls.from_torch(InPlace(), x, output_names=["y"], own_gradients="ignore")
    np.testing.assert_array_equal(ls.compile(graph)(x=x)["y"], x / 2)


class Decides(nn.Module):
    """A module with a hook and with a number computed from values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.fc.weight.register_hook(lambda gradient: 2 * gradient)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        return y * y.abs().max().item()


def test_own_gradients_ignore_imports_hooks_and_numbers() -> None:
    module, x = Decides(), torch.randn(2, 3)
    graph = ls.from_torch(module, x, output_names=["y"], own_gradients="ignore")
    np.testing.assert_allclose(ls.compile(graph)(x=x)["y"], module(x).detach(), rtol=1e-5, atol=1e-6)


class Parts(nn.Module):
    """Three vectors in one piece of memory."""

    def __init__(self, *slices: slice, trained: bool = True) -> None:
        super().__init__()
        memory = torch.arange(9.0)
        self.parts = nn.ParameterList(nn.Parameter(memory[each], requires_grad=trained) for each in slices)
        self.last = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(x.sum() * part.sum() for part in self.parts) * self.last


def test_elements_that_two_of_several_parameters_have_in_common() -> None:
    overlap = slice(0, 6), slice(6, 9), slice(5, 6)
    with raises("from_torch: parts.0 and parts.2 of Parts have elements in common"):
        ls.from_torch(Parts(*overlap), torch.ones(2))
    apart = ls.from_torch(Parts(slice(0, 3), slice(3, 6), slice(6, 9)), torch.ones(2))
    assert {state.name for state in apart.states} == {"parts.0", "parts.1", "parts.2", "last"}
    frozen = ls.from_torch(Parts(*overlap, trained=False), torch.ones(2))
    assert frozen.constants == ["parts.0", "parts.1", "parts.2"], "they are not trained separately"


def test_what_only_training_does_is_no_matter_in_evaluation() -> None:
    for module, x in (
        (nn.RNN(3, 4, 2, dropout=0.5), torch.randn(5, 2, 3)),
        (nn.BatchNorm1d(3, momentum=None), torch.randn(2, 3)),
    ):
        expected = module.eval()(x)
        graph = ls.from_torch(module, x, output_names=["y"])
        found = ls.compile(graph)(**{graph.inputs[0].name: x})["y"]
        np.testing.assert_allclose(found, (expected[0] if isinstance(module, nn.RNN) else expected).detach(), atol=1e-6)
