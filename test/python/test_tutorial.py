"""The steps of examples/tutorial, on one worker and on two: they compute the same, and learn."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep as ls
from cases import FASHION_MNIST, ROOT
from ranks import mpirun

TUTORIAL = ROOT / "examples/tutorial"
STEPS = ["one_machine", "store", "trainer", "split_sampler", "devices"]
SAME_BATCHES = ["store", "trainer", "devices"]  # as one_machine, on any number of workers
SETTINGS = ["--samples", "2048", "--epochs", "3"]  # so that batches are full


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of Fashion-MNIST: the test set is smaller, and neither 2 workers nor batches share it evenly."""
    folder = tmp_path_factory.mktemp("data")
    for part, count in (("train", 2048), ("t10k", 1001)):
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            array = ls.data.load_idx(Path(FASHION_MNIST) / f"{part}-{name}.gz")[:count]
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{part}-{name}").write_bytes(header + array.tobytes())
    return folder


def accuracies(printed: str) -> list[float]:
    found = [
        float(each) for each in re.findall(r"^epoch \d: (?:loss [\d.]+, )?accuracy ([\d.]+)$", printed, re.MULTILINE)
    ]
    assert len(found) == 3, "one line for each epoch, of rank 0 alone"
    return found


@pytest.fixture(scope="module")
def alone(data: Path) -> dict[str, str]:
    """What each step printed on one worker, without mpirun."""
    printed = {}
    for name in STEPS:
        command = [sys.executable, TUTORIAL / f"{name}.py", "--data", data, *SETTINGS]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        printed[name] = done.stdout
    return printed


@pytest.mark.parametrize("name", STEPS)
def test_a_step_learns(name: str, alone: dict[str, str]) -> None:
    found = accuracies(alone[name])
    assert found[-1] > 0.65 and found[-1] > found[0]
    if name in SAME_BATCHES:
        expected = accuracies(alone["one_machine"])
        assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 0.003


@pytest.mark.parametrize("name", STEPS[1:])
def test_two_workers_compute_what_one_does(name: str, alone: dict[str, str], data: Path) -> None:
    done = mpirun(2, TUTORIAL / f"{name}.py", "--data", data, *SETTINGS, timeout=300)
    assert done.returncode == 0, done.stderr
    found, expected = accuracies(done.stdout), accuracies(alone[name])
    # Which samples meet in a batch of parts depends on how many parts there are.
    near = 0.005 if name in SAME_BATCHES else 0.08
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= near
    if name == "store":
        assert "2 workers pushed 1 to 2:\n[[3. 3. 3.]\n [3. 3. 3.]]" in done.stdout


def test_the_tutorial_tells_of_every_step() -> None:
    text = (TUTORIAL / "README.md").read_text()
    programs = {path.name for path in TUTORIAL.glob("*.py")} - {"common.py"}
    assert programs == {f"{name}.py" for name in STEPS}
    assert all(f"({name})" in text for name in programs)
