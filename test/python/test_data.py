"""Data files, and the samples of a batch that each rank gets."""

from __future__ import annotations

import gzip
import logging
import re
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lockstep as ls

SAMPLES = np.arange(22)
TARGETS = SAMPLES + 100


def epoch(ranks: int, seed: int | None) -> list[np.ndarray]:
    """The global batches, put together from the ranks' shares in rank order."""
    shares = []
    for rank in range(ranks):
        batches = ls.data.batches(SAMPLES, TARGETS, size=6, world=SimpleNamespace(rank=rank, size=ranks), seed=seed)
        assert len(batches) == 3
        assert batches.dropped == 4
        for sample, target in batches:
            assert len(sample) == 6 // ranks
            np.testing.assert_array_equal(target, sample + 100)
        shares.append([sample for sample, _ in batches])
    return [np.concatenate(batch) for batch in zip(*shares, strict=True)]


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_ranks_share_the_batches_that_one_rank_would_have(ranks: int, seed: int | None) -> None:
    np.testing.assert_array_equal(epoch(ranks, seed), epoch(1, seed))


def test_no_sample_comes_twice_and_the_seed_alone_decides_the_order() -> None:
    first, second = np.concatenate(epoch(2, seed=1)), np.concatenate(epoch(2, seed=2))
    assert len(set(first)) == len(first) == 18
    np.testing.assert_array_equal(first, np.concatenate(epoch(2, seed=1)))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(np.concatenate(epoch(2, seed=None)), SAMPLES[:18])


@pytest.mark.parametrize("seed", [None, 3])
def test_a_run_that_is_continued_gets_the_batches_that_are_left(seed: int | None) -> None:
    for rank in range(2):
        world = SimpleNamespace(rank=rank, size=2)
        every = [sample for (sample,) in ls.data.batches(SAMPLES, size=6, world=world, seed=seed)]
        for start in range(4):
            batches = ls.data.batches(SAMPLES, size=6, world=world, seed=seed, start=start)
            assert len(batches) == 3 - start
            assert batches.dropped == 4
            left = [sample for (sample,) in batches]
            assert len(left) == len(batches)
            for found, expected in zip(left, every[start:], strict=True):
                np.testing.assert_array_equal(found, expected)
    for start, words in ((4, "start is 4, of 3 batches"), (-1, "start is -1, expected at least 0")):
        with pytest.raises(ls.Error, match=words):
            ls.data.batches(SAMPLES, size=6, start=start)


