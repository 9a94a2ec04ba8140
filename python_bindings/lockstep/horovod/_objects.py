"""Exchange of parameters, optimizer states and any objects, for the start of a job."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from .._base.errors import Error
from ._ops import Handle, allgather_async, broadcast_async_
from ._session import session


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """Returns rank root_rank's object, pickled, on all ranks; on that rank the object itself."""
    name = session().name("broadcast_object", name)
    is_root = session().world.rank == root_rank
    data = (
        torch.from_numpy(np.frombuffer(pickle.dumps(obj), np.uint8).copy())
        if is_root
        else torch.empty(0, dtype=torch.uint8)
    )
    size = torch.tensor([len(data)], dtype=torch.int64)
    broadcast_async_(size, root_rank, f"{name}.size", process_set).wait()
    if not is_root:
        data = torch.empty(int(size), dtype=torch.uint8)
    broadcast_async_(data, root_rank, f"{name}.bytes", process_set).wait()
    return obj if is_root else pickle.loads(data.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Returns the objects of all ranks, pickled, by rank."""
    name = session().name("allgather_object", name)
    data = torch.from_numpy(np.frombuffer(pickle.dumps(obj), np.uint8).copy())
    sizes = allgather_async(torch.tensor([len(data)]), f"{name}.sizes").wait()
    parts = allgather_async(data, f"{name}.bytes").wait().split(sizes.tolist())
    return [pickle.loads(part.numpy().tobytes()) for part in parts]


def broadcast_parameters(
    params: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]], root_rank: int
) -> None:
    """Copies rank root_rank's tensors to all ranks, in place. Takes `model.state_dict()` or
    `model.named_parameters()`."""
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, Iterable):
        pairs = list(params)
    else:
        raise Error(
            f"hvd.broadcast_parameters: params is a {type(params).__name__}, expected a dict or named parameters"
        )
    handles: list[Handle] = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise Error(
                "hvd.broadcast_parameters: expected pairs of a name and a tensor, as of model.named_parameters()"
            )
        name, tensor = pair
        if tensor is not None:
            handles.append(broadcast_async_(tensor, root_rank, f"broadcast_parameters {name}"))
    for handle in handles:
        handle.wait()


class _Absent:
    """The placeholder of a tensor in a state that is sent without its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape, self.device = tensor.dtype, tensor.shape, tensor.device


def _mapped(value: Any, function: Any) -> Any:
    """Applies `function` to the leaves of nested dicts, lists and tuples."""
    if isinstance(value, dict):
        return {key: _mapped(each, function) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(each, function) for each in value)
    return function(value)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Copies the state and options of rank root_rank's optimizer to all ranks.

    Args:
      optimizer: of the same class and for the same parameters on all ranks. It may have no state yet, on any rank.
      model: not needed.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise Error(
            "hvd.broadcast_optimizer_state: the state of LBFGS cannot be restored; broadcast only the parameters"
        )
    state = optimizer.state_dict()
    is_root = session().world.rank == root_rank
    outline = (
        _mapped(state, lambda each: _Absent(each) if isinstance(each, torch.Tensor) else each) if is_root else None
    )
    outline = broadcast_object(outline, root_rank, "broadcast_optimizer_state")
    handles: list[Handle] = []

    def fill(absent: Any, own: Any = None) -> Any:
        if not isinstance(absent, _Absent):
            return absent
        tensor = own if is_root else torch.empty(absent.shape, dtype=absent.dtype, device=absent.device)
        handles.append(broadcast_async_(tensor, root_rank, f"optimizer state {len(handles)}"))
        return tensor

    if is_root:
        _mapped(state, lambda each: fill(_Absent(each), each) if isinstance(each, torch.Tensor) else each)
    else:
        state = _mapped(outline, fill)
    for handle in handles:
        handle.wait()
    if not is_root:
        optimizer.load_state_dict(state)
