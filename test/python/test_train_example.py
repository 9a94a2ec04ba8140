"""examples/mnist/train.py under mpirun, on a small part of Fashion-MNIST."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import lockstep as ls
from cases import FASHION_MNIST, ROOT
from ranks import mpirun

HERE = Path(__file__).parent
TRAIN = ROOT / "examples/mnist/train.py"
TRAINED, TESTED = 2000, 1000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for part, count in (("train", TRAINED), ("t10k", TESTED)):
        for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            array = ls.data.load_idx(Path(FASHION_MNIST) / f"{part}-{name}.gz")[:count]
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{part}-{name}").write_bytes(header + array.tobytes())
    return folder


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_training(optimizer: str, data: Path, tmp_path: Path) -> None:
    arguments = ["--epochs", 1, "--batch", 50, "--optimizer", optimizer, "--data", data, "--out", tmp_path / "out"]
    done = mpirun(2, TRAIN, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    out = done.stdout
    header = {line.split()[0]: line for line in out.splitlines() if line and not line[0].isspace()}
    assert re.search(r"ranks +2 \(mpi\), 1 thread each", header["ranks"])
    assert re.search(r"lenet\.onnx: 431,080 parameters in 8 tensors", header["model"])
    assert re.search(r"2,000 images; global batch 50, 25 a rank", header["data"])
    assert re.search(rf"{optimizer}, 1 epochs?$", header["optimizer"])
    assert re.search(r"[1-9]\d* a step", header["collectives"])
    assert re.search(r"all_reduce sum f32\[\d+\] along data, bucket 0", out)
    assert out.count("test accuracy") == 1, "only rank 0 prints"
    assert "epoch 1/1: 100%" in done.stderr
    assert "loss=" in done.stderr
    assert re.search(r"trained in [\d.]+ s, [\d,]+ images/s", out)

    written = [Path(path) for path in re.findall(r"^wrote (.*?):", out, re.MULTILINE)]
    assert {path.suffix for path in written} == {".onnx", ".png", ".ir", ".txt"}
    for path in written:
        assert path.stat().st_size > 100, path
        assert path.parent == tmp_path / "out"
    by_suffix = {path.suffix: path for path in written}
    png = by_suffix[".png"].read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert png.endswith(b"IEND\xaeB`\x82")
    graph = ls.parse(by_suffix[".ir"].read_text())
    assert [value.shape for value in graph.inputs] == [(25, 1, 28, 28), (25,)]
    assert "all_reduce" in str(graph)
    assert "ranks=2" in by_suffix[".txt"].read_text()

    accuracy = float(re.search(r"^test accuracy ([\d.]+)$", out, re.MULTILINE)[1])
    assert accuracy > 0.5, "ten classes, so 0.1 is chance"
    images, labels = ls.data.mnist(data, train=False)
    (logits,) = onnxruntime.InferenceSession(by_suffix[".onnx"]).run(["logits"], {"image": images})
    assert abs(np.mean(logits.argmax(axis=1) == labels) - accuracy) <= 1e-3


# Checkpoints after every seventh of 80 steps, and after the last one.
RUN = ["--epochs", "2", "--batch", "50", "--optimizer", "adam", "--checkpoint-every", "7"]


def run_with_checkpoints(
    ranks: int, data: Path, folder: Path, *options: str, before: tuple[Path | str, ...] = ()
) -> str:
    """The output of the run, even if it failed. Checkpoints are in `folder`, results in <folder>-out."""
    files = ["--data", data, "--out", f"{folder}-out", "--checkpoints", folder]
    done = mpirun(ranks, *before, TRAIN, *RUN, *files, *options)
    assert (done.returncode == 0) == (not before), done.stderr
    return done.stdout


def test_a_run_that_is_killed_and_resumed_ends_with_the_bits_of_one_that_was_not(data: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run_with_checkpoints(2, data, whole)
    assert ls.Checkpoints(whole).steps() == [70, 77, 80]
    for step in (14, 49):  # in the first and in the second epoch
        options = ["--resume"] if killed.exists() else []
        kill = (HERE / "killed.py", killed, f"step-{step:012d}.safetensors")
        run_with_checkpoints(2, data, killed, *options, before=kill)
        assert step <= ls.Checkpoints(killed).steps()[-1] < 80
        assert not Path(f"{killed}-out/lenet-trained.onnx").exists()
    last = ls.Checkpoints(killed).steps()[-1]
    assert f"continues after step {last}" in run_with_checkpoints(2, data, killed, "--resume")
    for name in ("killed/step-000000000080.safetensors", "killed-out/lenet-trained.onnx"):
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("killed", "whole")).read_bytes(), name
    # On one rank, no steps are left to do.
    assert "continues after step 80" in run_with_checkpoints(1, data, killed, "--resume")
    assert ls.Checkpoints(killed).steps()[-1] == 80


def test_a_folder_with_checkpoints_of_another_run(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    run_with_checkpoints(1, data, folder, "--epochs", "1", "--resume")
    for options, message in (
        ([], "step-000000000040.safetensors is of an earlier run: --resume continues it"),
        (["--resume", "--batch", "100"], "batch was 50 when it was saved, and is 100"),
        (["--resume", "--optimizer", "sgd"], "state .* which the program @.* has"),
    ):
        files = ["--data", data, "--out", tmp_path / "out", "--checkpoints", folder]
        done = mpirun(2, TRAIN, *RUN, *files, *options, timeout=60)
        assert done.returncode != 0
        assert_message(done.stderr, message)


def test_help() -> None:
    done = subprocess.run([sys.executable, TRAIN, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for option in (
        "--epochs",
        "--batch",
        "--lr",
        "--optimizer",
        "--data",
        "--out",
        "--print-graph",
        "--model",
        "--resume",
        "--checkpoints",
    ):
        assert re.search(rf"^ +{option}\b.*\S", done.stdout, re.MULTILINE), option
    assert "global batch" in done.stdout


def ids(value: list[str] | str) -> str | None:
    return " ".join(value) if isinstance(value, list) else None


def assert_message(stderr: str, message: str) -> None:
    assert re.search(message, stderr, re.DOTALL), stderr
    assert "Traceback" not in stderr, "a user needs only the message"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--batch", "33"], "33.*2 ranks"),
        (["--data", "/nowhere"], "/nowhere/train-images-idx3-ubyte: there is no such file"),
        (["--out", "/dev/null/out"], "rank 0 on host .*/dev/null"),  # only rank 0 opens it
    ],
    ids=ids,
)
def test_bad_options_end_all_ranks(options: list[str], message: str, data: Path, tmp_path: Path) -> None:
    arguments = ["--epochs", "1", "--data", str(data), "--out", str(tmp_path / "out"), *options]
    done = mpirun(2, HERE / "exit_code.py", tmp_path, TRAIN, *arguments, timeout=60)
    codes = [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert 0 not in codes, codes
    assert_message(done.stderr, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "/nowhere/lenet.onnx"], "/nowhere/lenet.onnx: there is no such file"),
        (["--lr", "-1"], "learning_rate is -1"),
        (["--optimizer", "rmsprop"], "--optimizer.*rmsprop.*sgd.*adam"),
        (["--epochs", "0"], "--epochs: 0"),
        (["--batch", "0"], "--batch: 0"),
        (["--batch", "many"], "--batch.*many"),
        (["--checkpoint-every", "0"], "--checkpoint-every: 0"),
        (["--resume"], "--resume: needs --checkpoints"),
    ],
    ids=ids,
)
def test_bad_options(options: list[str], message: str, data: Path, tmp_path: Path) -> None:
    command = [sys.executable, TRAIN, "--data", data, "--out", tmp_path / "out", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert_message(done.stderr, message)
