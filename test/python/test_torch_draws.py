"""Random numbers of PyTorch modules: what only training mode draws, dropout of channels, and generators that no trace shows."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable

import numpy as np
import pytest

import lockstep as ls
from lockstep._base import log

torch = pytest.importorskip("torch")
nn = torch.nn

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
LABEL = torch.arange(16) % 4
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
FORWARD = Callable[[torch.Tensor, bool], torch.Tensor]


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The warnings since the last call."""
    monkeypatch.setattr(log, "_warned", set())

    def taken() -> list[str]:
        messages = [record.getMessage() for record in caplog.records if record.name == "lockstep"]
        caplog.clear()
        return messages

    return taken


class DropPath(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        return x * x.new_empty(x.shape[0], 1).bernoulli_(0.5).div_(0.5)


class Net(nn.Module):
    def __init__(self, between: nn.Module | FORWARD) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.between, self.out = nn.Linear(6, 6), between, nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.hidden(x)
        return self.out(
            h + (self.between(h) if isinstance(self.between, nn.Module) else self.between(h, self.training))
        )


def imported(module: nn.Module) -> ls.Graph:
    return ls.from_torch(module, X[:4], dims={"batch": 16}, output_names=["logits"])


def place(function: object, text: str) -> str:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return f"test_torch_draws.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def test_what_training_mode_alone_draws_is_said_of_evaluations_and_predictions(
    warnings: Callable[[], list[str]],
) -> None:
    module = Net(DropPath()).train()
    model = imported(module)
    said = f"Net draws random numbers in training mode (bernoulli_ at {place(DropPath, 'bernoulli_')})"
    assert model.notes == [f"{said}, which evaluations and predictions draw too; import it in eval() mode for these"]
    assert warnings() == [] and module.training and module.between.training
    step = ls.compile(ls.train_step(model, LOSS, ls.optim.SGD(0.1)))
    ls.compile(ls.train_step(model, LOSS, None))
    assert warnings() == [], "a training step draws them, as it should"
    for program in (ls.evaluation(model, LOSS), model, model.with_dims(batch=4)):
        log._warned.clear()
        ls.compile(program)
        (warning,) = warnings()
        assert (
            warning.startswith(said) and "import the module in eval() mode for evaluations and predictions" in warning
        )
    ls.train_step(model, LOSS, ls.optim.SGD(0.1), dropout="off")
    assert warnings() == [f'{said}; dropout="off" does not turn these off']

    # The recipe of docs/frameworks.md.
    evaluated = ls.compile(ls.evaluation(imported(module.eval()), LOSS))
    predicting = ls.compile(imported(module))
    step(x=X, label=LABEL)
    ls.to_torch(step, module)
    evaluated.state.assign(step.state)
    predicting.state.assign(step.state)
    expected = module(X)
    np.testing.assert_allclose(predicting(x=X)["logits"], expected.detach(), atol=1e-6)
    loss = nn.functional.cross_entropy(expected, LABEL).item()
    assert evaluated.evaluate([(X.numpy(), LABEL.numpy())])["loss"] == pytest.approx(loss, abs=1e-6)
    assert warnings() == []


@pytest.mark.parametrize("cached", [False, True])
def test_files_and_caches_keep_what_is_known_of_the_draws(
    cached: bool, warnings: Callable[[], list[str]], tmp_path: object
) -> None:
    def again() -> ls.Graph:
        if cached:
            return ls.from_torch(Net(DropPath()), X[:4], dims={"batch": 16}, output_names=["logits"], cache=tmp_path)
        imported(Net(DropPath())).save(f"{tmp_path}/model.graph")
        return ls.load_graph(f"{tmp_path}/model.graph")

    for model in (again(), again()):
        log._warned.clear()
        ls.compile(model)
        assert len(warnings()) == 1 and len(model.notes) == 1


DRAWING: dict[str, tuple[FORWARD, bool]] = {
    "rand": (lambda x, training: x * torch.rand_like(x) if training else x, True),
    "noise": (lambda x, training: x + torch.randn_like(x) if training else x, True),
    "alpha dropout": (lambda x, training: nn.functional.alpha_dropout(x, 0.5, training), True),
    "a variational sample": (lambda x, training: x + torch.randn_like(x), False),
    "dropout": (lambda x, training: nn.functional.dropout(x, 0.5, training), False),
}


