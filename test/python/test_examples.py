"""The examples with tiny settings, on one rank and on several, killed and resumed, and their errors for wrong folders
and files.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lockstep as ls
from cases import ROOT
from ranks import mpirun

HERE = Path(__file__).parent
EXAMPLES = ROOT / "examples"
COLOURS = ((200, 40, 40), (40, 200, 40), (40, 40, 200), (120, 120, 120))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A text, and a folder of images of several sizes in four classes that differ in colour: 160 for training, and 43,
    which do not fill the batches, for validation.
    """
    folder = tmp_path_factory.mktemp("data")
    random = np.random.Generator(np.random.PCG64(0))
    for part, count in (("train", 160), ("val", 43)):
        for i in range(count):
            pixels = random.integers(0, 56, (30 + i % 7, 40 - i % 5, 3)) + COLOURS[i % 4]
            file = folder / "images" / part / f"class{i % 4}" / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(file)
    (folder / "poems.txt").write_bytes((EXAMPLES / "language/sonnets.txt").read_bytes()[:16000])
    return {"images": folder / "images", "text": folder / "poems.txt"}


# For each example: tiny settings of two epochs, the number of ranks, and the files that it writes.
TINY = {
    "imagenet": "--epochs 2 --batch 16 --depth 18 --width 8 --size 32 --lr 0.6 --readers 2",
    "language": "--epochs 2 --batch 32 --layers 2 --width 32 --heads 4 --length 32 --lr 0.01 --sample 40",
    "segmentation": "--epochs 2 --batch 16 --size 32 --width 4 --depth 2 --samples 160 --validation 21 --lr 0.001",
    "pipeline": "--epochs 2 --batch 32 --micro-batches 4 --layers 4 --width 32 --length 32 --lr 0.02 --sample 40",
}
RANKS = dict.fromkeys(TINY, 2) | {"pipeline": 4}
FILES = {
    "imagenet": {"history.json", "training.png", "resnet-trained.onnx"},
    "language": {"history.json", "training.png", "gpt-trained.onnx", "sample.txt"},
    "segmentation": {"history.json", "training.png", "unet-trained.onnx", "predictions.png"},
    "pipeline": {"history.json", "training.png", "trained.safetensors", "lstm-trained.onnx", "sample.txt"},
}


def command(name: str, data: dict[str, Path], out: Path, *options: str | Path) -> list[str]:
    text = ["--text", data["text"]]
    given = {"imagenet": ["--data", data["images"]], "language": text, "segmentation": [], "pipeline": text}[name]
    return [*map(str, [EXAMPLES / name / "train.py", *TINY[name].split(), *given, "--out", out, *options])]


