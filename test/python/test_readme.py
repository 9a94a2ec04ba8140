"""The README, the guide that continues it, and the tutorial: the picture of a step is what the compiler prints, and the
programs run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from lockstep.examples import digits

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs/training.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    """Returns the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def without_comments(text: str) -> list[str]:
    return [re.sub(r" *//.*", "", line) for line in text.strip().splitlines()]


def test_its_length() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    assert max(map(len, lines)) <= 120


def test_its_picture_is_what_the_compiler_prints() -> None:
    before, after, *_ = blocks(README, "")
    distributed = ls.distribute(ls.parse(before), {"data": 4})
    assert without_comments(str(distributed)) == without_comments(after)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Runs the README's program on random images. Returns its variables."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "build/train").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    images, labels = random.random((1000, 1, 28, 28), np.float32), random.integers(0, 10, 1000)
    variables = {"images": images, "labels": labels, "epoch": 0}
    (program,) = blocks(README, "python")
    exec(program, variables)  # noqa: S102 (the document is ours)
    return variables


def test_its_program_trains(trained: dict[str, Any]) -> None:
    assert 0 < float(trained["loss"]) < 10
    before, after = (
        ls.compile(ls.load_onnx(file, {"batch": 1})).state
        for file in ("examples/mnist/lenet.onnx", "build/train/lenet-trained.onnx")
    )
    assert list(after) == list(before)
    assert not any(np.array_equal(before[name], after[name]) for name in before)


def test_the_programs_of_the_guide_run(trained: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    """One after the other. The loop of the checkpoints has no steps left."""
    trained["torch"] = torch = pytest.importorskip("torch")
    trained["module"] = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    trained["steps"] = 0
    programs = blocks(GUIDE, "python")
    assert len(programs) == 5
    for program in programs:
        exec(program, trained)  # noqa: S102 (the document is ours)
    assert "all_reduce" in capfd.readouterr().out  # what distributing changed


def test_the_tutorial_ends_with_a_trained_file(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (program,) = blocks((ROOT / "docs/tutorial.md").read_text(), "python")
    (tmp_path / "train.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "lockstep",
        "launch",
        "-n",
        "2",
        "--launcher",
        "direct",
        sys.executable,
        "train.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"2 ranks: accuracy (\S+) over other pictures", done.stdout)
    assert found is not None and float(found[1]) > 0.95, done.stdout
    model = ls.load_onnx(tmp_path / "digits.onnx", {"batch": 1000})
    evaluation = ls.compile(ls.evaluation(model, ls.loss.softmax_cross_entropy(model.results[0].name, "label")))
    images, labels = digits.draw(1000, seed=2)
    accuracy = evaluation.evaluate([{"input": images, "label": labels}])["accuracy"]
    assert f"{accuracy:.3f}" == found[1]
