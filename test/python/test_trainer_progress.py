"""Trainer: the progress display of fit, and its picture."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm.auto
import tqdm.notebook
from PIL import Image

import lockstep as ls
from ranks import errors_of, run_in_threads
from test_trainer import samples, trainer


def test_a_curve_is_drawn_by_rank_0(tmp_path: Path) -> None:
    x, labels = samples()

    def body(world: ls.Communicator) -> None:
        found = trainer(world)
        found.fit((x, labels), (x, labels), epochs=2, curve=tmp_path / f"{world.rank}.png")

    assert run_in_threads(2, body) == [None, None]
    assert [path.name for path in tmp_path.iterdir()] == ["0.png"]
    assert Image.open(tmp_path / "0.png").size >= (600, 400)
    words = re.escape(f"{tmp_path}/none/loss.png: No such file")
    errors = errors_of(2, lambda world: trainer(world).fit((x, labels), curve=tmp_path / "none/loss.png"))
    assert all(re.search(words, error) for error in errors)


def test_the_bar_is_shown_by_rank_0_alone(capfd: pytest.CaptureFixture[str]) -> None:
    x, labels = samples()
    run_in_threads(2, lambda world: trainer(world).fit((x, labels), epochs=2))
    shown = capfd.readouterr().err
    for epoch in (1, 2):
        assert len(re.findall(f"epoch {epoch}/2:   0%", shown)) == 1 and f"epoch {epoch}/2: 100%" in shown
    assert "loss=" in shown
    lines = shown.splitlines()  # no bar is redrawn if the output is not a terminal
    assert "\r" not in shown and 4 <= len(lines) <= 6 and all(line.startswith("epoch ") for line in lines), shown
    trainer().fit((x, labels), progress=False)
    assert capfd.readouterr().err == ""


def test_in_a_notebook_it_is_a_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    """It then gets no file and no format of lines; elsewhere, neither it nor ipywidgets is imported."""
    code = "import sys, tqdm.auto; sys.exit('tqdm.notebook' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    given: list[set[str]] = []

    class Widget(tqdm.std.tqdm):
        def __init__(self, *each: Any, **options: Any) -> None:
            given.append(options.keys() & {"file", "mininterval", "bar_format"})
            super().__init__(*each, **options)

    monkeypatch.setattr(tqdm.notebook, "tqdm_notebook", Widget)
    trainer().fit(samples())
    monkeypatch.setattr(tqdm.auto, "tqdm", Widget)
    trainer().fit(samples())
    assert given == [set()]


def test_the_picture_is_of_the_steps_of_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps since the states were loaded, with their numbers in the whole run."""
    x, labels = samples()
    drawn: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ls._trainer.loss_curve, "draw", lambda *given: drawn.append(given))
    found = trainer()
    found.fit((x, labels), epochs=2)
    found.save_states(tmp_path / "states")
    again = trainer()
    again.load_states(tmp_path / "states")
    again.fit((x, labels), (x, labels), curve=tmp_path / "loss.png")
    ((path, first, losses, results),) = drawn
    assert (path, first, losses) == (str(tmp_path / "loss.png"), 8, again.losses) and len(losses) == 4
    assert results == again.history and results[0]["step"] == 12 and results[0]["validation_loss"] > 0


def test_a_curve_has_losses_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    lines: dict[str, list[list[float]]] = {}

    def saved(figure: Figure, path: str, **_: Any) -> None:
        for axes in figure.axes:
            lines.update({str(line.get_label()): np.array(line.get_data()).tolist() for line in axes.lines})

    monkeypatch.setattr(Figure, "savefig", saved)
    results = [{"epoch": 3, "step": 10, "loss": 1.5, "accuracy": 0.5, "matrix": np.eye(2)}]
    ls._trainer.loss_curve.draw(str(tmp_path / "loss.png"), 8, [2.0, 1.0], results)
    assert lines.pop("loss of a step") == [[8, 9], [2, 1]]
    assert lines == {"mean of 1 steps": [[8, 9], [2, 1]], "accuracy": [[10], [0.5]]}


@pytest.mark.parametrize("package", ["tqdm", "matplotlib"])
def test_a_bar_needs_tqdm_and_a_picture_matplotlib(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in [each for each in sys.modules if each.partition(".")[0] == package] + [package]:
        monkeypatch.setitem(sys.modules, module, None)
    x, labels = samples()
    found = trainer()
    assert len(found.fit((x, labels))) == 1
    assert ("epoch 1/1" in capfd.readouterr().err) == (package != "tqdm")
    if package == "matplotlib":
        with pytest.raises(ls.Error, match="loss.png: drawing needs the Python package matplotlib"):
            found.fit((x, labels), curve=tmp_path / "loss.png")
