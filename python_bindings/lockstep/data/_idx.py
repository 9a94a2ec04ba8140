"""The IDX format of MNIST."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from os import PathLike
from pathlib import Path

import numpy as np

from .._base import checks
from .._base.errors import Error
from ._split import rows_of_part

_IDX_DTYPES = {8: np.uint8, 9: np.int8, 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def load_idx(
    path: str | PathLike[str], *, num_parts: int = 1, part_index: int | None = None, seed: int | None = None
) -> np.ndarray:
    """Reads a file in the IDX format of MNIST, plain or compressed (.gz).

    Args:
      path: of the file.
      num_parts, part_index: the number of parts along the first dimension, and the part to read, from 0.
      seed: of a shuffle before the division, the same in all parts. None keeps the file's order.

    Returns:
      An array with the dtype and shape of the file, in native byte order. If there are several parts, the rows of one.

    Raises:
      Error: the file is missing, or is not a complete IDX file. The message names it.
    """
    path = Path(checks.path(path))
    try:
        content = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    except FileNotFoundError:
        raise Error(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise Error(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    array = _array_of(path, content)
    if (num_parts, part_index, seed) != (1, None, None):
        if not array.ndim:
            raise Error(f"{path}: it has one element and no rows, so it cannot be divided into parts")
        array = array[rows_of_part("load_idx", len(array), num_parts, part_index, seed)]
    return array.astype(array.dtype.newbyteorder("="))


def _array_of(path: Path, content: bytes) -> np.ndarray:
    """Returns the array in a file, in its byte order and memory."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_DTYPES:
        raise Error(f"{path}: this is not an IDX file (the format of MNIST)")
    rank = content[3]
    header = 4 + 4 * rank
    if len(content) < header:
        raise Error(f"{path}: the file ends within its header")
    shape = struct.unpack(f">{rank}I", content[4:header])
    dtype = np.dtype(_IDX_DTYPES[content[2]])
    expected = header + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        raise Error(f"{path}: {len(content)} bytes, but its header says {expected}")
    try:
        return np.frombuffer(content, dtype, offset=header).reshape(shape)
    except ValueError as error:  # more dimensions than NumPy has
        raise Error(f"{path}: {rank} dimensions: {error}") from None


def mnist(
    directory: str | PathLike[str],
    train: bool = True,
    *,
    num_parts: int = 1,
    part_index: int | None = None,
    seed: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a data set in MNIST's four files, such as Fashion-MNIST (Debian's package dataset-fashion-mnist).

    Args:
      directory: the folder of `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and `t10k-…`, with or without `.gz`.
        If both exist, the uncompressed file is read.
      train: the training set; otherwise the test set.
      num_parts, part_index: the number of parts, and the part to read, from 0. Parts differ by at most one image.
      seed: of a shuffle before the division, the same in all parts. None keeps the files' order.

    Returns:
      Images, f32[n, 1, rows, columns] with values in [0, 1], and labels, i64[n].

    Raises:
      Error: a file is missing or damaged, or the numbers of images and labels differ.
    """
    part = "train" if checks.flag("mnist: train", train) else "t10k"
    directory = checks.path(directory)

    def load(name: str) -> np.ndarray:
        plain = Path(directory) / f"{part}-{name}"
        compressed = plain.with_name(plain.name + ".gz")
        return load_idx(compressed if compressed.exists() and not plain.exists() else plain)

    images, labels = load("images-idx3-ubyte"), load("labels-idx1-ubyte")
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
        raise Error(f"{directory}: images of shape {images.shape} with labels of shape {labels.shape}")
    if (num_parts, part_index, seed) != (1, None, None):
        rows = rows_of_part("mnist", len(labels), num_parts, part_index, seed)
        images, labels = images[rows], labels[rows]
    return images[:, None].astype(np.float32) / np.float32(255), labels.astype(np.int64)
