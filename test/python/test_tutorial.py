"""The steps of examples/tutorial compute the same on one worker and on two, and learn."""

from __future__ import annotations

import functools
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import lockstep as ls
from cases import FASHION_MNIST, ROOT
from ranks import MPI_ENVIRONMENT, mpirun

sys.path.insert(0, str(ROOT / "test/hosts"))

import ssh_hosts

LOCKSTEP = ROOT / "tools/lockstep"
TUTORIAL = ROOT / "examples/tutorial"
STEPS = ["one_machine", "store", "trainer", "split_sampler", "devices"]
SAME_BATCHES = ["store", "trainer", "devices"]  # the batches of one_machine, on any number of workers
SETTINGS = ["--samples", "2048", "--epochs", "3"]  # so that batches are full


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of Fashion-MNIST. The test set is smaller, and neither 2 workers nor batches divide it evenly."""
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
    assert len(found) == 3, "one line for each epoch, only from rank 0"
    return found


@pytest.fixture(scope="module")
def alone(data: Path) -> Callable[[str], str]:
    """The output of a step on one worker, without mpirun."""

    @functools.cache
    def printed(name: str) -> str:
        command = [sys.executable, TUTORIAL / f"{name}.py", "--data", data, *SETTINGS]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return printed


@pytest.mark.parametrize("name", STEPS)
def test_a_step_learns(name: str, alone: Callable[[str], str]) -> None:
    found = accuracies(alone(name))
    assert found[-1] > 0.65 and found[-1] > found[0]
    if name in SAME_BATCHES:
        expected = accuracies(alone("one_machine"))
        assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 0.003


@pytest.mark.parametrize("name", STEPS[1:])
def test_two_workers_compute_what_one_does(name: str, alone: Callable[[str], str], data: Path) -> None:
    done = mpirun(2, TUTORIAL / f"{name}.py", "--data", data, *SETTINGS, timeout=300)
    assert done.returncode == 0, done.stderr
    found, expected = accuracies(done.stdout), accuracies(alone(name))
    # With parts, the samples of a batch depend on the number of parts.
    near = 0.005 if name in SAME_BATCHES else 0.08
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= near
    if name == "store":
        assert "2 workers pushed 1 to 2:\n[[3. 3. 3.]\n [3. 3. 3.]]" in done.stdout


def launched(printed: str) -> list[float]:
    assert re.findall(r"^\[(worker \d)\] epoch", printed, re.MULTILINE) == ["worker 0"] * 3
    return accuracies(printed.replace("[worker 0] ", ""))


def test_the_launcher_starts_the_workers(alone: Callable[[str], str], data: Path) -> None:
    command = [LOCKSTEP, "launch", "-n", "2", sys.executable, TUTORIAL / "trainer.py", "--data", data, *SETTINGS]
    environment = {**os.environ, **MPI_ENVIRONMENT}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found, expected = launched(done.stdout), accuracies(alone("trainer"))
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 0.005


@pytest.mark.skipif(bool(ssh_hosts.why_not()), reason=f"no sshds here: {ssh_hosts.why_not()}")
@pytest.mark.everything
def test_the_launcher_starts_a_worker_on_each_of_two_hosts(
    alone: Callable[[str], str], data: Path, tmp_path: Path
) -> None:
    """It runs from a copy of the tutorial's folder on each host, as its README describes."""
    (tmp_path / "examples").mkdir()
    for name in ("tutorial", "mnist"):
        shutil.copytree(ROOT / "examples" / name, tmp_path / "examples" / name)
    with ssh_hosts.SshHosts(2) as hosts:
        (tmp_path / "hosts").write_text("".join(f"{name}\n" for name in hosts.names))
        launch = ["launch", "-n", "2", "-H", tmp_path / "hosts", "--sync-dst-dir", hosts.own / "work"]
        program = [sys.executable, "examples/tutorial/trainer.py", "--data", data, *SETTINGS]
        environment = {**hosts.environment(), "PYTHONPATH": str(ROOT / "python_bindings")}
        command = hosts.on_first(LOCKSTEP, *launch, *program)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path, check=False
        )
    assert done.returncode == 0, done.stderr
    found, expected = launched(done.stdout), accuracies(alone("trainer"))
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 0.005


def test_the_tutorial_tells_of_every_step() -> None:
    text = (TUTORIAL / "README.md").read_text()
    programs = {path.name for path in TUTORIAL.glob("*.py")} - {"common.py"}
    assert programs == {f"{name}.py" for name in STEPS}
    assert all(f"({name})" in text for name in programs)