@pytest.fixture(scope="module", params=TINY)
def runs(
    request: pytest.FixtureRequest, data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """The name of an example, and a folder with its output: files in `1` for one rank and in `2` (or the example's
    number of ranks) for several, and the printed text.
    """
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    ranks = RANKS[name]
    alone = [sys.executable, *command(name, data, folder / "1")]
    options = ("--checkpoints", folder / "checkpoints", "--checkpoint-every", 3)
    on_several = command(name, data, folder / str(ranks), *options)
    done = subprocess.run(alone, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "1.txt").write_text(done.stdout)
    done = mpirun(ranks, *on_several, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "epoch 2/2: 100%" in done.stderr
    assert "loss=" in done.stderr
    (folder / f"{ranks}.txt").write_text(done.stdout)
    return name, folder


def history(folder: Path) -> dict[str, list]:
    return json.loads((folder / "history.json").read_text())


def test_an_example_learns_and_leaves_its_results(runs: tuple[str, Path]) -> None:
    name, folder = runs
    for ranks in ("1", str(RANKS[name])):
        printed = (folder / f"{ranks}.txt").read_text()
        assert f"ranks        {ranks} (mpi)" in printed
        assert len(re.findall(r"^epoch +[12]: loss ", printed, re.MULTILINE)) == 2, "only rank 0 prints"
        written = {Path(path) for path in re.findall(r"^wrote (.*?):", printed, re.MULTILINE)}
        assert written == {folder / ranks / file for file in FILES[name]}
        for path in written:
            assert path.stat().st_size > 40, path
            if path.suffix == ".png":
                assert Image.open(path).size >= (600, 400)
        losses = history(folder / ranks)["losses"]
        assert np.mean(losses[-5:]) < 0.97 * np.mean(losses[:5])


def test_results_do_not_depend_on_the_number_of_ranks(runs: tuple[str, Path]) -> None:
    name, folder = runs
    one, several = (history(folder / ranks) for ranks in ("1", str(RANKS[name])))
    np.testing.assert_allclose(one["losses"], several["losses"], rtol=1e-4)
    assert len(one["results"]) == len(several["results"]) == 2
    for a, b in zip(one["results"], several["results"], strict=True):
        assert a.keys() == b.keys() and len(a) > 1
        np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=1e-3)


@pytest.mark.parametrize("runs", ["pipeline"], indirect=True)
def test_each_rank_of_a_pipeline_holds_its_own_layers(runs: tuple[str, Path]) -> None:
    """Together the ranks hold the states of one rank. Only the optimizer's step count is on several."""
    found = {}
    for ranks in (1, 4):
        printed = (runs[1] / f"{ranks}.txt").read_text()
        lines = re.findall(r"^rank (\d) +([\d,]+) bytes of states: (.*)$", printed, re.MULTILINE)
        assert [line[0] for line in lines] == [str(rank) for rank in range(ranks)]
        sizes = [int(line[1].replace(",", "")) for line in lines]
        found[ranks] = sum(sizes), sorted(", ".join(line[2] for line in lines).split(", "))
        assert ranks == 1 or max(sizes) < 0.5 * sum(sizes)
    assert found[1][0] <= found[4][0] < found[1][0] + 100
    assert found[1][1] == found[4][1] and "layers.3.weight_hh" in found[4][1]


@pytest.mark.parametrize("runs", ["language"], indirect=True)  # it draws the most: dropout, and positions of windows
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(
    runs: tuple[str, Path], data: dict[str, Path], tmp_path: Path
) -> None:
    name, folder = runs
    whole, killed = folder / "checkpoints", tmp_path / "killed"
    options = ("--checkpoints", killed, "--checkpoint-every", 3)
    arguments = command(name, data, tmp_path / "out", *options)
    step = ls.Checkpoints(whole).steps()[-1]
    kill = (HERE / "killed.py", killed, f"step-{step * 2 // 3 // 3 * 3:012d}.safetensors")  # a file of the second epoch
    assert mpirun(2, *kill, *arguments).returncode != 0
    assert 0 < ls.Checkpoints(killed).steps()[-1] < step
    done = mpirun(2, *arguments)
    assert "is of an earlier run: --resume continues it" in done.stderr
    done = mpirun(2, *arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert re.search(r"continues after step [1-9]", done.stdout)
    last = f"step-{step:012d}.safetensors"
    assert (killed / last).read_bytes() == (whole / last).read_bytes()
    assert (
        history(tmp_path / "out")["losses"]
        == history(folder / "2")["losses"][-len(history(tmp_path / "out")["losses"]) :]
    )
    assert (tmp_path / "out/gpt-trained.onnx").read_bytes() == (folder / "2/gpt-trained.onnx").read_bytes()


@pytest.mark.parametrize("runs", ["segmentation"], indirect=True)
def test_a_run_that_is_finished_goes_on_with_nothing(
    runs: tuple[str, Path], data: dict[str, Path], tmp_path: Path
) -> None:
    name, folder = runs
    options = ("--checkpoints", folder / "checkpoints", "--resume")
    again = [sys.executable, *command(name, data, tmp_path, *options)]  # on one rank, after a run on two
    done = subprocess.run(again, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "continues after step 20\n" in done.stdout
    final = re.compile(r"^intersection over union.*mean ([\d.]+)$", re.MULTILINE)
    (before,), (after,) = (final.findall(each) for each in ((folder / "2.txt").read_text(), done.stdout))
    assert abs(float(before) - float(after)) < 1e-3
    again += ["--batch", "20"]
    message = r"step-000000000020.safetensors: batch was 16 when it was saved, and is 20"
    assert re.search(message, fails(*again[1:]))


@pytest.mark.parametrize(
    "runs",
    [pytest.param("imagenet", marks=pytest.mark.everything), "language"],  # with and without batch normalisation
    indirect=True,
)
def test_a_file_of_ones_own_is_trained_in_the_place_of_the_network(
    runs: tuple[str, Path], data: dict[str, Path]
) -> None:
    """For instance a file that an earlier run wrote: training continues from its weights."""
    name, folder = runs
    (model,) = (folder / "1").glob("*-trained.onnx")
    options = ["--model", model, "--epochs", "1"]
    again = [sys.executable, *command(name, data, folder / "again", *options)]
    done = subprocess.run(again, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert history(folder / "again")["losses"][0] < 0.9 * history(folder / "1")["losses"][0]


def fails(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, "a user needs only the message"
    return done.stderr


def test_folders_of_images_that_are_wrong(data: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "flat/train").mkdir(parents=True)
    (tmp_path / "empty/train/cat").mkdir(parents=True)
    shutil.copytree(data["images"], tmp_path / "other")
    (tmp_path / "other/val/class9").mkdir()
    for folder, message in (
        ("nowhere", "nowhere/train: there is no such folder"),
        ("flat", "flat/train: there are no folders in it; expected one for each class"),
        ("empty", "empty/train: there are no images; expected .*<class>/\\*.jpg"),
        ("other", "other/val/class9: `classes` has no such class"),
    ):
        assert re.search(
            message, fails(*command("imagenet", data | {"images": tmp_path / folder}, tmp_path / "out"))
        ), folder


def test_an_image_that_is_damaged_ends_all_ranks(data: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(data["images"], broken)
    (broken / "train/class1/5.jpg").write_bytes((data["images"] / "train/class1/5.jpg").read_bytes()[:300])
    arguments = command("imagenet", data | {"images": broken}, tmp_path / "out")
    done = mpirun(2, HERE / "exit_code.py", tmp_path, *arguments, timeout=60)
    assert 0 not in [int((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert re.search(r"class1/5.jpg: this is not a readable image: .*[Tt]runcated", done.stderr), done.stderr


def test_a_batch_that_the_ranks_cannot_share(data: dict[str, Path], tmp_path: Path) -> None:
    done = mpirun(2, *command("segmentation", data, tmp_path, "--batch", "15"), timeout=60)
    assert done.returncode != 0
    assert re.search("15.*2 ranks|2 ranks.*15", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("language", ["--text", "/nowhere/book.txt"], "No such file.*'/nowhere/book.txt'"),
        ("language", ["--text", str(HERE / "ranks.py"), "--length", "4096"], "ranks.py: .* bytes to .*at least 8192"),
        ("language", ["--heads", "3"], "width of 32 cannot be shared by 3 heads"),
        ("language", ["--batch", "100000"], "--batch: 100000 is more than the 449 samples of the training set"),
        ("pipeline", ["--micro-batches", "5"], "32.*5|5.*32"),
        ("pipeline", ["--stages", "2"], "--stages: 1 ranks do not make pipelines of 2 stages"),
        ("segmentation", ["--size", "33"], "33 x 33 cannot be halved 2 times"),
        ("segmentation", ["--average", "2"], "average.exponential: decay is 2"),
        ("segmentation", ["--resume"], "--resume: needs --checkpoints"),
        ("imagenet", ["--batch", "0"], "--batch: 0 is not at least 1"),
        ("imagenet", ["--model", "/nowhere.onnx"], "/nowhere.onnx: there is no such file"),
    ],
)
def test_options_that_are_wrong(
    name: str, options: list[str], message: str, data: dict[str, Path], tmp_path: Path
) -> None:
    assert re.search(message, fails(*command(name, data, tmp_path / "out", *options)), re.DOTALL)


@pytest.mark.parametrize(
    ("name", "options", "parameters"),
    [  # PyTorch's networks of these shapes have as many parameters, running statistics aside
        ("imagenet", ["--depth", "50"], "25,610,152"),
        ("language", [], "842,496"),
        ("segmentation", [], "484,196"),
        ("pipeline", [], "594,176"),
    ],
)
def test_a_model_is_written_for_others(name: str, options: list[str], parameters: str, tmp_path: Path) -> None:
    file = tmp_path / "models/model.onnx"
    arguments = [sys.executable, EXAMPLES / name / "model.py", *options, "--out", file]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=True)
    assert parameters in done.stdout
    model = ls.load_onnx(file, dims={"batch": 3})
    assert [result.name for result in model.results] == ["logits"]
    assert ("attention" in model.short()) == (name == "language"), (
        "attention is one op, whose gradient stores no matrix of scores"
    )