# --- Padding


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_padded_batches_hold_each_sample_once(ranks: int, seed: int | None) -> None:
    found: list[int] = []
    for rank in range(ranks):
        world = SimpleNamespace(rank=rank, size=ranks)
        batches = ls.data.batches(SAMPLES, TARGETS, size=6, world=world, seed=seed, last="pad")
        assert (len(batches), batches.dropped) == (4, 0)
        for sample, target, weight in batches:
            assert sample.shape == target.shape == weight.shape == (6 // ranks,)
            assert weight.dtype == np.float32 and set(weight) <= {0, 1}
            assert set(sample) <= set(SAMPLES)
            np.testing.assert_array_equal(target, sample + 100)
            found += sample[weight == 1].tolist()
    assert sorted(found) == SAMPLES.tolist()


def test_padded_batches_are_the_others_and_one_more() -> None:
    dropped = list(ls.data.batches(SAMPLES, size=6, seed=3))
    padded = list(ls.data.batches(SAMPLES, size=6, seed=3, last="pad"))
    assert len(padded) == len(dropped) + 1
    for (found, weight), (expected,) in zip(padded, dropped, strict=False):
        np.testing.assert_array_equal(found, expected)
        assert weight.all()
    assert padded[-1][1].tolist() == [1, 1, 1, 1, 0, 0]
    (left,) = ls.data.batches(SAMPLES, size=6, seed=3, last="pad", start=3)
    np.testing.assert_array_equal(left[0], padded[-1][0])


def test_padding_where_nothing_has_to_be_padded_or_most_does() -> None:
    assert [weight.tolist() for _, weight in ls.data.batches(SAMPLES, size=11, last="pad")] == [[1] * 11] * 2
    world = SimpleNamespace(rank=1, size=2)  # all its rows are padding
    ((sample, weight),) = ls.data.batches(SAMPLES[:3], size=8, world=world, last="pad")
    assert weight.tolist() == [0] * 4 and set(sample) <= {0, 1, 2}
    with pytest.raises(ls.Error, match='last is \'keep\', expected "drop" or "pad"'):
        ls.data.batches(SAMPLES, size=6, last="keep")


# --- Data sets


class Squares:
    """Number i and an image of it. Records the indices that were read."""

    def __init__(self, count: int) -> None:
        self.read: list[int] = []
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        self.read.append(index)
        return np.full((2, 3), index, np.float32), index * index


@pytest.mark.parametrize("last", ["drop", "pad"])
def test_a_data_set_is_read_by_the_number_of_a_sample(last: str) -> None:
    numbers = np.arange(22)
    arrays = (np.broadcast_to(np.float32(numbers)[:, None, None], (22, 2, 3)), numbers * numbers)
    data_set = Squares(22)
    world = SimpleNamespace(rank=1, size=2)
    found = list(ls.data.batches(data_set, size=6, world=world, seed=5, last=last))
    expected = list(ls.data.batches(*arrays, size=6, world=world, seed=5, last=last))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
    assert len(data_set.read) == 3 * len(found)  # only this rank's samples
    assert {type(index) for index in data_set.read} == {int}, "not every data set accepts NumPy integers"


def test_a_list_is_a_data_set() -> None:
    found = [batch[0].tolist() for batch in ls.data.batches([1.5, 2.5, 3.5, 4.5], size=2)]
    assert found == [[1.5, 2.5], [3.5, 4.5]]
    ((numbers, labels),) = ls.data.batches([[1.5, 2], [3.5, 4]], size=2)  # samples may be lists, too
    assert (numbers.tolist(), labels.tolist()) == ([1.5, 3.5], [2, 4])


@pytest.mark.parametrize("wrong", [{0: 1.5, 1: 2.5}, "text", b"bytes"])
def test_what_has_a_length_and_is_no_data_set(wrong: object) -> None:
    with pytest.raises(ls.Error, match=f"array 0 is a {type(wrong).__name__}, expected an array with samples"):
        ls.data.batches(wrong, size=2)  # type: ignore[arg-type]


@pytest.mark.parametrize("sample", [b"ab\0\0", (1, b"\0")], ids=["bytes", "part"])
def test_samples_that_are_bytes_lose_no_zeros(sample: object) -> None:
    with pytest.raises(
        ls.Error, match=r"part \d of sample 0 of the data set is bytes, not an array: .* decodes its samples"
    ):
        next(iter(ls.data.batches([sample] * 4, size=2)))


@pytest.mark.parametrize("axes", [("data", "model"), ("model", "data")])
def test_ranks_that_differ_along_other_axes_get_the_same_rows(axes: tuple[str, str]) -> None:
    of_two = [list(ls.data.batches(SAMPLES, size=6, world=SimpleNamespace(rank=r, size=2), seed=3)) for r in range(2)]
    for rank in range(4):
        along_data = (rank // 2, rank % 2)[axes.index("data")]
        world = SimpleNamespace(rank=rank, size=4)
        found = ls.data.batches(SAMPLES, size=6, world=world, seed=3, mesh=dict.fromkeys(axes, 2))
        np.testing.assert_array_equal(list(found), of_two[along_data])


@pytest.mark.parametrize("mesh", [{"data": 0}, {"data": -1, "model": -2}, {"data": 4}])
def test_a_mesh_that_is_none_of_two_ranks(mesh: dict[str, int]) -> None:
    with pytest.raises(ls.Error, match="batches: the mesh {'data': "):
        ls.data.batches(SAMPLES, size=2, world=SimpleNamespace(rank=1, size=2), mesh=mesh)


def test_no_samples() -> None:
    for last in ("drop", "pad"):
        with pytest.raises(ls.Error, match="batches: there are no samples"):
            ls.data.batches(np.zeros((0, 3)), size=2, last=last)


def test_samples_that_do_not_fit_together() -> None:
    with pytest.raises(
        ls.Error, match=r"part 0 of sample 1 of the data set is float64 of shape \(3,\), but that of sample 0 is"
    ):
        list(ls.data.batches([np.zeros(2), np.zeros(3)], size=2))
    with pytest.raises(ls.Error, match="part 0 of sample 1 of the data set is float32 of shape"):
        list(ls.data.batches([np.zeros(2), np.zeros(2, np.float32)], size=2))
    with pytest.raises(ls.Error, match="sample 1 of the data set has 1 parts, and sample 0 has 2"):
        list(ls.data.batches([(1, 2), (1,)], size=2))


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_every_seed_shuffles(seed: int) -> None:
    shuffled = np.concatenate(epoch(1, seed))
    assert not np.array_equal(shuffled, SAMPLES[:18])
    assert not np.array_equal(shuffled, np.sort(shuffled))
    assert not np.array_equal(shuffled, np.concatenate(epoch(1, seed + 1)))


@pytest.mark.parametrize(
    ("arrays", "size", "words"),
    [
        ((), 1, "no arrays"),
        ((SAMPLES, TARGETS[1:]), 2, "different lengths"),
        ((SAMPLES,), 7, "7 cannot be shared evenly by 2"),
        ((SAMPLES,), 24, "24 is larger than the 22"),
        ((SAMPLES,), 0, "a batch of 0 cannot be shared evenly by 2"),
        ((SAMPLES,), -2, "a batch of -2 cannot be shared evenly by 2"),
    ],
)
def test_batches_that_cannot_be_had(arrays: tuple[np.ndarray, ...], size: int, words: str) -> None:
    with pytest.raises(ls.Error, match=words):
        ls.data.batches(*arrays, size=size, world=SimpleNamespace(rank=0, size=2))


def warnings_of(caplog: pytest.LogCaptureFixture, **options: object) -> list[str]:
    """The warnings of the logger `lockstep` in one call of batches."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "lockstep"):
        ls.data.batches(SAMPLES, TARGETS, **options)
    assert all(record.name == "lockstep" for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


def test_samples_that_are_left_out_are_warned_of_once_on_rank_0(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ls._base.log, "_warned", set())
    first, second = SimpleNamespace(rank=0, size=2), SimpleNamespace(rank=1, size=2)
    message = "batches of 6: the last 4 of 22 samples do not fill a batch and are left out"
    assert warnings_of(caplog, size=6, world=second) == []
    assert warnings_of(caplog, size=6, world=first) == [message]
    assert warnings_of(caplog, size=6, world=first, seed=1) == [], "with a seed, each epoch is a new call"
    assert warnings_of(caplog, size=8) == [message.replace("6", "8").replace("4", "6")]
    assert warnings_of(caplog, size=11) == [], "nothing is left out"
    assert warnings_of(caplog, size=10, epoch_size=1) == [], "the epoch has the given length"


def test_of_the_ranks_with_the_same_rows_one_warns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned = []
    for rank in range(4):
        monkeypatch.setattr(ls._base.log, "_warned", set())
        world = SimpleNamespace(rank=rank, size=4)
        warned.append(len(warnings_of(caplog, size=4, world=world, mesh={"data": 2, "model": 2})))
    assert warned == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("code", "letter", "dtype", "values"),
    [
        (8, "B", "uint8", [0, 1, 255]),
        (9, "b", "int8", [0, 1, -128]),
        (11, "h", "int16", [258, 1, -32768]),
        (12, "i", "int32", [16909060, 1, -(2**31)]),
        (13, "f", "float32", [0.5, -3.25, 1e30]),
        (14, "d", "float64", [0.1, -3.25, 1e300]),
    ],
)
def test_idx_files_of_every_dtype(code: int, letter: str, dtype: str, values: list, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes([0, 0, code, 2]) + struct.pack(">2I", 1, 3) + struct.pack(f">3{letter}", *values))
    array = ls.data.load_idx(path)
    assert array.dtype == np.dtype(dtype) and array.dtype.isnative
    np.testing.assert_array_equal(array, np.array([values], dtype))


@pytest.mark.parametrize("compressed", [False, True])
def test_the_four_files_of_mnist(compressed: bool, tmp_path: Path) -> None:
    for part, count in (("train", 3), ("t10k", 2)):
        pixels = bytes([0, 51, 255, count]) * count
        images = bytes([0, 0, 8, 3]) + struct.pack(">3I", count, 2, 2) + pixels
        labels = bytes([0, 0, 8, 1]) + struct.pack(">I", count) + bytes(range(count))
        for name, content in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            if compressed:
                (tmp_path / f"{part}-{name}.gz").write_bytes(gzip.compress(content))
            else:
                (tmp_path / f"{part}-{name}").write_bytes(content)
                (tmp_path / f"{part}-{name}.gz").write_bytes(b"from before")
    for train, count in ((True, 3), (False, 2)):
        images, labels = ls.data.mnist(tmp_path, train=train)
        assert (images.dtype, images.shape, labels.dtype) == (np.float32, (count, 1, 2, 2), np.int64)
        np.testing.assert_array_equal(images[0, 0].ravel(), np.array([0, 51, 255, count], np.float32) / 255)
        assert images.max() == 1
        assert labels.tolist() == list(range(count))


def test_files_of_mnist_that_are_exchanged(tmp_path: Path) -> None:
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        (tmp_path / f"train-{name}").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 3) + bytes(3))
    with pytest.raises(ls.Error, match=r"images of shape \(3,\) with labels of shape \(3,\)"):
        ls.data.mnist(tmp_path)


@pytest.mark.parametrize("code", [0, 7, 10, 15])
def test_idx_files_of_no_dtype(code: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes([0, 0, code, 1]) + struct.pack(">I", 1) + bytes(8))
    with pytest.raises(ls.Error, match="not an IDX file"):
        ls.data.load_idx(path)


@pytest.mark.parametrize("count", [5, 7])
def test_idx_files_that_are_not_as_long_as_they_say(count: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 6) + bytes(count))
    with pytest.raises(ls.Error, match=f"file: {8 + count} bytes, but its header says 14"):
        ls.data.load_idx(path)


def test_headers_that_no_array_can_have(tmp_path: Path) -> None:
    for dims in ([65536] * 4, [1] * 70):
        path = tmp_path / f"{len(dims)}"
        path.write_bytes(bytes([0, 0, 8, len(dims)]) + b"".join(dim.to_bytes(4, "big") for dim in dims) + b"\0")
        with pytest.raises(ls.Error, match=re.escape(str(path))):
            ls.data.load_idx(path)


def test_the_order_of_a_seed_is_one_for_all_time() -> None:
    """A run that continues after an update of Lockstep gets the same batches."""
    [(rows,)] = ls.data.batches(np.arange(12), size=12, seed=3)
    assert rows.tolist() == [11, 7, 2, 10, 0, 1, 4, 6, 9, 5, 3, 8]


def test_parameters_of_torch_are_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.arange(6.0).reshape(3, 2))
    for samples in ([parameter], [list(parameter)]):
        found = [batch[0].tolist() for batch in ls.data.batches(*samples, size=1)]
        assert found == [[[0, 1]], [[2, 3]], [[4, 5]]]
    for samples, where in (
        (torch.empty(3, 2, device="meta"), "array 0"),
        ([torch.empty(2, device="meta")] * 3, "part 0 of sample 0"),
    ):
        with pytest.raises(ls.Error, match=f"batches: {where}.* is a Tensor, which NumPy cannot convert to an array"):
            next(iter(ls.data.batches(samples, size=1)))


class NotInMemory:
    """Rows on a disk. An attempt to get all of them at once fails."""

    shape = (6, 2)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        assert len(rows) <= 2
        return np.stack([rows, rows], axis=1)

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise AssertionError("all rows are read")


def test_only_the_rows_of_a_batch_are_read() -> None:
    found = [rows.tolist() for (rows,) in ls.data.batches(NotInMemory(), size=2)]
    assert found == [[[0, 0], [1, 1]], [[2, 2], [3, 3]], [[4, 4], [5, 5]]]
