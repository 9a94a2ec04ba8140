"""bazel/setup.sh in a tree of its own, where apt-get, dpkg-query and Python note what they are told."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INPUTS = ["setup.sh", "debian-packages.txt", "requirements.txt", "requirements-test.txt", "requirements-source.txt"]
ISOLATED = "python_bindings/lockstep/_base/isolated.py"  # has the version of Python

PROGRAMS = {
    "bin/id": "echo $USER_ID",
    "bin/sudo": 'echo "sudo $1" >> log; exec "$@"',
    "bin/dpkg-query": "for each in $INSTALLED; do echo installed $each; done; echo not-installed gamma",
    "bin/apt-get": 'echo "apt-get $*" >> log; echo Reading...; [ "$1" != "$FAILING" ]',
    ".venv/bin/python": 'case "$*" in *sys.executable*) echo $0;; *version_info*) echo 3.11;; -m*) echo "$*" >> log;; esac',
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in PROGRAMS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "bazel").mkdir()
    shutil.copy(ROOT / "bazel/setup.sh", tmp_path / "bazel")
    (tmp_path / "bazel/debian-packages.txt").write_text("# A comment\nalpha\nbeta\n")
    (tmp_path / "requirements.txt").write_text("numpy==2.4.6\n")
    (tmp_path / "requirements-test.txt").write_text("pytest==9.2.0\n")
    (tmp_path / "requirements-source.txt").write_text("grpcio-tools==1.51.1\n")
    (tmp_path / ".venv/src").mkdir(parents=True)
    (tmp_path / ".venv/src/version").write_text("grpcio-tools==1.51.1\n")
    (tmp_path / ".venv/lib/python3.11/site-packages").mkdir(parents=True)
    (tmp_path / ISOLATED).parent.mkdir(parents=True)
    shutil.copy(ROOT / ISOLATED, tmp_path / ISOLATED)
    stamp(tmp_path).write_text(wanted(tmp_path))
    return tmp_path


def stamp(tree: Path) -> Path:
    return tree / ".venv/.lockstep-setup"


def wanted(tree: Path) -> str:
    inputs = [tree / ("bazel" if name in INPUTS[:2] else ".") / name for name in INPUTS]
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in inputs)).hexdigest()
    return f"{digest} {tree.resolve() / '.venv'}\n"


def set_up(
    tree: Path, *packages: str, installed: str = "alpha beta", **environment: str
) -> subprocess.CompletedProcess[str]:
    path = f"{tree}/bin:{os.environ['PATH']}"
    environment = {"USER_ID": "0", "FAILING": "", **environment, "INSTALLED": installed, "PATH": path}
    return subprocess.run(
        ["bash", "bazel/setup.sh", *packages],
        cwd=tree,
        env=os.environ | environment | {"PYTHON": str(tree / ".venv/bin/python")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def log(tree: Path) -> list[str]:
    file = tree / "log"
    return file.read_text().splitlines() if file.exists() else []


def test_a_complete_set_up_does_nothing_and_says_nothing(tree: Path) -> None:
    done = set_up(tree)
    assert (done.returncode, done.stdout, done.stderr, log(tree)) == (0, "", "", [])
    package = tree / ".venv/lib/python3.11/site-packages/lockstep.pth"
    assert package.read_text() == f"{tree}/python_bindings\n"


@pytest.mark.parametrize(
    ("asked", "installed", "missing"), [((), "alpha", "beta"), (("gamma",), "alpha beta", "gamma")]
)
def test_missing_packages_are_named_and_installed(
    asked: tuple[str, ...], installed: str, missing: str, tree: Path
) -> None:
    done = set_up(tree, *asked, installed=installed)
    assert done.returncode == 0, done.stderr
    assert f"installing Debian packages (about a minute): {missing} \n" in done.stdout
    assert log(tree)[:2] == ["apt-get update -q", f"apt-get install -q -y --no-install-recommends {missing}"]


@pytest.mark.parametrize("failing", ["update", "install"])
def test_a_failed_installation_is_an_error(failing: str, tree: Path) -> None:
    (tree / "requirements.txt").write_text("numpy==2.4.7\n")
    done = set_up(tree, installed="beta", FAILING=failing)
    assert done.returncode == 1
    assert done.stderr.endswith("setup: error: apt-get failed; all of its output is in build/setup.log\n")
    assert (tree / "build/setup.log").read_text().endswith("Reading...\n")
    assert stamp(tree).read_text() != wanted(tree)


def test_others_than_root_install_with_sudo(tree: Path) -> None:
    assert set_up(tree, installed="alpha", USER_ID="1000").returncode == 0
    assert log(tree)[:2] == ["sudo apt-get", "apt-get update -q"]


def test_changed_requirements_are_installed(tree: Path) -> None:
    (tree / "requirements-test.txt").write_text("# A comment\npytest==9.3.0\nruff==1.0\n")
    done = set_up(tree)
    assert done.returncode == 0, done.stderr
    assert "setup: installing Python packages into .venv: numpy==2.4.6 pytest==9.3.0 ruff==1.0 \n" in done.stdout
    files = "-r requirements.txt -r requirements-test.txt"
    assert log(tree) == [f"-m pip install --quiet --disable-pip-version-check {files}"]
    assert stamp(tree).read_text() == wanted(tree)


def test_the_version_of_python_is_that_of_the_package(tree: Path) -> None:
    source = (tree / ISOLATED).read_text()
    assert "\nPYTHON = (3, 11)" in source
    (tree / ISOLATED).write_text(source.replace("\nPYTHON = (3, 11)", "\nPYTHON = (3, 12)"))
    done = set_up(tree)
    assert done.returncode == 1
    assert done.stderr == f"setup: error: PYTHON={tree}/.venv/bin/python is not a Python 3.12\n"


def test_the_environment_of_another_checkout_keeps_its_package(tree: Path) -> None:
    (tree / ".venv").rename(tree / "shared")
    (tree / ".venv").symlink_to(tree / "shared")
    stamp(tree).write_text(wanted(tree).replace(".venv", "shared"))
    assert (set_up(tree).returncode, log(tree)) == (0, [])
    assert not (tree / "shared/lib/python3.11/site-packages/lockstep.pth").exists()
