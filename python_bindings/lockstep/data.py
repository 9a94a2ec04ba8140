"""Data sets, and how a global batch is shared by the ranks."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from . import _check
from ._errors import Error
from ._lockstep import Communicator
from ._log import warn_once

_IDX_DTYPES = {8: np.uint8, 9: np.int8, 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def load_idx(path: str | PathLike[str]) -> np.ndarray:
    """Reads a file in the IDX format of MNIST, plain or compressed (.gz).

    Returns:
      An array with the dtype and shape that the file gives, in native byte order.

    Raises:
      Error: if the file is missing, or is not a complete IDX file; the message names it.
    """
    path = Path(_check.path(path))
    try:
        content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    except FileNotFoundError:
        raise Error(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise Error(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_DTYPES:
        raise Error(f"{path}: this is not an IDX file (the format of MNIST)")
    rank = content[3]
    header = 4 + 4 * rank
    if len(content) < header:
        raise Error(f"{path}: the file ends within its header")
    shape = struct.unpack(f">{rank}I", content[4:header])
    dtype = np.dtype(_IDX_DTYPES[content[2]])
    expected = header + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise Error(f"{path}: {len(content)} bytes, but its header says {expected}")
    try:
        return np.frombuffer(content, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))
    except ValueError as error:  # more dimensions than NumPy has
        raise Error(f"{path}: {rank} dimensions: {error}") from None


def mnist(directory: str | PathLike[str], train: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Reads a data set in MNIST's four files, such as Fashion-MNIST (Debian's package dataset-fashion-mnist).

    Args:
      directory: where `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and `t10k-…` lie, with or without `.gz`.
      train: the training set; else the test set.

    Returns:
      Images, f32[n, 1, rows, columns] with values in [0, 1], and labels, i64[n].

    Raises:
      Error: if a file is missing or damaged, or images and labels differ in number.
    """
    part = "train" if _check.flag("mnist: train", train) else "t10k"
    directory = _check.path(directory)

    def load(name: str) -> np.ndarray:
        plain = Path(directory) / f"{part}-{name}"
        compressed = plain.with_name(plain.name + ".gz")
        return load_idx(compressed if compressed.exists() else plain)

    images, labels = load("images-idx3-ubyte"), load("labels-idx1-ubyte")
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise Error(f"{directory}: images of shape {images.shape} with labels of shape {labels.shape}")
    return images[:, None].astype(np.float32) / np.float32(255), labels.astype(np.int64)


class Dataset(Protocol):
    """What `batches` takes beside arrays: samples by their number, each an array, a number, or a tuple of these."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class _Arrays:
    """Samples that are the rows of arrays."""

    def __init__(self, arrays: tuple[np.ndarray, ...]) -> None:
        for i, array in enumerate(arrays):
            if not getattr(array, "shape", ()):
                raise Error(f"batches: array {i} is a {type(array).__name__}, expected an array with samples")
        lengths = [len(array) for array in arrays]
        if len(set(lengths)) != 1:
            raise Error(f"batches: the arrays have different lengths: {lengths}")
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays[0])

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        # Of a memory-mapped array only these rows are read.
        return tuple(np.asarray(array[rows]) for array in self._arrays)


class _Samples:
    """Samples of a Dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        samples = []
        for row in rows:
            sample = self._dataset[int(row)]
            samples.append(tuple(sample) if isinstance(sample, (tuple, list)) else (sample,))
            if len(samples[-1]) != len(samples[0]):
                raise Error(
                    f"batches: sample {row} of the data set has {len(samples[-1])} parts, and sample {rows[0]} has "
                    f"{len(samples[0])}"
                )
        return tuple(_stacked(rows, part, parts) for part, parts in enumerate(zip(*samples, strict=True)))


def _stacked(rows: np.ndarray, part: int, parts: tuple[Any, ...]) -> np.ndarray:
    arrays = [np.asarray(each) for each in parts]
    for row, array in zip(rows, arrays, strict=True):
        if array.shape != arrays[0].shape or array.dtype != arrays[0].dtype:
            raise Error(
                f"batches: part {part} of sample {row} of the data set is {array.dtype} of shape {array.shape}, and that of "
                f"sample {rows[0]} is {arrays[0].dtype} of shape {arrays[0].shape}"
            )
    return np.stack(arrays)