@pytest.mark.parametrize("name", DRAWING)
def test_what_evaluation_mode_draws_too_is_no_matter(name: str, warnings: Callable[[], list[str]]) -> None:
    between, is_said = DRAWING[name]
    ls.compile(imported(Net(between)))
    assert len(warnings()) == is_said


class Channels(nn.Module):
    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.drop, self.scale = drop, nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x) * self.scale


@pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d])
def test_dropout_of_channels_drops_channels_in_training_and_nothing_else(kind: type[nn.Module]) -> None:
    dims = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}[kind]
    shape, module = (6, *[2] * dims), Channels(kind(0.25))
    x = torch.ones(16, *shape)
    model = ls.from_torch(module, x[:2], dims={"batch": 16}, output_names=["y"])
    assert model.notes == [note for note in model.notes if "Dropout" in note]
    np.testing.assert_array_equal(ls.compile(model)(x=x)["y"], x)

    def stepped(**options: object) -> np.ndarray:
        step = ls.train_step(model, ls.loss.mean_squared_error("y", "t"), None, keep_results=True, **options)
        return ls.compile(step)(x=x, t=x)["y"]

    np.testing.assert_array_equal(stepped(dropout="off"), x)
    dropped = stepped().reshape(16, 6, -1)
    assert set(np.unique(dropped)) == {0.0, np.float32(1 / 0.75)}
    assert (dropped == dropped[:, :, :1]).all(), "whole channels"
    assert 0.1 < (dropped[:, :, 0] == 0).mean() < 0.4


class Drawing(nn.Module):
    def __init__(self, draw: Callable[[Drawing], float]) -> None:
        super().__init__()
        self.fc, self.draw, self.generator = nn.Linear(6, 4), draw, np.random.default_rng(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.draw(self)


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda module: random.random(), "Python's random"),
        (lambda module: float(np.random.beta(1, 1)), "np.random"),
        (lambda module: float(module.generator.random()), "generator"),
        (lambda module: 2.0, ""),
    ],
    ids=["random", "numpy", "attribute", "none"],
)
def test_generators_that_no_trace_shows(
    draw: Callable[[Drawing], float], name: str, warnings: Callable[[], list[str]]
) -> None:
    model = imported(Drawing(draw))
    said = (
        f"Drawing draws from {name} in forward, and the graph keeps the numbers of this export; draw with torch, or give the numbers "
        "as an input"
    )
    assert model.notes == ([said] if name else [])
    assert warnings() == ([f"from_torch: {said}"] if name else [])


def test_warnings_of_an_export_are_seen_without_logging(capfd: pytest.CaptureFixture[str]) -> None:
    """Python's handler of last resort writes to what sys.stderr is then, which is silent while torch exports."""

    class Counts(nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    import logging

    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    try:
        root.handlers.clear()
        model = imported(Counts())
    finally:
        root.handlers[:] = handlers
    said = f"Counts changes its attribute calls in forward ({place(Counts, 'calls +=')}): it stays 1"
    assert capfd.readouterr().err == f"from_torch: {said}\n" and model.notes == [said]


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.attention = nn.Linear(6, 4), nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nn.functional.dropout(self.fc(x), 0.5, self.training)[:, None]
        return (h + self.attention(h, h, h)[0])[:, 0]


def test_dropout_of_a_module_in_evaluation_mode_is_named_in_training(warnings: Callable[[], list[str]]) -> None:
    for module, where in (
        (nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)), "part 1"),
        (Attends(), f"{place(Attends, 'functional.dropout')}, attention"),
    ):
        model = imported(module.eval())
        ls.train_step(model, LOSS, ls.optim.SGD(0.1), dropout="off")
        ls.train_step(imported(module.train()), LOSS, ls.optim.SGD(0.1))
        ls.compile(model)
        assert warnings() == []
        for _ in range(2):
            ls.train_step(model, LOSS, ls.optim.SGD(0.1))
        (warning,) = warnings()
        assert warning == (
            f"{type(module).__name__} was imported in evaluation mode, and its dropout ({where}) drops nothing in the training step "
            'either; import it in train() mode, or say dropout="off"'
        )
