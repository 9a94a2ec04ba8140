"""The batches that `Trainer` trains and evaluates on: what it is given, as inputs by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ._errors import Error
from ._lockstep import Communicator
from .data import batches

Batch = dict[str, Any]  # inputs by name; `rows` are weights, 1 for a row that is there


class Inputs:
    """What a batch is made of: the inputs of a training step, and this rank's share of their rows."""

    def __init__(self, names: Sequence[str], size: int, world: Communicator, mesh: Mapping[str, int] | None) -> None:
        """`size` is the global batch."""
        self.names, self.size = list(names), size
        self._world, self._mesh = world, mesh
        along_data = world.size if mesh is None else mesh.get("data", 1)
        self.share = size // along_data

    def by_name(self, batch: Any) -> Batch:
        """The arrays of a batch by name. One array more than there are inputs are the rows' weights.

        Raises:
          Error: if there are too many or too few, or of another name.
        """
        if isinstance(batch, Mapping):
            unknown = [name for name in batch if name not in (*self.names, "rows")]
            missing = [name for name in self.names if name not in batch]
            if unknown or (missing and batch):
                wrong = f"has no {missing[0]}" if missing else f"has {unknown[0]!r}"
                raise Error(f"Trainer: a batch {wrong}; the step's inputs are {', '.join(self.names)}")
            return dict(batch)
        if not isinstance(batch, (tuple, list)):
            raise Error(
                f"Trainer: a batch is a {type(batch).__name__}, expected arrays by name, or a tuple of {', '.join(self.names)}"
            )
        if len(batch) not in (len(self.names), len(self.names) + 1):
            raise Error(
                f"Trainer: a batch has {len(batch)} arrays, expected {', '.join(self.names)}, and rows where it is padded"
            )
        return dict(zip([*self.names, "rows"], batch, strict=False))

    def epoch(self, data: Any, seed: int | None, last: str) -> Iterable[Any]:
        """The batches of an epoch: of arrays or a data set, cut into them; or as they are."""
        arrays = data if isinstance(data, tuple) else (data,)
        if not isinstance(data, tuple) and not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            if not isinstance(data, Iterable):
                raise Error(f"Trainer: the data is {data!r}, expected a tuple of arrays, a data set, or batches")
            return data
        if arrays and getattr(arrays[0], "num_parts", 1) > 1:
            return batches(*arrays, size=self.share, seed=seed, last=last)
        self._check_is_everywhere(arrays)
        return batches(*arrays, size=self.size, world=self._world, mesh=self._mesh, seed=seed, last=last)

    def _check_is_everywhere(self, arrays: tuple[Any, ...]) -> None:
        """Whether all workers have as many samples: each cuts its rows out of what it takes for all."""
        if self._world.size == 1:
            return
        own = len(arrays[0]) if arrays and hasattr(arrays[0], "__len__") else -1
        counts = [int(told) for told in self._world.gather_bytes(str(own).encode(), "samples of a Trainer's data")]
        other = next((rank for rank, count in enumerate(counts) if count != counts[0]), None)
        if other is not None:
            raise Error(
                f"Trainer: the data has {counts[0]} samples on rank 0 and {counts[other]} on rank {other}, and is to be all samples, the "
                "same on all workers; a worker's own part is what a reader gives with num_parts and part_index, or an iterable of batches"
            )

    def padded(self, batch: Batch) -> Batch:
        """The same with as many rows as this rank's share: what is missing are copies of its first row, of weight 0."""
        arrays = {name: np.asarray(array) for name, array in batch.items()}
        counts = {len(array) for array in arrays.values() if array.ndim}
        count = next(iter(counts), 0)
        if len(counts) != 1 or not 0 < count <= self.share:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise Error(f"Trainer: a batch has {shapes}, expected 1 to {self.share} rows of each")
        rows = arrays.pop("rows", np.ones(count, np.float32))
        places = np.arange(self.share)
        arrays = {name: array[np.where(places < count, places, 0)] for name, array in arrays.items()}
        return {**arrays, "rows": np.concatenate([rows, np.zeros(self.share - count, np.float32)])}


def with_progress(
    each: Iterator[dict[str, Any]], name: str, total: int | None, size: int, shown: bool, loss: Callable[[], float]
) -> Iterator[dict[str, Any]]:
    """The results of steps, with a bar that shows how many there were, and the last losses' mean."""
    if not shown:
        yield from each
        return
    try:
        from tqdm import tqdm
    except ImportError:  # training needs no bar
        yield from each
        return
    with tqdm(each, desc=name, unit=" samples", unit_scale=size, total=total) as progress:
        for result in progress:
            yield result
            progress.set_postfix(loss=f"{loss():.4f}", refresh=False)