class Batches:
    """This rank's share of each batch of an epoch; what `batches` returns. Has a length, and can be iterated repeatedly."""

    def __init__(
        self, samples: _Arrays | _Samples, size: int, rank: int, ranks: int, seed: int | None, start: int, pad: bool
    ) -> None:
        self._samples, self._size, self._seed, self._start, self._pad = samples, size, seed, start, pad
        self._share = size // ranks
        self._rank = rank
        self._count = len(samples)
        self._batches = -(-self._count // size) if pad else self._count // size

    def __len__(self) -> int:
        return self._batches - self._start

    @property
    def dropped(self) -> int:
        """The number of samples, in all ranks together, that an epoch leaves out because they do not fill a batch."""
        return 0 if self._pad else self._count % self._size

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        order = np.arange(self._count)
        if self._seed is not None:
            # The generator is fixed by name, so that the order depends on neither the rank nor NumPy's default.
            order = np.random.Generator(np.random.PCG64(self._seed)).permutation(self._count)
        for batch in range(self._start, self._batches):
            begin = batch * self._size + self._rank * self._share
            places = np.arange(begin, begin + self._share)
            if not self._pad:
                yield self._samples.take(order[places])
                continue
            counts = places < self._count
            arrays = self._samples.take(order[np.where(counts, places, 0)])  # a sample that is there, in place of none
            yield (*arrays, counts.astype(np.float32))


def batches(
    *arrays: np.ndarray | Dataset,
    size: int,
    world: Communicator | None = None,
    seed: int | None = None,
    mesh: Mapping[str, int] | None = None,
    start: int = 0,
    last: str = "drop",
) -> Batches:
    """Cuts samples into batches and gives this rank its share of each: rows rank*size/n to (rank+1)*size/n.

    All ranks must pass the same samples. With a seed they are shuffled, by the same permutation on all ranks, which
    depends on the seed alone. Samples that do not fill a last batch are left out, and a warning of the logger `lockstep`
    says how many (on rank 0); or the batch is padded.

    Args:
      arrays: with equal first dimensions, of which only the rows of a batch are read, so they may be memory-mapped; or one
        data set, which has a length and gives samples by their number. What comes together in a batch is stacked.
      size: the global batch, shared by all ranks.
      world: the ranks; None is one.
      seed: of the shuffle; None keeps the order. Pass another in each epoch.
      mesh: what `compile` gets. Batches are shared along its axis "data" alone: ranks that differ along others get the same
        rows. If None, all ranks share them.
      start: how many batches of the epoch are left out at its begin, since a run that is continued has had them; the others are
        the same as without it. All of them at most.
      last: "drop" leaves out the samples that do not fill a batch. With "pad" they come in a batch whose other rows are copies
        of some sample, and each tuple has one array more, f32[size/n]: 1 for a sample, 0 for a copy. A loss takes it as
        `sample_weight` (of the prediction's dtype: `.astype()` where that is no f32), and metrics as `weight`, so that each sample
        counts once, however many ranks there are. Batch normalisation in training knows no weights: copies count for its statistics.

    Returns:
      An iterable with a length, of tuples with one array each, of size/n rows.

    Raises:
      Error: if the arrays differ in length, the samples in shape, or the ranks cannot share a batch evenly.

    Example:
      >>> for image, label in lockstep.data.batches(images, labels, size=128, world=world, seed=epoch):
      ...     loss = exe(image=image, label=label)["loss"]
    """
    if world is not None and not (hasattr(world, "rank") and hasattr(world, "size")):
        raise Error(f"batches: world is {world!r}, expected a lockstep.Communicator")
    rank, ranks = (world.rank, world.size) if world is not None else (0, 1)
    is_first = rank == 0
    if mesh is not None:
        rank, ranks = _place_along_data(_check.extents("batches: mesh", mesh), rank, ranks)
    size = _check.integer("batches: size", size)
    seed = None if seed is None else _check.integer("batches: seed", seed, 0)
    pad = _check.choice("batches: last", last, ("drop", "pad")) == "pad"
    if not arrays:
        raise Error("batches: no arrays")
    samples = _samples_of(arrays)
    if size < 1 or size % ranks != 0:
        raise Error(f"batches: a batch of {size} cannot be shared evenly by {ranks} ranks")
    if len(samples) == 0:
        raise Error("batches: there are no samples")
    if size > len(samples) and not pad:
        raise Error(f"batches: a batch of {size} is more than the {len(samples)} samples there are")
    start = _check.integer("batches: start", start, 0)
    result = Batches(samples, size, rank, ranks, seed, 0, pad)
    if start > len(result):
        raise Error(f"batches: start is {start}, of {len(result)} batches")
    result = Batches(samples, size, rank, ranks, seed, start, pad)
    if result.dropped and is_first:
        warn_once(
            f"batches of {size}: the last {result.dropped} of {len(samples)} samples do not fill a batch and are left out"
        )
    return result


def _samples_of(arrays: tuple[Any, ...]) -> _Arrays | _Samples:
    is_dataset = not hasattr(arrays[0], "shape") and hasattr(arrays[0], "__getitem__") and hasattr(arrays[0], "__len__")
    if len(arrays) == 1 and is_dataset and not isinstance(arrays[0], (str, bytes, Mapping)):
        return _Samples(arrays[0])
    return _Arrays(arrays)


def _coordinates(what: str, mesh: dict[str, int], rank: int, ranks: int) -> dict[str, int]:
    """Where a rank is in the mesh, by axis."""
    if any(extent < 1 for extent in mesh.values()) or math.prod(mesh.values()) != ranks:
        raise Error(f"{what}: the mesh {mesh} is of {math.prod(mesh.values())} ranks, and the world has {ranks}")
    coordinates = {}
    for axis, extent in reversed(mesh.items()):
        rank, coordinates[axis] = divmod(rank, extent)
    return coordinates


def _is_first_of_its_share(what: str, mesh: dict[str, int], rank: int, ranks: int) -> bool:
    """Whether the rank's coordinates along other axes than "data" are 0."""
    return not any(at for axis, at in _coordinates(what, mesh, rank, ranks).items() if axis != "data")


def _place_along_data(mesh: dict[str, int], rank: int, ranks: int) -> tuple[int, int]:
    """The coordinate of a rank along the axis "data", and that axis' size; 0 and 1 if there is no such axis."""
    return _coordinates("batches", mesh, rank, ranks).get("data", 0), mesh.get("data", 1)
