"""`hvd.elastic`: states that survive a restart of the job by `lockstep elastic` (docs/elastic.md).

Horovod keeps the ranks that are alive and connects them to new ones. Here the death of a rank ends the job, and
`lockstep elastic` restarts it on the remaining hosts from the last commit. So commits are written to a file. The
program's code is the same.
"""

from __future__ import annotations

import copy
import functools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from .._base.errors import Error
from ._objects import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._session import rank, session, size

_SET = "LOCKSTEP_ELASTIC_STATE"


def state_path() -> Path | None:
    """The file of commits. None outside of `lockstep elastic`, unless LOCKSTEP_ELASTIC_STATE names a file."""
    if _SET not in os.environ and "LOCKSTEP_ATTEMPT" not in os.environ:
        return None
    return Path(os.environ.get(_SET) or "elastic_state.pt")


class State:
    """Values as attributes, which are committed, restored and synchronized between ranks together.

    Args:
      values: objects that can be pickled, such as `epoch=0`.
    """

    def __init__(self, **values: Any) -> None:
        self._values = list(values)
        self._callbacks: list[Callable[[], None]] = []
        for name, value in values.items():
            setattr(self, name, value)
        self._saved = self._now()

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Registers functions that are called when a job continues with another number of ranks."""
        self._callbacks.extend(callbacks)

    def commit(self) -> None:
        """Saves the current values. Under `lockstep elastic`, rank 0 also writes them to a file, atomically."""
        self.save()
        path = state_path()
        if path is not None and rank() == 0:
            new = path.with_name(path.name + ".new")
            with open(new, "wb") as file:
                torch.save({"size": size(), "state": self._saved}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)

    def check_host_updates(self) -> None:
        """Does nothing: hosts do not change while a job runs."""

    def save(self) -> None:
        """Saves the current values in memory."""
        self._saved = self._now()

    def restore(self) -> None:
        """Restores the values of the last commit."""
        self._set(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Copies the values of rank 0 to all ranks, and saves them. Collective."""
        self._sync()
        self.save()

    def on_reset(self) -> None:
        self.reset()
        for callback in self._callbacks:
            callback()

    def reset(self) -> None:
        """For subclasses: called when the number of ranks has changed."""

    def resume(self) -> None:
        """Restores the file's values if this is not the first attempt. All ranks get those of rank 0. Collective."""
        path, found = state_path(), None
        if path is not None and rank() == 0 and path.exists():
            if os.environ.get("LOCKSTEP_ATTEMPT") == "0":
                path.unlink()  # of an earlier job
            else:
                found = torch.load(path, weights_only=False)
                self._saved = found["state"]
                self.restore()
        before = broadcast_object(found["size"] if found is not None else None, 0, "elastic state")
        self.sync()
        if before not in (None, size()):
            self.on_reset()

    def _now(self) -> dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self._values}

    def _set(self, values: dict[str, Any]) -> None:
        for name in self._values:
            if name not in values:
                raise Error(f"the committed state has no {name!r}; it has {', '.join(values)}")
            setattr(self, name, values[name])

    def _sync(self) -> None:
        self._set(broadcast_object({name: getattr(self, name) for name in self._values}, 0, "elastic state"))


ObjectState = State


class TorchState(State):
    """A state with a model and an optimizer, and with further parts, schedulers and samplers that have a `state_dict`.

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        parts = {"model": model, "optimizer": optimizer, **values}
        self._parts = [name for name, part in parts.items() if hasattr(part, "state_dict")]
        for name in self._parts:
            setattr(self, name, parts[name])
        super().__init__(**{name: part for name, part in parts.items() if name not in self._parts})

    def _now(self) -> dict[str, Any]:
        return super()._now() | {name: copy.deepcopy(getattr(self, name).state_dict()) for name in self._parts}

    def _set(self, values: dict[str, Any]) -> None:
        super()._set(values)
        for name in self._parts:
            if name in values:
                getattr(self, name).load_state_dict(values[name])

    def _sync(self) -> None:
        super()._sync()
        for name in self._parts:
            part = getattr(self, name)
            if isinstance(part, torch.nn.Module):
                broadcast_parameters(part.state_dict(), 0)
            elif isinstance(part, torch.optim.Optimizer):
                broadcast_optimizer_state(part, 0)
            else:
                part.load_state_dict(broadcast_object(part.state_dict(), 0, f"elastic state {name}"))


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Shares of a dataset's indices. A job that continues with another number of ranks resumes at the same position.

    Args:
      dataset: of constant length.
      shuffle: shuffle by one permutation for each epoch.
      seed: of the shuffle; the same on all ranks.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Starts an epoch. Call at the end of the previous one."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records that each rank has processed a batch of `batch_size` samples."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.processed_num = state["epoch"], state["processed_num"]
        self.reset()

    def reset(self) -> None:
        self.num_replicas, self.rank = size(), rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        left, needed = self.remaining_indices, self.num_samples * self.num_replicas
        padded = (left * -(-needed // len(left)))[:needed] if left else []
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of a state. It starts with the values of rank 0, or, after a restart, with the last commit.

    An Error on a rank is raised and ends the job; `lockstep elastic` then restarts it.
    """

    @functools.wraps(function)
    def wrapper(state: State, *arguments: Any, **options: Any) -> Any:
        if not isinstance(state, State):
            raise Error(f"hvd.elastic.run: the state is a {type(state).__name__}, expected one of hvd.elastic")
        session()
        state.resume()
        return function(state, *arguments, **options)

    return wrapper
