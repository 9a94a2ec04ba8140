"""The batches on which `Trainer` trains and evaluates: converts the given data to inputs by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .._base.errors import Error
from .._base.named_inputs import by_name
from .._checkpoint.checkpoint import on_all_ranks
from .._lockstep import Communicator, Executable
from ..data import batches

Batch = dict[str, Any]  # inputs by name; `rows` are weights, 1 for an existing row


class Inputs:
    """The inputs of a training step, and this rank's share of their rows."""

    def __init__(
        self, dimensions: Mapping[str, int], size: int, world: Communicator, mesh: Mapping[str, int] | None
    ) -> None:
        """`dimensions` has the number of dimensions of each input, by name. `size` is the global batch."""
        self.names, self._dimensions, self.size = list(dimensions), list(dimensions.values()), size
        self._world, self._mesh = world, mesh
        along_data = world.size if mesh is None else mesh.get("data", 1)
        self.share = size // along_data

    def by_name(self, batch: Any) -> Batch:
        """Returns the arrays of a batch by name. A tuple may have one more array, the weights of the rows."""
        return by_name("Trainer", self.names, batch)

    def epoch(
        self, data: Callable[[], Any], seed: int | None, last: str, shares: Executable | None = None
    ) -> Iterable[Any]:
        """Returns the batches of an epoch. Arrays and data sets are cut into batches; batches are returned as they are.
        Collective; an Error of one worker is raised on all.

        Args:
          data: returns the data.
          shares: the executable whose measured shares the batches follow; None for equal shares.
        """
        made: list[Iterable[Any]] = []

        def own() -> str:
            batches, kind = self._of_this_rank(data(), seed, last, shares)
            made.append(batches)
            return kind

        kinds = on_all_ranks(self._world, "the data of a Trainer", own)
        other = next((rank for rank, kind in enumerate(kinds) if kind != kinds[0]), None)
        if other is not None:
            raise Error(
                f"Trainer: the data is {kinds[0]} on rank 0 and {kinds[other]} on rank {other}: pass either all samples, the same on all "
                "workers, or each worker's own part, from a reader with num_parts and part_index, or batches"
            )
        return made[0]

    def _of_this_rank(
        self, data: Any, seed: int | None, last: str, shares: Executable | None
    ) -> tuple[Iterable[Any], str]:
        """Returns the batches, and a description of the data that must be equal on all workers."""
        is_cut = isinstance(data, tuple) or (hasattr(data, "__len__") and hasattr(data, "__getitem__"))
        is_whole = is_cut and not self._has_batches(data) and not _is_part(data)
        if shares is not None and not is_whole:
            raise Error(
                'Trainer: uneven="measured" gives each worker its rows of a batch, so all workers pass all samples: a '
                "tuple of arrays or a data set, not batches or a part"
            )
        if not is_cut or self._has_batches(data):
            if not isinstance(data, Iterable):
                raise Error(f"Trainer: the data is {data!r}, expected a tuple of arrays, a data set, or batches")
            return data, "a part"
        arrays = data if isinstance(data, tuple) else (data,)
        if _is_part(data):
            return batches(*arrays, size=self.share, seed=seed, last=last), "a part"
        count = len(arrays[0]) if arrays and hasattr(arrays[0], "__len__") else 0
        cut = batches(*arrays, size=self.size, world=self._world, mesh=self._mesh, seed=seed, last=last, shares=shares)
        return cut, f"all of {count} samples"

    def _has_batches(self, data: Any) -> bool:
        """True if a list is empty or has batches in the form of `step`: arrays with as many dimensions as the step's
        inputs. The arrays of a sample have one less."""
        if not isinstance(data, list) or not data:
            return isinstance(data, list)
        first = data[0]
        if isinstance(first, Mapping):
            return True
        if not isinstance(first, (tuple, list)) or len(first) not in (len(self.names), len(self.names) + 1):
            return False
        return all(np.ndim(array) == rank for array, rank in zip(first, self._dimensions, strict=False))

    def padded(self, batch: Batch) -> Batch:
        """Pads a batch to this rank's share. Missing rows are copies of the first row with weight 0."""
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


def _is_part(data: Any) -> bool:
    """True if the data set is one of several parts."""
    arrays = data if isinstance(data, tuple) else (data,)
    return bool(arrays) and getattr(arrays[0], "num_parts", 1) > 1
