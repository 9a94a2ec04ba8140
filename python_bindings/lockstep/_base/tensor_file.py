"""Files of tensors that prove their content: the format of checkpoints (_checkpoint/checkpoint_file.py) and of graphs
(_graph/graph_file.py). It is a safetensors file whose header describes its content.

    8 bytes   the length n of the header, little endian
    n bytes   the header: JSON, padded with spaces to a multiple of 8
    the rest  the tensors, row-major, in the header's order, without gaps

The header is {"__metadata__": {…}, <tensor>: {"dtype": "F32", "shape": […], "data_offsets": [begin, end]}, …}. The
metadata are texts, some of which are JSON. In addition to those of the kind of file, they are

    lockstep.digest      SHA-256 of the header with zeros in place of this digest. The first entry, at a fixed offset
    lockstep.<kind>      the version of the format
    lockstep.tensors     {tensor: SHA-256 of its bytes}, so that the header's digest covers the whole file
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from .errors import Error
from .values import ValueInfo

_BEGIN = b'{"__metadata__":{"lockstep.digest":"'
_NO_DIGEST = "0" * 64
_MOST_HEADER = 100_000_000  # bytes; the package safetensors reads no longer one
_PIECE = 1 << 24  # bytes that are written, read and hashed at once
_SIZES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1,
}  # fmt: skip
# For each kind, the version of the format, and the functions that write and read it.
_KINDS = {"checkpoint": ("1", "save()", "load()"), "graph": ("1", "Graph.save()", "load_graph()")}


def in_file_order(tensors: Sequence[ValueInfo]) -> list[ValueInfo]:
    """Sorts tensors with large elements first, so that each tensor is aligned to its elements."""
    return sorted(tensors, key=lambda each: -_SIZES[each.dtype])


def num_bytes(tensor: ValueInfo) -> int:
    """Returns the bytes of all elements of a tensor."""
    return math.prod(tensor.shape) * _SIZES[tensor.dtype]


def write(
    file: BinaryIO, kind: str, tensors: Sequence[ValueInfo], values: Iterable[np.ndarray], texts: Mapping[str, str]
) -> None:
    """Writes a file with `tensors`, which are in file order, the bytes of each from `values`, which may be an iterator,
    and the metadata `texts`."""
    digests = dict.fromkeys((each.name for each in tensors), _NO_DIGEST)
    length = len(_header(kind, tensors, digests, texts))
    if length > _MOST_HEADER:
        raise Error(f"names and metadata make a header of {length} bytes, expected at most {_MOST_HEADER}")
    file.write(length.to_bytes(8, "little"))
    file.seek(8 + length)
    for tensor, value in zip(tensors, values, strict=True):
        digest = hashlib.sha256()
        for begin in range(0, len(value), _PIECE):
            piece = value[begin : begin + _PIECE].data
            digest.update(piece)
            file.write(piece)
        digests[tensor.name] = digest.hexdigest()
    file.seek(8)
    header = _header(kind, tensors, digests, texts)
    file.write(_with_digest(header, hashlib.sha256(header).hexdigest()))


def _header(kind: str, tensors: Sequence[ValueInfo], digests: Mapping[str, str], texts: Mapping[str, str]) -> bytes:
    """With zeros for its digest. As long whatever the digests are."""
    about = {
        "lockstep.digest": _NO_DIGEST,
        f"lockstep.{kind}": _KINDS[kind][0],
        "lockstep.tensors": json.dumps(digests),
        **texts,
    }
    entries: dict[str, object] = {"__metadata__": about}
    begin = 0
    for tensor in tensors:
        end = begin + _bytes_of(tensor)
        entries[tensor.name] = {"dtype": tensor.dtype.upper(), "shape": tensor.shape, "data_offsets": [begin, end]}
        begin = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def _with_digest(header: bytes, digest: str) -> bytes:
    return header[: len(_BEGIN)] + digest.encode() + header[len(_BEGIN) + len(_NO_DIGEST) :]


def _bytes_of(tensor: ValueInfo) -> int:
    size = _SIZES[tensor.dtype]
    for dim in tensor.shape:
        size *= dim
    return size


class TensorFile:
    """A file of tensors that is open for reading. The constructor checks the header, and `read` checks a tensor.

    Args:
      path: of the file; or a name for messages, if `content` has the bytes.

    Raises:
      Error: names the file and the reason.
    """

    _kind: str
    _item: str  # the word for a tensor in messages

    def __init__(self, path: str, content: bytes | None = None) -> None:
        self.path = path
        try:
            self._file: BinaryIO = open(path, "rb") if content is None else io.BytesIO(content)  # noqa: SIM115 (until close)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error
        try:
            self._size = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            header = self._checked_header()
            try:
                self._understand_header(header)
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
                raise self._error(f"its header is malformed: {type(error).__name__}: {error}") from error
            self._check_places()
        except OSError as error:
            self.close()
            raise self._error(error.strerror or str(error)) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def read(self, name: str) -> np.ndarray:
        """Returns the bytes of a tensor."""
        begin, tensor = self._begins[name], self.tensors[name]
        value, digest = np.empty(_bytes_of(tensor), np.uint8), hashlib.sha256()
        try:
            self._file.seek(begin)
            for at in range(0, len(value), _PIECE):
                piece = value[at : at + _PIECE].data
                if self._file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
                    raise self._error(f"it ends within the {self._item} {name}")
                digest.update(piece)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error
        if digest.hexdigest() != self._digests[name]:
            raise self._error(f"it is damaged: the bytes of the {self._item} {name} are not those that were written")
        return value

    def _understand(self, about: Mapping[str, str]) -> None:
        """Takes the metadata of this kind of file. May raise the exceptions of parsing malformed text."""
        raise NotImplementedError

    def _error(self, what: str) -> Error:
        return Error(f"{self.path}: {what}")

    def _checked_header(self) -> bytes:
        first = self._file.read(8)
        if len(first) < 8:
            raise self._error(f"this is not a {self._kind}, or it is truncated: it has {self._size} bytes")
        length = int.from_bytes(first, "little")
        if length > self._size - 8:
            raise self._error(
                f"this is not a {self._kind}, or it is truncated: its header would have {length} bytes, but the file has {self._size}"
            )
        header = self._file.read(min(length, _MOST_HEADER))
        if not header.startswith(_BEGIN):
            weights = "; load_weights() reads files of other programs" if header.startswith(b"{") else ""
            raise self._error(f"this is not a {self._kind} that {_KINDS[self._kind][1]} wrote{weights}")
        self.digest = header[len(_BEGIN) : len(_BEGIN) + len(_NO_DIGEST)].decode(errors="replace")
        if hashlib.sha256(_with_digest(header, _NO_DIGEST)).hexdigest() != self.digest:
            raise self._error("it is damaged: its header is not the one that was written")
        return header

    def _understand_header(self, header: bytes) -> None:
        entries = json.loads(header)
        about = entries.pop("__metadata__")
        self._check_kind(about)
        self._digests: dict[str, str] = json.loads(about["lockstep.tensors"])
        self._understand(about)
        self.tensors: dict[str, ValueInfo] = {}
        self._begins: dict[str, int] = {}
        self._end = 8 + len(header)
        for name, entry in entries.items():
            tensor = ValueInfo(name, entry["dtype"].lower(), tuple(map(int, entry["shape"])))
            begin, end = entry["data_offsets"]
            if (begin, end) != (self._end - 8 - len(header), begin + _bytes_of(tensor)) or end < begin:
                raise ValueError(f"the place of {name}")
            self.tensors[name], self._begins[name] = tensor, self._end
            self._end += end - begin
        if self._digests.keys() != self.tensors.keys():
            raise ValueError("the digests are of other tensors")

    def _check_kind(self, about: Mapping[str, str]) -> None:
        for kind, (version, _, reader) in _KINDS.items():
            found = about.get(f"lockstep.{kind}")
            if kind != self._kind and found is not None:
                raise self._error(f"this is a {kind}, which {reader} reads, not a {self._kind}")
            if kind == self._kind and found is not None and found != version:
                raise self._error(f"its format is of version {found}; this Lockstep reads version {version}")
        about[f"lockstep.{self._kind}"]  # a KeyError if it is nothing that we know

    def _check_places(self) -> None:
        if self._end != self._size:
            what = "truncated" if self._size < self._end else "damaged"
            raise self._error(f"it is {what}: it has {self._size} bytes, but its header describes {self._end}")
