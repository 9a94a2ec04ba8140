"""Data sets in parts: the samples of each part, their order, and training by ranks with parts of their own."""

from __future__ import annotations

import pickle
import struct
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import lockstep as ls
from cases import FASHION_MNIST, ROOT
from ranks import run_in_threads

COUNTS = [(10, 1), (10, 2), (10, 3), (11, 4), (3, 5), (60000, 7)]


def parts_of(length: int, parts: int, seed: int | None, epoch: int = 0) -> list[list[int]]:
    samplers = [ls.data.SplitSampler(length, parts, index, seed=seed) for index in range(parts)]
    for sampler in samplers:
        sampler.epoch = epoch
    found = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(part) for part in found]
    return found


@pytest.mark.parametrize(("length", "parts"), COUNTS)
@pytest.mark.parametrize("seed", [None, 0, 7])
def test_every_sample_is_in_one_part_and_parts_differ_by_one(length: int, parts: int, seed: int | None) -> None:
    found = parts_of(length, parts, seed)
    assert sorted(chain(*found)) == list(range(length))
    lengths = [len(part) for part in found]
    assert max(lengths) - min(lengths) <= 1
    assert {type(number) for number in found[-1]} == {int}, "not every data set accepts NumPy integers"


@pytest.mark.parametrize("seed", [None, 3])
def test_all_parts_cut_one_permutation(seed: int | None) -> None:
    for epoch in range(3):
        alone = list(chain(*parts_of(100, 1, seed, epoch)))
        for parts in (2, 3, 7):
            assert list(chain(*parts_of(100, parts, seed, epoch))) == alone
        assert (alone == list(range(100))) == (seed is None)


def test_each_iteration_is_an_epoch_with_other_samples() -> None:
    sampler = ls.data.SplitSampler(100, num_parts=2, part_index=1, seed=5)
    first, second = list(sampler), list(sampler)
    assert first != second and set(first) != set(second) and sampler.epoch == 2
    sampler.epoch = 0
    assert list(sampler) == first
    assert list(ls.data.SplitSampler(100, 2, 1, seed=6)) != first
    assert repr(sampler) == "SplitSampler(length=100, num_parts=2, part_index=1, seed=5)"


def test_the_order_of_a_seed_is_one_for_all_time() -> None:
    """Like `batches`: a run that continues after an update of Lockstep gets the same samples."""
    sampler = ls.data.SplitSampler(12, seed=3)
    assert list(sampler) == [11, 7, 2, 10, 0, 1, 4, 6, 9, 5, 3, 8]
    assert list(sampler) == [0, 4, 11, 1, 2, 5, 10, 7, 9, 8, 6, 3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((10, 0), "SplitSampler: num_parts is 0, expected at least 1"),
        ((10, 2, 2), "SplitSampler: part_index is 2, of 2 parts, which are numbered from 0"),
        ((10, 2, -1), "SplitSampler: part_index is -1, expected at least 0"),
        ((10, 2), "SplitSampler: num_parts is 2, but part_index, the number of this part, is missing"),
        ((-1,), "SplitSampler: length is -1, expected at least 0"),
        ((10, 2.5), "SplitSampler: num_parts is 2.5, expected a whole number"),
    ],
)
def test_parts_that_there_are_not(arguments: tuple, words: str) -> None:
    with pytest.raises(ls.Error, match=words):
        ls.data.SplitSampler(*arguments)


# --- Batches of parts


