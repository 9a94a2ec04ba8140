"""Shardings of HLO: which part of an array each device has."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .text import split


@dataclass(frozen=True)
class Sharding:
    """The number of parts along each dimension, and for each device the part that it has along each."""

    parts: tuple[int, ...]
    of_device: dict[int, tuple[int, ...]]

    def __bool__(self) -> bool:
        return any(parts > 1 for parts in self.parts)

    def slices(self, device: int, dims: tuple[int, ...]) -> tuple[slice, ...]:
        """What the device has of an array: all parts are as large as the first, and the last ones may be empty."""
        if not self:
            return tuple(slice(0, extent) for extent in dims)
        sizes = [-(-extent // parts) for extent, parts in zip(dims, self.parts, strict=True)]
        at = self.of_device[device]
        return tuple(
            slice(min(k * size, extent), min((k + 1) * size, extent))
            for k, size, extent in zip(at, sizes, dims, strict=True)
        )

    def local(self, dims: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a part of an array, with padding."""
        return tuple(-(-extent // parts) for extent, parts in zip(dims, self.parts, strict=True)) if self else dims


def iota(text: str) -> np.ndarray:
    """The devices in a list `0,1,2`, or in `[2,2]<=[2,2]T(1,0)` or `([2,2]T(1,0))`, which are flattened."""
    match = re.search(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text.rsplit("<=", 1)[-1])
    if match is None:
        return np.array([int(number) for number in re.findall(r"\d+", text)])
    grid = np.arange(np.prod(dims := [int(each) for each in match[1].split(",")])).reshape(dims)
    return (grid.transpose([int(each) for each in match[2].split(",")]) if match[2] else grid).reshape(-1)


def arrange(mesh: str, axes: list[str]) -> np.ndarray:
    """The devices of a mesh `mesh['x'=2,'y'=4], device_ids=(…)`: along dimension k those that differ in the axes of the
    text axes[k], such as `'x','y':(2)2`, and along the last one those that differ in the others."""
    extents = {name: int(extent) for name, extent in re.findall(r"'([^']+)'=(\d+)", mesh)}
    count = int(np.prod(list(extents.values())))
    order = iota(mesh.split("device_ids", 1)[1]) if "device_ids" in mesh else np.arange(count)
    if unknown := set(re.findall(r"'([^']+)'", " ".join(axes))) - set(extents):
        raise ValueError(f"unknown axis {unknown.pop()}")
    # An axis 'y':(2)2 is the part of 2 of the axis y, after a part of 2.
    wanted = [[(name, int(before or 1), int(size or extents[name]))
               for name, before, size in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", text)] for text in axes]  # fmt: skip
    shape, places = list[int](), dict[tuple[str, int], int]()
    for name, extent in extents.items():
        at = 1
        for _, before, size in sorted(each for part in wanted for each in part if each[0] == name):
            shape += [before // at, size]
            places[name, before] = len(shape) - 1
            at = before * size
        shape.append(extent // at)
    chosen = [[places[name, before] for name, before, _ in part] for part in wanted]
    others = [d for d in range(len(shape)) if not any(d in part for part in chosen)]
    sizes = [int(np.prod([shape[d] for d in part])) for part in chosen]
    return order.reshape(shape).transpose([d for part in [*chosen, others] for d in part]).reshape(*sizes, -1)


def _grid(text: str) -> np.ndarray:
    """The devices in the text of a sharding: along each dimension those with different parts, and along the last one
    those with the same."""
    if match := re.match(r"\{(mesh\[.*?\].*?),\s*\[(.*?)\](?:, .*)?\}$", text):
        return arrange(match[1], [each.strip("{}") for each in split(match[2])])
    if match := re.match(r"\{devices=\[([\d,]+)\]([^ }]*)", text):
        dims = [int(each) for each in match[1].split(",")]
        tiles = re.search(r"last_tile_dims=\{(.*?)\}", text)
        same = len(split(tiles[1])) if tiles else int("last_tile_dim_replicate" in text)
        return iota(match[2]).reshape([*dims[: len(dims) - same], int(np.prod(dims[len(dims) - same :]))])
    raise ValueError(f"unknown sharding {text}")


def parse(text: str | None, rank: int, count: int) -> Sharding:
    """The sharding in the text of an attribute, of an array of this rank on devices of this count; ValueError if it is
    none."""
    text = re.sub(r",?\s*metadata=\{.*?\}", "", text or "{replicated}").strip()
    if re.match(r"\{(mesh\[[^\]]*\],\s*)?(replicated|maximal|manual|unreduced|unknown)\b", text):
        return Sharding((1,) * rank, {})
    devices = _grid(text)
    if devices.ndim != rank + 1:
        raise ValueError(f"{text} is for an array of rank {devices.ndim - 1}, not {rank}")
    if sorted(devices.reshape(-1)) != list(range(count)):
        raise ValueError(f"{text} is not for the devices 0 to {count - 1}")
    return Sharding(devices.shape[:rank], {int(devices[at]): at[:rank] for at in np.ndindex(*devices.shape)})


def parse_all(text: str | None, ranks: list[int], count: int) -> list[Sharding]:
    """The shardings of the parts of a tuple, or of one array."""
    inner = (text or "").strip()[1:-1]
    texts = split(inner) if inner.startswith("{") else [text] * len(ranks)
    return [parse(each, rank, count) for each, rank in zip(texts, ranks, strict=True)]
