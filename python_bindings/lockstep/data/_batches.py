"""The division of samples into batches, and of batches among ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._base import arrays as _arrays
from .._base import checks
from .._base.errors import Error
from .._base.log import warn_once
from .._lockstep import Communicator
from ._split import checked_part, order

if TYPE_CHECKING:
    from .._lockstep import Executable


class Dataset(Protocol):
    """A data set for `batches`: samples by their number. A sample is an array, a number, or a tuple of these."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Any: ...


class _Arrays:
    """Samples that are rows of arrays."""

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
        # Only these rows of a memory-mapped array are read.
        return tuple(_arrays.numpy_of(f"batches: array {i}", array[rows]) for i, array in enumerate(self._arrays))


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
    for row, each in zip(rows, parts, strict=True):
        if isinstance(each, bytes):  # NumPy's bytes dtype drops trailing zeros
            raise Error(
                f"batches: part {part} of sample {row} of the data set is bytes, not an array: use a data set that "
                "decodes its samples, for example with np.frombuffer(sample, np.uint8)"
            )
    arrays = [
        _arrays.numpy_of(f"batches: part {part} of sample {row} of the data set", each)
        for row, each in zip(rows, parts, strict=True)
    ]
    for row, array in zip(rows, arrays, strict=True):
        if array.shape != arrays[0].shape or array.dtype != arrays[0].dtype:
            raise Error(
                f"batches: part {part} of sample {row} of the data set is {array.dtype} of shape {array.shape}, but that of "
                f"sample {rows[0]} is {arrays[0].dtype} of shape {arrays[0].shape}"
            )
    return np.stack(arrays)