def test_num_parts_of_batches_is_what_a_world_is() -> None:
    samples = np.arange(22)
    for index in range(3):
        world = SimpleNamespace(rank=index, size=3)
        shares = ls.data.batches(samples, size=6, world=world, seed=4, last="pad")
        parts = ls.data.batches(samples, size=6, num_parts=3, part_index=index, seed=4, last="pad")
        for one, other in zip(shares, parts, strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(ls.Error, match="world and num_parts both divide the batches"):
        ls.data.batches(samples, size=6, num_parts=3, part_index=1, world=SimpleNamespace(rank=0, size=2))
    with pytest.raises(ls.Error, match="batches: part_index is 3, of 3 parts"):
        ls.data.batches(samples, size=6, num_parts=3, part_index=3)
    with pytest.raises(ls.Error, match="batches: num_parts is 3, but part_index, the number of this part, is missing"):
        ls.data.batches(samples, size=6, num_parts=3)


def test_a_sampler_says_which_samples_come_and_in_which_order() -> None:
    samples = np.arange(23) * 10
    found: Counter[int] = Counter()
    for index in range(2):
        sampler = ls.data.SplitSampler(23, 2, index, seed=1)
        expected = list(sampler)
        sampler.epoch = 0
        batches = ls.data.batches(samples, size=4, sampler=sampler, last="pad")
        assert len(batches) == 3 and batches.dropped == 0
        first = np.concatenate([rows[weight == 1] for rows, weight in batches]).tolist()
        assert first == [10 * number for number in expected]
        second = np.concatenate([rows[weight == 1] for rows, weight in batches]).tolist()
        assert second != first, "the next iteration is the next epoch"
        found.update(second)
    assert found == Counter(samples.tolist())
    for numbers in ([5, 0, 5], np.uint8([5, 0, 5])):
        (batch,) = ls.data.batches(samples, size=3, sampler=numbers)
        assert batch[0].tolist() == [50, 0, 50]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": [0, 10]}, "gives the number 10, but there are 10 samples"),
        ({"sampler": [0, -1]}, "gives the number -1"),
        ({"sampler": ["a", "b"]}, "whose elements are not whole numbers"),
        ({"sampler": [1.0, 2.9]}, "whose elements are not whole numbers: 1.0"),
        ({"sampler": np.arange(4) > 1}, "whose elements are not whole numbers: "),
        ({"sampler": [0, True]}, "whose elements are not whole numbers: True"),
        ({"sampler": "ab"}, "expected numbers of samples, such as a SplitSampler"),
        ({"sampler": [0, 1], "seed": 1}, "sampler and seed both decide the order"),
        ({"sampler": [0, 1], "num_parts": 2, "part_index": 0}, "which would be divided again: leave out world"),
        ({"sampler": []}, "there are no samples"),
        ({"epoch_size": 0}, "epoch_size is 0, expected at least 1"),
    ],
)
def test_samplers_and_epochs_that_are_wrong(options: dict, words: str) -> None:
    with pytest.raises(ls.Error, match=words):
        list(ls.data.batches(np.arange(10), size=2, **options))


@pytest.mark.parametrize("seed", [None, 2])
def test_an_epoch_of_more_batches_begins_anew(seed: int | None) -> None:
    samples = np.arange(10)
    batches = ls.data.batches(samples, size=4, seed=seed, epoch_size=6)
    assert len(batches) == 6 and batches.dropped == 0
    rows = np.concatenate([rows for (rows,) in batches])
    assert len(rows) == 24, "every batch is full"
    first, second = rows[:10], rows[10:20]
    assert sorted(first) == sorted(second) == list(range(10)), "each sample comes once before any is repeated"
    assert (first.tolist() == second.tolist()) == (seed is None)
    shared = [
        [rows for (rows,) in ls.data.batches(samples, size=4, seed=seed, epoch_size=6, num_parts=2, part_index=i)]
        for i in range(2)
    ]
    np.testing.assert_array_equal(np.concatenate(np.concatenate(shared, axis=1)), rows)
    left = ls.data.batches(samples, size=4, seed=seed, epoch_size=6, start=4)
    np.testing.assert_array_equal(np.concatenate([rows for (rows,) in left]), rows[16:])


def test_an_epoch_of_fewer_batches_and_one_of_a_batch_that_is_more_than_there_is() -> None:
    batches = ls.data.batches(np.arange(10), size=2, epoch_size=3)
    assert [rows.tolist() for (rows,) in batches] == [[0, 1], [2, 3], [4, 5]] and batches.dropped == 4
    assert [rows.tolist() for (rows,) in ls.data.batches(np.arange(3), size=7, epoch_size=1)] == [[0, 1, 2, 0, 1, 2, 0]]


def test_turns_that_a_part_sees_nothing_of_are_counted() -> None:
    whole = np.concatenate([rows for (rows,) in ls.data.batches(np.arange(3), size=8, seed=1, epoch_size=6)])
    for part in range(2):
        options = {"size": 8, "seed": 1, "epoch_size": 6, "num_parts": 2, "part_index": part}
        parts = [rows.tolist() for (rows,) in ls.data.batches(np.arange(3), **options)]
        assert parts == whole.reshape(6, 2, 4)[:, part].tolist()
        assert [rows.tolist() for (rows,) in ls.data.batches(np.arange(3), **options, start=5)] == parts[5:]


def test_a_padded_epoch_of_more_batches_counts_each_sample_once() -> None:
    batches = ls.data.batches(np.arange(5), size=2, epoch_size=4, last="pad")
    found = [(rows.tolist(), weight.tolist()) for rows, weight in batches]
    assert found == [([0, 1], [1, 1]), ([2, 3], [1, 1]), ([4, 0], [1, 0]), ([0, 0], [0, 0])]


# --- Readers


