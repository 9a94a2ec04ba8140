"""Gradient compression: rounds pushed values to few levels, packs them into bits, and keeps the residuals.

Let x be an element of residual + gradient. With "2bit" it becomes threshold if x >= threshold, -threshold if x <=
-threshold, and otherwise 0. With "1bit" it becomes 1 if x > threshold, and otherwise -1. The residual keeps the
difference. A packed value is planes of bits: the elements that are up, and with "2bit" also those that are down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import checks
from .._base.errors import Error
from ._values import RowSparse, Value

if TYPE_CHECKING:
    from ._entry import Entry

_DEFAULT = {"2bit": 0.5, "1bit": 0.5}
_PIECE = 1 << 16  # elements processed at once, which fit in the caches; a multiple of 8


@dataclass(frozen=True)
class Compression:
    """The compression chosen by set_gradient_compression()."""

    kind: str
    threshold: float

    @staticmethod
    def of(params: Any) -> Compression:
        """Parses a dict. Raises an Error that names the invalid entry."""
        call = "set_gradient_compression"
        if not isinstance(params, Mapping) or "type" not in params:
            raise Error(f'{call}: it is {params!r}, expected a dict such as {{"type": "2bit", "threshold": 0.5}}')
        kind = checks.choice(f"{call}: type", params["type"], tuple(_DEFAULT))
        unknown = [name for name in params if name not in ("type", "threshold")]
        if unknown:
            raise Error(f"{call}: there is no option {unknown[0]!r}; there are type and threshold")
        threshold = params.get("threshold", _DEFAULT[kind])
        if isinstance(threshold, str):  # as in MXNet's examples
            try:
                threshold = float(threshold)
            except ValueError:
                raise Error(f"{call}: threshold is {threshold!r}, expected a number") from None
        number = float(np.float32(checks.number(f"{call}: threshold", threshold)))
        if not np.isfinite(number) or (kind == "2bit" and number <= 0):
            raise Error(f"{call}: threshold is {threshold!r}, expected a number{' above 0' if kind == '2bit' else ''}")
        return Compression(kind, number)

    @property
    def _planes(self) -> int:
        return 2 if self.kind == "2bit" else 1

    def rounded(self, entry: Entry, device: int, value: Value) -> np.ndarray:
        """Returns the rounded value of a device. Its residual keeps the rest."""
        out = np.empty(entry.shape, np.float32)
        flat, number = out.reshape(-1), 0
        for begin, up, down in self._pieces(entry, device, value):
            number = begin + len(up)
            self._scaled(self._levels(up, down), flat[begin:number])
        return out

    def packed_bytes(self, elements: int) -> int:
        """The number of bytes of so many packed elements."""
        return self._planes * ((elements + 7) // 8)

    def pack(self, entry: Entry, value: Value, packed: np.ndarray) -> None:
        """Writes the rounded value of this worker to u8[packed_bytes]. The residual keeps the rest."""
        planes = packed.reshape(self._planes, -1)
        for begin, up, down in self._pieces(entry, 0, value):
            at = slice(begin // 8, begin // 8 + (len(up) + 7) // 8)
            planes[0, at] = np.packbits(up)
            if down is not None:
                planes[1, at] = np.packbits(down)

    def unpack(self, packed: np.ndarray, total: np.ndarray) -> None:
        """Writes the sum of the values that all workers packed, u8[workers, packed_bytes], to f32[elements]."""
        planes = packed.reshape(len(packed), self._planes, -1)
        for begin in range(0, len(total), _PIECE):
            end = min(begin + _PIECE, len(total))
            at = slice(begin // 8, (end + 7) // 8)
            levels = np.zeros(end - begin, np.int32)
            for worker in planes:
                up = np.unpackbits(worker[0, at], count=end - begin)
                down = np.unpackbits(worker[1, at], count=end - begin) if self._planes == 2 else None
                levels += self._levels(up, down)
            self._scaled(levels, total[begin:end])

    def _pieces(self, entry: Entry, device: int, value: Value) -> Iterator[tuple[int, np.ndarray, np.ndarray | None]]:
        """Yields pieces: the begin of the piece, the elements that are up, and those that are down."""
        gradient = (value.dense() if isinstance(value, RowSparse) else value).reshape(-1)
        if device not in entry.residuals:
            entry.residuals[device] = np.zeros(gradient.shape, np.float32)
        residual, threshold = entry.residuals[device], np.float32(self.threshold)
        for begin in range(0, len(gradient), _PIECE):
            owed = residual[begin : begin + _PIECE]
            owed += gradient[begin : begin + _PIECE]
            if self.kind == "2bit":
                up, down = owed >= threshold, owed <= -threshold
                owed -= threshold * (up.astype(np.float32) - down)
                yield begin, up, down
            else:
                up = owed > threshold
                owed -= np.where(up, np.float32(1), np.float32(-1))
                yield begin, up, None

    def _levels(self, up: np.ndarray, down: np.ndarray | None) -> np.ndarray:
        """Returns elements as whole numbers: 1, 0 and -1, or 1 and -1."""
        signed = up.astype(np.int8)
        return 2 * signed - 1 if down is None else signed - down.astype(np.int8)

    def _scaled(self, levels: np.ndarray, out: np.ndarray) -> None:
        np.multiply(levels, np.float32(self.threshold if self.kind == "2bit" else 1), out=out, casting="unsafe")
