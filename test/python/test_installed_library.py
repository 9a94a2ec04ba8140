"""A C++ program outside of the checkout uses the library that `make install` installs. It trains as Python does."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from document_code import blocks
from ranks import MPI_ENVIRONMENT, run_in_threads

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples/mnist/lenet.onnx"
BATCH, BATCHES = 32, 4
LOSS = ls.loss.softmax_cross_entropy(logits="logits", target="label")
# Without what would lead the compiler or the linker into the checkout.
OUTSIDE = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside")


@pytest.fixture(scope="module")
def prefix(folder: Path) -> Path:
    # The installation is moved, as a package is.
    made = folder / "package"
    command = ["make", "--no-print-directory", "install", f"PREFIX={folder}/prefix", f"DESTDIR={made}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (made / str(folder / "prefix").lstrip("/")).rename(folder / "prefix")
    return folder / "prefix"


def flags(prefix: Path, *options: str) -> list[str]:
    command = ["pkg-config", *options, "lockstep"]
    environment = {**OUTSIDE, "PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split()


@pytest.fixture(scope="module")
def program(prefix: Path, folder: Path) -> Path:
    source = folder / "train.cc"
    source.write_text((ROOT / "cpp_library/train.cc").read_text())
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-o", "train", "train.cc", *flags(prefix, "--cflags", "--libs")]
    assert str(ROOT) not in " ".join(command)
    compiled = subprocess.run(command, cwd=folder, env=OUTSIDE, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
    return folder / "train"


@pytest.fixture(scope="module")
def data(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    images = random.normal(size=(BATCH * BATCHES, 1, 28, 28)).astype(np.float32)
    labels = random.integers(0, 10, BATCH * BATCHES)
    images.tofile(folder / "images")
    labels.tofile(folder / "labels")
    return images, labels


def of_python(ranks: int, images: np.ndarray, labels: np.ndarray) -> tuple[list[np.float32], np.ndarray]:
    """Returns the losses, and the state that the program prints."""

    def train(world: ls.Communicator) -> tuple[list[np.float32], np.ndarray]:
        step = ls.train_step(ls.load_onnx(MODEL, dims={"batch": BATCH}), LOSS, ls.optim.SGD(0.05, momentum=0.9))
        exe = ls.compile(step, world=world, threads=1)
        batches = [slice(i, i + BATCH) for i in range(0, len(labels), BATCH)]
        shares = [
            slice(all.start + world.rank * BATCH // ranks, all.start + (world.rank + 1) * BATCH // ranks)
            for all in batches
        ]
        losses = [exe(image=images[share], label=labels[share])["loss"][()] for share in shares]
        return losses, np.asarray(exe.state["fc2.bias"])

    return run_in_threads(ranks, train)[0]


def run(program: Path, *launcher: str) -> tuple[list[np.float32], np.ndarray, int]:
    command = [*launcher, program, MODEL, "images", "labels"]
    environment = {**OUTSIDE, **MPI_ENVIRONMENT}
    ran = subprocess.run(
        command, cwd=program.parent, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    losses = [np.float32(loss) for loss in re.findall(r"loss (\S+)", ran.stdout)]
    (printed,) = re.findall(r"fc2.bias of (\d+) ranks: dense<f32\[10\]: (.*)>", ran.stdout)
    return losses, np.array(printed[1].split(", "), np.float32), int(printed[0])


def test_the_files_have_the_version_of_the_package(prefix: Path) -> None:
    assert flags(prefix, "--modversion") == [ls.__version__]


def test_the_page_shows_the_program() -> None:
    (block,) = blocks("docs/cpp.md", "cpp")
    assert block.code in (ROOT / "cpp_library/train.cc").read_text()


def test_one_rank_computes_what_python_computes(program: Path, data: tuple[np.ndarray, np.ndarray]) -> None:
    losses, bias, ranks = run(program)
    expected, expected_bias = of_python(1, *data)
    assert (ranks, len(losses), len(set(losses))) == (1, BATCHES, BATCHES)
    np.testing.assert_array_equal(losses, expected)
    np.testing.assert_array_equal(bias, expected_bias)


@pytest.mark.parametrize(
    "launcher",
    [["mpirun", "-np", "2"], [sys.executable, "-m", "lockstep", "launch", "-n", "2", "--launcher", "direct"]],
    ids=["mpirun", "launch"],
)
def test_two_ranks_compute_what_python_computes(
    program: Path, data: tuple[np.ndarray, np.ndarray], launcher: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OUTSIDE, "PYTHONPATH", os.environ["PYTHONPATH"])  # for the launcher
    losses, bias, ranks = run(program, *launcher)
    expected, expected_bias = of_python(2, *data)
    assert (ranks, len(losses)) == (2, BATCHES)
    np.testing.assert_array_equal(losses, expected)
    np.testing.assert_array_equal(bias, expected_bias)
    np.testing.assert_allclose(losses, of_python(1, *data)[0], rtol=1e-5)


def test_a_second_installation_replaces_the_headers(prefix: Path) -> None:
    include, library = prefix / "include/lockstep", ROOT / "bazel-bin/cpp_library/liblockstep.so"
    before = {file: file.read_bytes() for file in prefix.rglob("*.*") if file.is_file()}
    (include / "core/of_an_older_version.h").touch()
    subprocess.run([sys.executable, ROOT / "cpp_library/install.py", library, prefix], check=True)
    assert {file: file.read_bytes() for file in prefix.rglob("*.*") if file.is_file()} == before