def idx(path: Path, array: np.ndarray) -> None:
    path.write_bytes(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MNIST's files of 11 images, and 11 image files of three classes. The red value is the image's number."""
    folder = tmp_path_factory.mktemp("parts")
    idx(folder / "train-images-idx3-ubyte", np.arange(11 * 4, dtype=np.uint8).reshape(11, 2, 2))
    idx(folder / "train-labels-idx1-ubyte", np.arange(11, dtype=np.uint8))
    for i in range(11):
        file = folder / "images" / f"class{i % 3}" / f"{i:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((6, 4, 3), (i, 100, 255), np.uint8)).save(file)
    (folder / "images/class0/notes.txt").write_text("no image")
    return folder


def numbers_of(reader: str, folder: Path, **part: int | None) -> list[int]:
    """The numbers of the samples that a reader gives, in order."""
    if reader == "load_idx":
        return ls.data.load_idx(folder / "train-labels-idx1-ubyte", **part).tolist()
    if reader == "mnist":
        images, labels = ls.data.mnist(folder, **part)
        np.testing.assert_array_equal(np.rint(images[:, 0, 0, 0] * 255), labels * 4)
        return labels.tolist()
    if reader == "image_folder":
        images = ls.data.image_folder(folder / "images", **part)
        assert images.num_parts == part.get("num_parts", 1)
        for i, (_, label) in enumerate(images):
            assert label == int(images.path(i).stem) % 3
        return [round(float(image[0, 0, 0]) * 255) for image, _ in images]
    records = ls.data.records(ROOT / "test/python/recordio/plain.rec", **part)
    assert records.num_parts == part.get("num_parts", 1)
    return records.keys


READERS = ["load_idx", "mnist", "image_folder", "records"]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("seed", [None, 9])
def test_the_parts_of_a_reader_are_the_whole(reader: str, seed: int | None, folder: Path) -> None:
    whole = numbers_of(reader, folder)
    order = ls.data.SplitSampler(len(whole), seed=seed)
    expected = [whole[row] for row in order]
    assert (expected == whole) == (seed is None)
    for parts in (1, 2, 3, 5):
        found = [numbers_of(reader, folder, num_parts=parts, part_index=i, seed=seed) for i in range(parts)]
        assert list(chain(*found)) == expected
        assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_has_no_such_part(reader: str, folder: Path) -> None:
    with pytest.raises(ls.Error, match=f"{reader}: part_index is 4, of 4 parts"):
        numbers_of(reader, folder, num_parts=4, part_index=4)
    with pytest.raises(
        ls.Error, match=f"{reader}: num_parts is 4, but part_index, the number of this part, is missing"
    ):
        numbers_of(reader, folder, num_parts=4)


def test_fashion_mnist_in_parts_is_fashion_mnist() -> None:
    images, labels = ls.data.mnist(FASHION_MNIST, train=False)
    parts = [ls.data.mnist(FASHION_MNIST, train=False, num_parts=3, part_index=i) for i in range(3)]
    assert [len(labels) for _, labels in parts] == [3333, 3333, 3334]
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in parts]), labels)
    np.testing.assert_array_equal(np.concatenate([images for images, _ in parts]), images)


# --- Folders of images


def test_images_as_they_are_and_in_a_size(folder: Path) -> None:
    images = ls.data.image_folder(folder / "images")
    assert images.classes == ["class0", "class1", "class2"] and len(images) == 11
    image, label = images[5]
    assert (image.shape, image.dtype, label.dtype, int(label)) == ((3, 6, 4), np.float32, np.int64, 1)
    np.testing.assert_array_equal(image[:, 0, 0], np.array([4, 100, 255], np.float32) / 255)
    image, _ = ls.data.image_folder(folder / "images", size=5)[5]
    assert image.shape == (3, 5, 5) and image.flags.c_contiguous
    ((batch, labels),) = ls.data.batches(images, size=11)
    assert batch.shape == (11, 3, 6, 4) and labels.tolist() == [0] * 4 + [1] * 4 + [2] * 3


def test_the_middle_is_what_is_left_of_a_border(tmp_path: Path) -> None:
    pixels = np.zeros((256, 300, 3), np.uint8)
    pixels[16:240, 38:262] = 255
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a/one.png")
    assert ls.data.image_folder(tmp_path, size=224)[0][0].min() == 1


def test_endings_in_capitals_are_endings(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("1.PNG", "2.png", "3.TXT"):
        Image.new("RGB", (2, 2)).save(tmp_path / "a" / name, "PNG")
    (tmp_path / "README.png").write_text("beside the folders of the classes")
    images = ls.data.image_folder(tmp_path)
    assert images.classes == ["a"] and [images.path(i).name for i in range(len(images))] == ["1.PNG", "2.png"]


def test_an_image_that_pillow_finds_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "a/1.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1)
    with pytest.raises(ls.Error, match="a/1.png: this is not a readable image: .*decompression bomb"):
        ls.data.image_folder(tmp_path)[0]


def double(image: Image.Image, index: int) -> np.ndarray:
    return np.asarray(image, np.int64)[0, 0, 0] * 100 + index


def test_a_transform_gets_the_image_and_its_number(folder: Path) -> None:
    images = ls.data.image_folder(folder / "images", transform=double, num_parts=2, part_index=1)
    assert [int(sample) for sample, _ in images] == [int(images.path(i).stem) * 100 + i for i in range(6)]
    again = pickle.loads(pickle.dumps(images))
    assert [int(sample) for sample, _ in again] == [int(sample) for sample, _ in images]
    plain = images.transformed(lambda image, _: image.size)
    assert plain[0][0] == (4, 6) and plain.num_parts == 2


def test_folders_that_are_wrong(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty/cat").mkdir(parents=True)
    (tmp_path / "broken/cat").mkdir(parents=True)
    (tmp_path / "broken/cat/1.png").write_bytes(b"no image")
    for path, options, words in (
        ("nowhere", {}, "nowhere: there is no such folder"),
        ("empty/cat", {}, "empty/cat: there are no folders in it; expected one for each class"),
        ("empty", {}, "empty: there are no images; expected .*/<class>/\\*.jpg"),
        ("empty", {"classes": ["dog"]}, "empty/cat: `classes` has no such class"),
        ("empty", {"size": 0}, "image_folder: size is 0, expected at least 1"),
        ("empty", {"size": 3, "transform": double}, "size and transform both transform"),
        ("empty", {"transform": 3}, "transform is 3, expected a function"),
    ):
        with pytest.raises(ls.Error, match=words):
            ls.data.image_folder(tmp_path / path, **options)
    images = ls.data.image_folder(tmp_path / "broken")
    with pytest.raises(ls.Error, match="cat/1.png: this is not a readable image"):
        images[0]
    part = ls.data.image_folder(folder / "images", num_parts=2, part_index=0)
    with pytest.raises(ls.Error, match="the data set is already one of 2 parts, which 2 ranks would divide again"):
        ls.data.batches(part, size=2, world=SimpleNamespace(rank=0, size=2))


# --- Training


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_of_unequal_length_train_as_one_rank_with_all_samples(ranks: int) -> None:
    """If the parts are read in one round, batches have the samples of one rank's. The losses are then equal, with
    correct weights.
    """
    count, share = 17, 2  # so that one of three parts is shorter, and ends in another step
    random = np.random.default_rng(0)
    x, label = random.standard_normal((count, 12)).astype(np.float32), random.integers(0, 5, count)

    def step(batch: int) -> ls.Graph:
        model = ls.load_onnx(ROOT / "test/models/mlp.onnx", dims={"batch": batch})
        loss = ls.loss.softmax_cross_entropy("logits", "label")
        return ls.train_step(model, loss, ls.optim.SGD(0.5), uneven=True)

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, np.ndarray], int]:
        exe = ls.compile(step(share * world.size), world=world, threads=1)
        sampler = ls.data.SplitSampler(count, world.size, world.rank, seed=3)
        losses, rows = [], 0
        for _ in range(2):
            mine = ls.data.batches(x, label, size=share, sampler=sampler, last="pad")
            for result in exe.joined({"x": x, "label": label, "rows": rows} for x, label, rows in mine):
                losses.append(float(result["loss"]))
                rows += int(result["rows"])
        return losses, {name: exe.state[name].copy() for name in exe.state}, rows

    results = run_in_threads(ranks, body)
    for losses, states, rows in results:
        assert rows == 2 * count, "each sample counts once in each epoch"
        assert losses == results[0][0]
        for name, value in states.items():
            np.testing.assert_array_equal(value, results[0][1][name])

    alone = ls.compile(step(share * ranks), threads=1)
    expected = []
    samplers = [ls.data.SplitSampler(count, ranks, rank, seed=3) for rank in range(ranks)]
    for _ in range(2):
        parts = [list(sampler) for sampler in samplers]
        for begin in range(0, max(map(len, parts)), share):
            rows = list(chain(*(part[begin : begin + share] for part in parts)))
            expected.append(float(alone(x=x[rows], label=label[rows])["loss"]))
    np.testing.assert_allclose(results[0][0], expected, rtol=1e-5)
    for name, value in results[0][1].items():
        np.testing.assert_allclose(value, alone.state[name], rtol=1e-4, atol=1e-6)
