"""RecordIO, MXNet's format of data sets: a file of records (.rec), and an index of their begins (.idx). Read only.

A record is one or more chunks. A chunk is the magic number, four bytes, the content, and zeros up to a multiple of
four, all little-endian. The upper three bits of the four bytes are the kind of chunk within a record; the others are
the length of the content. If content has the magic number at a multiple of four, the writer omits it and begins another
chunk. So a magic number in a file always begins a chunk.
"""

from __future__ import annotations

import os
import struct
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._base import checks
from .._base.errors import Error
from ._image_folder import Transform, _checked_transform, decoded
from ._split import checked_part, rows_of_part

MAGIC = 0xCED7230A
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)  # kinds of chunks
_LENGTH_BITS = 29
_IMAGE_HEADER = struct.Struct("<IfQQ")


class Records:
    """The records of a file, as bytes; the result of `records`. Threads and processes may read it at the same time."""

    def __init__(self, path: Path, keys: list[int], offsets: np.ndarray, num_parts: int) -> None:
        self._path, self._keys, self._offsets, self._num_parts = path, keys, offsets, num_parts
        self._open()

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise Error(f"{self._path}: {error.strerror}") from None
        weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    @property
    def num_parts(self) -> int:
        """The number of parts, of which this is one."""
        return self._num_parts

    @property
    def keys(self) -> list[int]:
        """The keys of the records in the index; their numbers in the file if there is no index."""
        return list(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Any:
        return self._record(int(self._offsets[index]))

    def _record(self, offset: int) -> bytes:
        parts, at = [], offset
        while True:
            chunk = _chunk_at(self._path, self._file, self._size, at)
            _check_order(self._path, at, chunk.which, is_first=not parts)
            parts.append(_read(self._path, self._file, chunk.begin, chunk.length))
            if chunk.which in (_WHOLE, _LAST):
                return struct.pack("<I", MAGIC).join(parts)
            at = chunk.end


@dataclass(frozen=True)
class RecordHeader:
    """The header before the content of an image's record.

    Attributes:
      label: a number, or f32[n] if the writer gave several.
      id: two numbers: the image's number and 0.
    """

    label: float | np.ndarray
    id: tuple[int, int]


class ImageRecords(Records):
    """A data set of images in a file of records, from `image_records`. Threads and processes may read concurrently."""

    def __init__(self, records: Records, transform: Transform, labels: str) -> None:
        super().__init__(records._path, records._keys, records._offsets, records._num_parts)
        self._transform, self._labels = transform, labels

    def _name(self, index: int) -> str:
        return f"{self._path}: the record at byte {int(self._offsets[index])}"

    def unpacked(self, index: int) -> tuple[RecordHeader, bytes]:
        """Returns the header of a record, and the image file after it."""
        record = self._record(int(self._offsets[index]))
        if len(record) < _IMAGE_HEADER.size:
            raise Error(
                f"{self._name(index)} has {len(record)} bytes, but the header of an image has {_IMAGE_HEADER.size}"
            )
        count, label, *id = _IMAGE_HEADER.unpack_from(record)
        content = record[_IMAGE_HEADER.size :]
        if count == 0:
            return RecordHeader(label, (id[0], id[1])), content
        if 4 * count > len(content):
            raise Error(f"{self._name(index)} should have {count} labels, but ends after {len(content)} bytes of them")
        several = np.frombuffer(content, "<f4", count).astype(np.float32)
        return RecordHeader(several, (id[0], id[1])), content[4 * count :]

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        header, content = self.unpacked(index)
        return self._transform(decoded(content, self._name(index)), index), self._label_of(index, header.label)

    def _label_of(self, index: int, label: float | np.ndarray) -> Any:
        if self._labels == "numbers":
            return np.float32(label)
        if isinstance(label, np.ndarray) and label.size == 1:
            label = float(label[0])
        if isinstance(label, np.ndarray) or not label.is_integer():
            raise Error(
                f'{self._name(index)} has the label {label}, which is not a class; labels="numbers" accepts it unchanged'
            )
        return np.int64(label)


def records(
    path: str | os.PathLike[str],
    index: str | os.PathLike[str] | None = None,
    *,
    num_parts: int = 1,
    part_index: int | None = None,
    seed: int | None = None,
) -> Records:
    """Opens a RecordIO file of MXNet. Records are read when they are accessed.

    Args:
      path: of the file (.rec).
      index: the path of the index file (.idx), which also decides the order. If None, the file of the same name with
        this suffix; if there is none, the file is scanned.
      num_parts, part_index: the number of parts, and the part to read, from 0. Parts differ by at most one record.
      seed: of a shuffle before the division, the same in all parts. None keeps the order.

    Returns:
      A data set with a length, whose samples are the contents of records as bytes. The caller interprets them;
      `image_records` reads images.

    Raises:
      Error: a file is missing or damaged; the message has the byte. If there is an index, damage of a record is
        detected at access.
    """
    file = Path(checks.path(path))
    beside = file.with_suffix(".idx")
    parts, _ = checked_part("records", num_parts, part_index)
    whole = Records(file, [], np.empty(0, np.int64), parts)  # raises the error if the file is missing
    if index is not None or beside.exists():
        keys, offsets = _read_index(Path(checks.path(index)) if index is not None else beside, file, whole._size)
    else:
        offsets = _walk(file, whole._file, whole._size)
        keys = list(range(len(offsets)))
    rows = rows_of_part("records", len(keys), num_parts, part_index, seed)
    return Records(file, [keys[row] for row in rows], np.array(offsets, np.int64)[rows], parts)


def image_records(
    path: str | os.PathLike[str],
    size: int | None = None,
    *,
    transform: Transform | None = None,
    labels: str = "classes",
    index: str | os.PathLike[str] | None = None,
    num_parts: int = 1,
    part_index: int | None = None,
    seed: int | None = None,
) -> ImageRecords:
    """Opens the images of a RecordIO file that MXNet's im2rec or `recordio.pack_img` wrote. Needs Pillow.

    Args:
      path, index, num_parts, part_index, seed: as for `records`.
      size, transform: as for `image_folder`.
      labels: "classes" are whole numbers, i64. "numbers" are unchanged, f32, or f32[n] if a record has several.

    Returns:
      A data set with a length, whose samples are the image, f32[3, height, width] with values in [0, 1], and its label.

    Raises:
      Error: as for `records`; at access if a record is not an image, or its label is not a class.
    """
    checked = _checked_transform("image_records", size, transform)
    checks.choice("image_records: labels", labels, ("classes", "numbers"))
    found = records(path, index, num_parts=num_parts, part_index=part_index, seed=seed)
    return ImageRecords(found, checked, labels)


class _Chunk(NamedTuple):
    """A chunk: its kind, the length and the begin of its content, and the begin of the next chunk."""

    which: int
    length: int
    begin: int
    end: int


def _read(path: Path, file: int, offset: int, count: int) -> bytes:
    """Reads bytes of the file by position, so that threads need no lock."""
    parts = []
    while count > 0:
        try:
            part = os.pread(file, count, offset)
        except OSError as error:
            raise Error(f"{path}: at byte {offset}: {error.strerror}") from None
        if not part:
            raise Error(f"{path}: the file ends at byte {offset}, within a record")
        parts.append(part)
        offset, count = offset + len(part), count - len(part)
    return b"".join(parts)


def _chunk_at(path: Path, file: int, size: int, offset: int) -> _Chunk:
    if offset + 8 > size:
        raise Error(f"{path}: the file ends at byte {size}, within the head of a record at byte {offset}")
    magic, word = struct.unpack("<II", _read(path, file, offset, 8))
    if magic != MAGIC:
        raise Error(f"{path}: there is no record at byte {offset}: expected 0x{MAGIC:x}, found 0x{magic:08x}")
    which, length = word >> _LENGTH_BITS, word & ((1 << _LENGTH_BITS) - 1)
    if which > _LAST:
        raise Error(f"{path}: the record at byte {offset} is of an unknown kind, {which}")
    begin = offset + 8
    if begin + length > size:
        raise Error(
            f"{path}: the file ends at byte {size}, but the record at byte {offset} ends at byte {begin + length}"
        )
    return _Chunk(which, length, begin, begin + -(-length // 4) * 4)


def _check_order(path: Path, offset: int, which: int, is_first: bool) -> None:
    if is_first != (which in (_WHOLE, _FIRST)):
        meant = "a record begins" if is_first else "a record continues"
        found = "continues" if is_first else "begins"
        raise Error(f"{path}: at byte {offset}, where {meant}, one {found}")


def _walk(path: Path, file: int, size: int) -> list[int]:
    """Returns the begins of the records."""
    offsets, at, begins = [], 0, True
    while at < size:
        chunk = _chunk_at(path, file, size, at)
        _check_order(path, at, chunk.which, begins)
        if begins:
            offsets.append(at)
        begins = chunk.which in (_WHOLE, _LAST)
        at = chunk.end
    if not begins:
        raise Error(f"{path}: the file ends at byte {size}, within the record at byte {offsets[-1]}")
    return offsets


def _read_index(index: Path, file: Path, size: int) -> tuple[list[int], list[int]]:
    """Returns the keys and the begins of the records. A line of the index has both numbers."""
    try:
        lines = index.read_text().splitlines()
    except FileNotFoundError:
        raise Error(f"{index}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Error(f"{index}: {getattr(error, 'strerror', None) or 'this is not an index of records'}") from None
    keys, offsets = [], []
    for number, line in enumerate(lines, 1):
        try:
            key, offset = map(int, line.split("\t"))
        except ValueError:
            raise Error(f"{index}: line {number} is {line!r}, expected a number, a tab and an offset") from None
        if not 0 <= offset < size:
            raise Error(f"{index}: line {number} has a record at byte {offset}, but {file} has {size} bytes")
        keys.append(key)
        offsets.append(offset)
    return keys, offsets
