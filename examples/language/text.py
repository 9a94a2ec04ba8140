"""A text as a data set: windows of bytes, and for each byte of a window the next byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lockstep as ls


def read(path: Path, length: int, share: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of a file in two parts: u8[...] for training, and its last `share` for validation.

    Raises:
      Error: if a part has no window of `length` bytes.
    """
    text = np.frombuffer(path.read_bytes(), np.uint8)
    cut = len(text) - int(share * len(text))
    for part, what in ((text[:cut], "train on"), (text[cut:], "validate with")):
        if len(part) < 2 * length:
            raise ls.Error(f"{path}: {len(part)} bytes to {what}, expected at least {2 * length}: two times the length")
    return text[:cut], text[cut:]


class Windows:
    """The windows of a text that begin at `offset` and every `length` bytes after that.

    A sample is a window i64[length], and the same window one byte later. Their number does not depend on `offset`.
    """

    def __init__(self, text: np.ndarray, length: int, offset: int = 0) -> None:
        assert 0 <= offset < length
        self._text, self._length, self._offset = text, length, offset

    def __len__(self) -> int:
        return len(self._text) // self._length - 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        begin = self._offset + index * self._length
        window = self._text[begin : begin + self._length + 1].astype(np.int64)
        return window[:-1], window[1:]


def windows_of_epoch(text: np.ndarray, length: int, seed: int, epoch: int) -> Windows:
    """Returns windows whose offset differs between epochs, so that each byte occurs at each position of a window."""
    return Windows(text, length, int(np.random.Generator(np.random.PCG64([seed, epoch])).integers(length)))
