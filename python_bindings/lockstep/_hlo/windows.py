"""Windows over arrays, and the elements that indices select: convolutions, pools, gathers, scatters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .text import Instruction


@dataclass(frozen=True)
class Window:
    """A window along one dimension, which is dilated and padded first."""

    size: int = 1
    stride: int = 1
    low: int = 0
    high: int = 0
    base_dilation: int = 1
    dilation: int = 1
    reversed: bool = False

    def positions(self, extent: int) -> np.ndarray:
        """[windows, size]: the position that each window has at each place; -1 for padding."""
        dilated = (extent - 1) * self.base_dilation + 1 if extent else 0
        count = max(0, (dilated + self.low + self.high - (self.size - 1) * self.dilation - 1) // self.stride + 1)
        taps = np.arange(self.size)[:: -1 if self.reversed else 1] * self.dilation
        at = np.arange(count)[:, None] * self.stride + taps - self.low
        is_element = (at >= 0) & (at < dilated) & (at % self.base_dilation == 0)
        return np.where(is_element, at // self.base_dilation, -1)


def parse(text: str | None, rank: int) -> list[Window]:
    """The windows in the text of an attribute `{size=3x3 pad=1_1x1_1 …}`."""
    given = dict(each.split("=") for each in (text or "{}").strip("{}").split())
    along = {key: value.split("x") for key, value in given.items()}
    number = {key: [int(each) for each in value] for key, value in along.items() if key != "pad"}
    pads = [tuple(int(each) for each in pad.split("_")) for pad in along.get("pad", ["0_0"] * rank)]
    of = lambda key, d: number.get(key, [1] * rank)[d]
    return [
        Window(
            of("size", d), of("stride", d), pads[d][0], pads[d][1], of("lhs_dilate", d), of("rhs_dilate", d),
            "rhs_reversal" in number and bool(number["rhs_reversal"][d]),
        )
        for d in range(rank)
    ]  # fmt: skip


def patches(x: np.ndarray, windows: Sequence[Window], fill: np.ndarray) -> np.ndarray:
    """[windows along each dimension…, place in the window along each…], with `fill` for padding."""
    rank = x.ndim
    index, is_element = [], np.array(True)
    for d, window in enumerate(windows):
        at = window.positions(x.shape[d])
        shape = [1] * (2 * rank)
        shape[d], shape[rank + d] = at.shape
        index.append(at.reshape(shape))
        is_element = is_element & (index[-1] >= 0)
    if not x.size or not is_element.size:
        return np.broadcast_to(fill, is_element.shape).copy()
    found = x[tuple(np.maximum(each, 0) for each in index)] if rank else x
    return np.where(is_element, found, fill)


def convolve(i: Instruction, x: np.ndarray, kernel: np.ndarray, multiply, zero: np.ndarray) -> np.ndarray:
    x_labels, kernel_labels, y_labels = re.split("_|->", i.attributes["dim_labels"])
    space = [str(d) for d in range(x.ndim - 2)]
    order = lambda labels, first: [labels.index(each) for each in [*first, *space]]
    x, kernel = x.transpose(order(x_labels, "bf")), kernel.transpose(order(kernel_labels, "oi"))
    windows = parse(i.attributes.get("window"), len(space))
    for d, window in enumerate(windows):
        if window.reversed:
            kernel = np.flip(kernel, d + 2)
    windows = [Window(**{**vars(each), "reversed": False}) for each in windows]
    taken = patches(x, [Window(), Window(), *windows], zero)  # [b, f, space…, 1, 1, taps…]
    places, taps = taken.shape[2 : x.ndim], taken.shape[x.ndim + 2 :]
    of_features, of_batch = (int(i.attributes.get(f"{each}_group_count", "1")) for each in ("feature", "batch"))
    (batch, features), groups, outputs = x.shape[:2], of_features * of_batch, kernel.shape[0]
    places_of, taps_of = int(np.prod(places)), int(np.prod(taps))
    rows = taken.reshape(of_batch, batch // of_batch, of_features, features // of_features, places_of, taps_of)
    rows = rows.transpose(0, 2, 1, 4, 3, 5).reshape(groups, batch // of_batch * places_of, -1)
    columns = kernel.reshape(groups, outputs // groups, -1).transpose(0, 2, 1)
    y = multiply(rows, columns).reshape(groups, batch // of_batch, places_of, outputs // groups)
    y = y.transpose(1, 0, 3, 2).reshape(batch // of_batch, outputs, *places)
    return y.transpose(np.argsort(order(y_labels, "bf")))


def selected(
    i: Instruction, from_dims: Sequence[int], indices: np.ndarray, to_dims: Sequence[int], scatters: bool
) -> tuple[list[np.ndarray], np.ndarray]:
    """For each element of the result of a gather, or of the updates of a scatter: its position in the operand along
    each dimension, and whether the indices are in bounds. A gather's are clamped."""
    names = (
        ("update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
         "scatter_dims_to_operand_dims")
        if scatters
        else ("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims",
              "start_index_map")
    )  # fmt: skip
    window_dims, dropped, batching, indices_batching, indexed = (i.numbers(name) for name in names)
    vector = i.numbers("index_vector_dim")[0]
    indices = np.moveaxis(indices, vector, -1) if vector < indices.ndim else indices[..., None]
    kept = [d for d in range(len(from_dims)) if d not in dropped and d not in batching]
    sizes = [1] * len(from_dims)
    for d, window_dim in zip(kept, window_dims, strict=True):
        sizes[d] = to_dims[window_dim]
    batch_dims = [d for d in range(len(to_dims)) if d not in window_dims]
    along_batch = [to_dims[d] if d in batch_dims else 1 for d in range(len(to_dims))]
    index, in_bounds = [], np.ones(along_batch, bool)
    for d, extent in enumerate(from_dims):
        at = np.zeros(along_batch, np.int64)
        if d in indexed:
            at = indices[..., indexed.index(d)].astype(np.int64).reshape(along_batch)
            in_bounds &= (at >= 0) & (at + sizes[d] <= extent)
            at = np.clip(at, 0, max(0, extent - sizes[d]))
        elif d in batching:
            place = indices_batching[batching.index(d)]
            place -= place > vector
            at = at + np.arange(extent).reshape([-1 if k == batch_dims[place] else 1 for k in range(len(to_dims))])
        if d in kept:
            window_dim = window_dims[kept.index(d)]
            at = at + np.arange(sizes[d]).reshape([-1 if k == window_dim else 1 for k in range(len(to_dims))])
        index.append(np.broadcast_to(at, to_dims))
    return index, np.broadcast_to(in_bounds, to_dims)
