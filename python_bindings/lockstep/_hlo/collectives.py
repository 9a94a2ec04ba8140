"""Collectives of HLO: values of all devices from values of all devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from . import shardings
from .ops import Region, fold
from .text import Instruction


def _is_among_replicas(i: Instruction) -> bool:
    """True for a collective among replicas, of which there is one; false for one among partitions."""
    return "channel_id" not in i.attributes


def groups(i: Instruction, devices: int) -> list[list[int]]:
    """The groups of devices, each in its order."""
    if _is_among_replicas(i):
        return [[device] for device in range(devices)]
    text = i.attributes.get("replica_groups", "{}")
    if text.startswith("mesh["):
        mesh, axes = text.rstrip("}").rsplit("{", 1)
        return shardings.arrange(mesh, [axes]).T.tolist()
    if text.startswith("["):
        shape = [int(each) for each in re.findall(r"\d+", text.split("]")[0])]
        return shardings.iota(text).reshape(shape).tolist()
    found = [[int(each) for each in re.findall(r"\d+", group)] for group in re.findall(r"\{([\d,\s]+)\}", text)]
    if i.attributes.get("use_global_device_ids") != "true" and i.opcode in (
        "all-reduce",
        "all-gather",
        "reduce-scatter",
    ):
        return [list(range(devices))]  # the groups are of replicas, with all partitions
    return found or [list(range(devices))]


def _per_group(exchange: Callable[..., Sequence[object]]) -> Callable:
    def apply(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[object]:
        results: list[object] = [None] * len(x)
        for group in groups(i, len(x)):
            for device, result in zip(group, exchange(i, region, [x[device] for device in group]), strict=True):
                results[device] = result
        if any(each is None for each in results):
            raise i.error("has groups without some of the devices")
        return results

    return apply


def _as_result(i: Instruction, parts: Sequence[np.ndarray]) -> object:
    return tuple(parts) if isinstance(i.type, tuple) else parts[0]


def _reduced(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    combine = region(i.callee("to_apply"))
    return [fold(combine, [np.stack(of_devices)])[0] for of_devices in zip(*x, strict=True)]


def _all_reduce(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[object]:
    return [_as_result(i, _reduced(i, region, x))] * len(x)


def _reduce_scatter(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[object]:
    along = i.numbers("dimensions")[0]
    parts = [np.split(each, len(x), along) for each in _reduced(i, region, x)]
    return [_as_result(i, [each[k] for each in parts]) for k in range(len(x))]


def _all_gather(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[object]:
    along = i.numbers("dimensions")[0]
    return [_as_result(i, [np.concatenate(each, along) for each in zip(*x, strict=True)])] * len(x)


def _all_to_all(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[object]:
    if isinstance(i.type, tuple):
        return [tuple(of_device[k] for of_device in x) for k in range(len(x))]
    along = i.numbers("dimensions")[0]
    parts = [np.split(of_device[0], len(x), along) for of_device in x]
    return [np.concatenate([each[k] for each in parts], along) for k in range(len(x))]


def _broadcast(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[object]:
    return [_as_result(i, x[0])] * len(x)


def _permute(i: Instruction, region: Region, x: list[tuple[np.ndarray, ...]]) -> list[object]:
    texts = re.findall(r"\{(\d+),\s*(\d+)\}", i.attributes["source_target_pairs"])
    pairs = [(int(source), int(target)) for source, target in texts]
    if _is_among_replicas(i):
        pairs = [(device, device) for device in range(len(x)) if (0, 0) in pairs]
    nothing = [np.zeros_like(each) for each in x[0]]
    results = [_as_result(i, nothing)] * len(x)
    for source, target in pairs:
        results[target] = _as_result(i, x[source])
    return results


COLLECTIVES: dict[str, Callable] = {
    "all-reduce": _per_group(_all_reduce),
    "reduce-scatter": _per_group(_reduce_scatter),
    "all-gather": _per_group(_all_gather),
    "all-to-all": _per_group(_all_to_all),
    "collective-broadcast": _per_group(_broadcast),
    "collective-permute": _permute,
}