class Sampler(Protocol):
    """Numbers of samples, such as `SplitSampler`, or samplers of torch and Gluon. Each iteration is an epoch."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...


class Batches:
    """This rank's share of each batch of an epoch, from `batches`. Has a length, and can be iterated repeatedly."""

    def __init__(
        self,
        samples: _Arrays | _Samples,
        rows: Callable[[int], np.ndarray],
        count: int,
        size: int,
        share: Callable[[], tuple[int, int]],
        start: int,
        pad: bool,
        epoch_size: int | None,
    ) -> None:
        """`rows` returns the numbers of the `count` samples of a pass. `share` returns the place of this rank's first
        row in the next batch, and its number of rows."""
        self._samples, self._rows, self._count = samples, rows, count
        self._size, self._start, self._pad = size, start, pad
        self._share = share
        self._batches = epoch_size if epoch_size is not None else -(-count // size) if pad else count // size

    def __len__(self) -> int:
        return self._batches - self._start

    @property
    def dropped(self) -> int:
        """The number of samples, on all ranks together, that an epoch leaves out because they do not fill a batch, or
        because of `epoch_size`."""
        return max(0, self._count - self._batches * self._size)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        turn, rows = 0, self._checked_rows(0)
        for batch in range(self._start, self._batches):
            first, share = self._share()
            places = np.arange(share) + batch * self._size + first
            if self._pad:
                counts = places < self._count
                arrays = self._samples.take(
                    rows[np.where(counts, places, 0)]
                )  # missing samples are replaced by an existing one
                yield (*arrays, counts.astype(np.float32))
                continue
            numbers = np.empty(share, np.int64)
            turns, places = np.divmod(places, self._count)
            for each in np.unique(turns):
                while turn < each:  # a sampler is called once for each pass
                    turn += 1
                    rows = self._checked_rows(turn)
                numbers[turns == each] = rows[places[turns == each]]
            yield self._samples.take(numbers)

    def _checked_rows(self, turn: int) -> np.ndarray:
        rows = self._rows(turn)
        if len(rows) != self._count:
            raise Error(f"batches: the sampler gives {len(rows)} numbers, but its length is {self._count}")
        outside = rows[(rows < 0) | (rows >= len(self._samples))]
        if len(outside):
            raise Error(
                f"batches: the sampler gives the number {outside[0]}, but there are {len(self._samples)} samples"
            )
        return rows


def batches(
    *arrays: np.ndarray | Dataset,
    size: int,
    world: Communicator | None = None,
    seed: int | None = None,
    mesh: Mapping[str, int] | None = None,
    start: int = 0,
    last: str = "drop",
    num_parts: int = 1,
    part_index: int | None = None,
    epoch_size: int | None = None,
    sampler: Sampler | None = None,
    shares: Sequence[int] | Executable | None = None,
) -> Batches:
    """Divides samples into batches, and returns this rank's share of each: rows rank*size/n to (rank+1)*size/n.

    All ranks must pass the same samples. With a seed they are shuffled by the same permutation on all ranks, which
    depends only on the seed. Samples that do not fill a last batch are left out, and the logger `lockstep` warns with
    their number on rank 0. Or the batch is padded.

    Args:
      arrays: arrays with equal first dimensions. Only the rows of a batch are read, so they may be memory-mapped. Or
        one data set, which has a length and returns samples by number. The samples of a batch are stacked. Samples that
        are bytes are an error.
      size: the global batch, shared by all ranks.
      world: the ranks. None is one rank.
      seed: of the shuffle. None keeps the order. Pass a different seed in each epoch.
      mesh: the mesh of `compile`. Batches are shared only along its axis "data": ranks that differ along other axes get
        the same rows. If None, all ranks share them.
      start: the number of batches to skip at the beginning of the epoch, for a run that is resumed. The other batches
        are the same as without it. At most all batches.
      last: "drop" leaves out the samples that do not fill a batch. With "pad" they are a batch whose other rows are
        copies of some sample, and each tuple has one more array, f32[size/n]: 1 for a sample, 0 for a copy. Pass it to
        a loss as `sample_weight` (in the prediction's dtype: use `.astype()` if that is not f32) and to metrics as
        `weight`. Then each sample counts once, on any number of ranks. Batch normalisation in training ignores weights:
        its statistics include copies.
      num_parts, part_index: this is part `part_index` of `num_parts`. They replace `world` if there is none.
      epoch_size: the number of batches of an epoch, for any number of samples. So ranks with different numbers of own
        samples make the same number of steps. After the last sample they begin again, in another order if there is a
        seed, and every batch is full. With last="pad", further batches have only copies of weight 0.
      sampler: selects and orders the samples of an epoch, such as this rank's `SplitSampler`. Excludes `world` and
        `seed`, because it decides both. Each iteration of the batches is an epoch of the sampler.
      shares: the rows of a batch that each rank gets, in the order of ranks, if these are not equal, such as [96, 32].
        Their sum is `size`. Or an executable of `train_step(..., uneven="measured")`, whose shares may change: a batch
        has those of the moment in which it is read. Excludes num_parts.

    Returns:
      An iterable with a length, of tuples with one array each, of size/n rows or this rank's share.

    Raises:
      Error: arrays differ in length, samples differ in shape, or the ranks cannot share a batch evenly.

    Example:
      >>> for image, label in lockstep.data.batches(images, labels, size=128, world=world, seed=epoch):
      ...     loss = exe(image=image, label=label)["loss"]
    """
    if world is not None and not (hasattr(world, "rank") and hasattr(world, "size")):
        raise Error(f"batches: world is {world!r}, expected a lockstep.Communicator")
    rank, ranks = (world.rank, world.size) if world is not None else (0, 1)
    is_first = rank == 0
    if mesh is not None:
        rank, ranks = _place_along_data(checks.extents("batches: mesh", mesh), rank, ranks)
    parts, part = checked_part("batches", num_parts, part_index)
    if parts > 1:
        if world is not None or mesh is not None:
            raise Error("batches: world and num_parts both divide the batches: leave out one")
        if shares is not None:
            raise Error("batches: shares and num_parts both divide the batches: leave out one")
        rank, ranks, is_first = part, parts, part == 0
    size = checks.integer("batches: size", size)
    seed = None if seed is None else checks.integer("batches: seed", seed, 0)
    pad = checks.choice("batches: last", last, ("drop", "pad")) == "pad"
    if not arrays:
        raise Error("batches: no arrays")
    samples = _samples_of(arrays)
    if ranks > 1 and getattr(arrays[0], "num_parts", 1) > 1:
        raise Error(
            f"batches: the data set is already one of {arrays[0].num_parts} parts, which {ranks} ranks would divide again: pass "
            "it without world, or pass the whole data set"
        )
    if size < 1 or (shares is None and size % ranks != 0):
        raise Error(f"batches: a batch of {size} cannot be shared evenly by {ranks} ranks")
    if sampler is None:
        count, rows = len(samples), partial(order, len(samples), seed)
    else:
        count, rows = _sampled(sampler, seed, ranks)
    if count == 0:
        raise Error("batches: there are no samples")
    if epoch_size is not None:
        epoch_size = checks.integer("batches: epoch_size", epoch_size, 1)
    elif size > count and not pad:
        raise Error(f"batches: a batch of {size} is larger than the {count} samples")
    start = checks.integer("batches: start", start, 0)
    share = partial(_share, size, rank, ranks, shares)
    share()  # raises the error of wrong shares before the first batch
    length = len(Batches(samples, rows, count, size, share, 0, pad, epoch_size))
    if start > length:
        raise Error(f"batches: start is {start}, of {length} batches")
    result = Batches(samples, rows, count, size, share, start, pad, epoch_size)
    if result.dropped and is_first and epoch_size is None:
        warn_once(
            f"batches of {size}: the last {result.dropped} of {count} samples do not fill a batch and are left out"
        )
    return result


def _share(size: int, rank: int, ranks: int, shares: Any) -> tuple[int, int]:
    """Returns the place of a rank's first row in a batch of `size`, and its number of rows."""
    if shares is None:
        return rank * (size // ranks), size // ranks
    given = getattr(shares, "shares", shares)
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise Error(f"batches: shares is {given!r}, expected the rows of each rank, such as [96, 32], or an executable")
    rows = [checks.integer(f"batches: shares[{i}]", each, 0) for i, each in enumerate(given)]
    if len(rows) != ranks or sum(rows) != size:
        raise Error(f"batches: shares is {rows}, expected {ranks} numbers of rows, whose sum is the batch of {size}")
    return sum(rows[:rank]), rows[rank]


def _sampled(sampler: Any, seed: int | None, ranks: int) -> tuple[int, Callable[[int], np.ndarray]]:
    """Returns the number of samples in an epoch of the sampler, and a function that returns their numbers."""
    if not (hasattr(sampler, "__len__") and hasattr(sampler, "__iter__")) or isinstance(sampler, (str, bytes, Mapping)):
        raise Error(f"batches: sampler is {sampler!r}, expected numbers of samples, such as a SplitSampler")
    if seed is not None:
        raise Error("batches: sampler and seed both decide the order: leave out one")
    if ranks > 1:
        raise Error("batches: the sampler gives this rank's samples, which would be divided again: leave out world")

    return len(sampler), partial(_rows_of, sampler)


def _rows_of(sampler: Any, _: int) -> np.ndarray:
    return np.fromiter((_number(sampler, each) for each in sampler), np.int64)


def _number(sampler: Any, element: Any) -> int:
    try:
        return checks.integer("an element", element.item() if isinstance(element, np.bool_) else element)
    except Error:
        raise Error(f"batches: sampler is {sampler!r}, whose elements are not whole numbers: {element!r}") from None


def _samples_of(arrays: tuple[Any, ...]) -> _Arrays | _Samples:
    is_dataset = not hasattr(arrays[0], "shape") and hasattr(arrays[0], "__getitem__") and hasattr(arrays[0], "__len__")
    if len(arrays) == 1 and is_dataset and not isinstance(arrays[0], (str, bytes, Mapping)):
        return _Samples(arrays[0])
    return _Arrays(arrays)


def _coordinates(what: str, mesh: dict[str, int], rank: int, ranks: int) -> dict[str, int]:
    """Returns the coordinates of a rank in the mesh, by axis."""
    if any(extent < 1 for extent in mesh.values()) or math.prod(mesh.values()) != ranks:
        raise Error(f"{what}: the mesh {mesh} has {math.prod(mesh.values())} ranks, but the world has {ranks}")
    coordinates = {}
    for axis, extent in reversed(mesh.items()):
        rank, coordinates[axis] = divmod(rank, extent)
    return coordinates


def _is_first_of_its_share(what: str, mesh: dict[str, int], rank: int, ranks: int) -> bool:
    """True if the rank's coordinates along all axes except "data" are 0."""
    return not any(at for axis, at in _coordinates(what, mesh, rank, ranks).items() if axis != "data")


def _place_along_data(mesh: dict[str, int], rank: int, ranks: int) -> tuple[int, int]:
    """Returns a rank's coordinate along the axis "data", and the axis' size; 0 and 1 without such an axis."""
    return _coordinates("batches", mesh, rank, ranks).get("data", 0), mesh.get("data", 1)
