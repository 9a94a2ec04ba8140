"""The wheels, without building them, and the example in the package. `make wheel-check` builds and tries them."""

from __future__ import annotations

import email
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from lockstep._base import isolated
from lockstep.examples import digits

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/wheel"))
import wheel

INFORMATION = f"lockstep_compiler-{ls.__version__}.dist-info"


@pytest.fixture(params=wheel.KINDS, ids=lambda kind: kind.tag)
def kind(request: pytest.FixtureRequest) -> wheel.Kind:
    return request.param


@pytest.fixture
def files(kind: wheel.Kind, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of a wheel, with the text of a path in place of each library."""
    monkeypatch.setattr(wheel, "stripped", lambda source, to: str(source).encode())
    return wheel.contents(kind)


def test_metadata_agrees_with_the_package(kind: wheel.Kind, files: dict[str, bytes]) -> None:
    metadata = email.message_from_bytes(files[f"{INFORMATION}/METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("lockstep-compiler", ls.__version__)
    assert metadata.get_all("Requires-Dist") == ["numpy>=2"]
    major, minor = isolated.PYTHON
    tags = {f"cp{major}{minor}-cp{major}{minor}": f"=={major}.{minor}.*", "cp312-abi3": ">=3.12"}
    assert metadata["Requires-Python"] == tags[kind.tag]
    assert f"Tag: {kind.tag}-linux_x86_64\n".encode() in files[f"{INFORMATION}/WHEEL"]
    assert metadata.get_payload(decode=True) == (ROOT / "README.md").read_bytes()


def test_the_program_is_a_function(files: dict[str, bytes], capsys: pytest.CaptureFixture[str]) -> None:
    section, line = files[f"{INFORMATION}/entry_points.txt"].decode().splitlines()
    name, _, target = line.partition(" = ")
    module, _, function = target.partition(":")
    assert (section, name) == ("[console_scripts]", "lockstep")
    with pytest.raises(SystemExit):
        getattr(importlib.import_module(module), function)(["--version"])
    assert capsys.readouterr().out == f"lockstep {ls.__version__}\n"


def test_each_python_takes_one_of_the_modules(tmp_path: Path) -> None:
    """With a module that says that it was loaded; the version of Python is pretended."""
    (tmp_path / "lockstep/_base").mkdir(parents=True)
    (tmp_path / "lockstep/__init__.py").touch()
    shutil.copy(isolated.__file__, tmp_path / "lockstep/_base")
    program = "import sys; sys.version_info = ({}, {}, 0); import lockstep._base.isolated"

    def outcome(module: str, minor: int) -> str:
        for old in (tmp_path / "lockstep").glob("_lockstep*"):
            old.unlink()
        (tmp_path / "lockstep" / module).write_text("not a library")
        command = [sys.executable, "-c", program.format(3, minor)]
        done = subprocess.run(
            command, cwd=tmp_path, env={"PYTHONPATH": ""}, capture_output=True, text=True, check=False
        )
        return done.stderr

    refused = "is built for Python 3.11, this is Python 3.{} "
    for module, minor, taken in [
        ("_lockstep.so", 11, True),
        ("_lockstep.so", 10, False),
        ("_lockstep.so", 12, False),
        ("_lockstep.abi3.so", 10, False),
        ("_lockstep.abi3.so", 12, True),
        ("_lockstep.abi3.so", 14, True),
    ]:
        message = outcome(module, minor)
        assert (refused.format(minor) in message) != taken, (module, minor)
        assert (f"{module}: " in message) == taken, (module, minor)  # the loader's: "file too short"


def test_all_modules_and_licences_are_in_it(kind: wheel.Kind, files: dict[str, bytes]) -> None:
    package = Path(ls.__file__).parent
    for source in [*package.rglob("*.py"), *package.rglob("*.pyi"), package / "py.typed"]:
        assert files[f"lockstep/{source.relative_to(package)}"] == source.read_bytes()
    assert files[f"lockstep/{kind.module}"] == f"{ROOT}/bazel-bin/python_bindings/{kind.module}".encode()
    assert sum(name.startswith("lockstep/_lockstep.") and name.endswith(".so") for name in files) == 1
    assert not any("__pycache__" in name for name in files)
    for name in ("onednn-cpu-gomp", "llvm-19-dev", "nanobind"):
        assert len(files[f"{INFORMATION}/licenses/{name}.txt"]) > 1000


def test_the_same_files_are_the_same_bytes(files: dict[str, bytes], tmp_path: Path) -> None:
    wheel.write(tmp_path / "a.whl", files)
    wheel.write(tmp_path / "b.whl", dict(reversed(files.items())))
    assert (tmp_path / "a.whl").read_bytes() == (tmp_path / "b.whl").read_bytes()


def test_the_example_trains() -> None:
    losses, accuracy = digits.train(ls.Communicator.single(), batch=64, epochs=1, samples=3840)
    assert np.isclose(losses[0], np.log(10), atol=0.1)  # of ten equally likely digits
    assert np.mean(losses[-5:]) < 0.5
    assert accuracy > 0.8


def test_the_example_draws_the_digits() -> None:
    images, labels = digits.draw(50, seed=3)
    assert (images.shape, images.dtype, labels.dtype) == ((50, 1, 28, 28), np.float32, np.int64)
    for image, label in zip(images[:, 0], labels, strict=True):
        dots = sum(row.bit_count() for row in digits.FONT[label])
        assert np.count_nonzero(image > 0.5) == pytest.approx(9 * dots, abs=20)
