"""The format of checkpoints: a safetensors file of whole states, whose header says where they are from and proves the content.

    8 bytes   the length n of the header, little endian
    n bytes   the header: JSON, filled up with spaces to a multiple of 8
    the rest  the tensors, row-major, in the header's order, without gaps

The header is {"__metadata__": {…}, <state>: {"dtype": "F32", "shape": […], "data_offsets": [begin, end]}, …}. Its metadata are
texts, some of them JSON again:

    lockstep.digest      SHA-256 of the header, in which zeros stand for this digest. The first entry, at a fixed place
    lockstep.checkpoint  the version of the format
    lockstep.tensors     {state: SHA-256 of its bytes}, which makes the header's digest one of the whole file
    lockstep.program     {name, backend, mesh, built_with, fits}: of who wrote it. `fits` is a digest of what load compares, the
                         names and types of the states, and equal for every number of ranks
    lockstep.settings    {name: value}
    lockstep.schedules   {setting: what it follows, as text}: for readers; a program cannot be made of it
    lockstep.metadata    {name: value}: the caller's; `step` is the number of the training step
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from ._errors import Error
from ._values import ValueInfo

_VERSION = "1"
_BEGIN = b'{"__metadata__":{"lockstep.digest":"'
_NO_DIGEST = "0" * 64
_MOST_HEADER = 100_000_000  # bytes; the package safetensors reads no longer one
_PIECE = 1 << 24  # bytes that are written, read and hashed at once
_SIZES = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1,
}  # fmt: skip

Metadata = dict[str, str | int | float]


def in_file_order(states: Sequence[ValueInfo]) -> list[ValueInfo]:
    """Large elements first, so that each tensor is aligned to its elements."""
    return sorted(states, key=lambda state: -_SIZES[state.dtype])


def fits(states: Iterable[ValueInfo]) -> str:
    """A digest of the names and types of states, in any order."""
    return hashlib.sha256(json.dumps(sorted([s.name, s.dtype, list(s.shape)] for s in states)).encode()).hexdigest()


def write(
    file: BinaryIO,
    states: Sequence[ValueInfo],
    values: Iterable[np.ndarray],
    about: Mapping[str, Mapping[str, object]],
) -> None:
    """Writes a checkpoint of `states`, which are in file order, with the bytes of each in `values`, which may come one by one.

    `about` is the program, the settings, the schedules and the metadata, by these names.
    """
    digests = dict.fromkeys((state.name for state in states), _NO_DIGEST)
    if "__metadata__" in digests:
        raise Error("a state cannot be called __metadata__ in a safetensors file")
    length = len(_header(states, digests, about))
    if length > _MOST_HEADER:
        raise Error(f"names and metadata make a header of {length} bytes, of at most {_MOST_HEADER}")
    file.write(length.to_bytes(8, "little"))
    file.seek(8 + length)
    for state, value in zip(states, values, strict=True):
        digest = hashlib.sha256()
        for begin in range(0, len(value), _PIECE):
            piece = value[begin : begin + _PIECE].data
            digest.update(piece)
            file.write(piece)
        digests[state.name] = digest.hexdigest()
    file.seek(8)
    header = _header(states, digests, about)
    file.write(_with_digest(header, hashlib.sha256(header).hexdigest()))


def _header(
    states: Sequence[ValueInfo], digests: Mapping[str, str], about: Mapping[str, Mapping[str, object]]
) -> bytes:
    """With zeros for its digest. As long whatever the digests are."""
    texts = {
        "lockstep.digest": _NO_DIGEST,
        "lockstep.checkpoint": _VERSION,
        "lockstep.tensors": json.dumps(digests),
        "lockstep.program": json.dumps(dict(about["program"], fits=fits(states))),
        "lockstep.settings": json.dumps(about["settings"]),
        "lockstep.schedules": json.dumps(about["schedules"]),
        "lockstep.metadata": json.dumps(about["metadata"]),
    }
    entries: dict[str, object] = {"__metadata__": texts}
    begin = 0
    for state in states:
        end = begin + _bytes_of(state)
        entries[state.name] = {"dtype": state.dtype.upper(), "shape": state.shape, "data_offsets": [begin, end]}
        begin = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    return header + b" " * (-len(header) % 8)


def _with_digest(header: bytes, digest: str) -> bytes:
    return header[: len(_BEGIN)] + digest.encode() + header[len(_BEGIN) + len(_NO_DIGEST) :]


def _bytes_of(state: ValueInfo) -> int:
    size = _SIZES[state.dtype]
    for dim in state.shape:
        size *= dim
    return size


class CheckpointFile:
    """A checkpoint that is open for reading. Its header has been checked, its tensors are when they are read.

    Raises:
      Error: naming the file, and what is wrong with it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 (until close)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            header = self._checked_header()
            try:
                self._understand(header)
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
        """The bytes of a state."""
        begin, state = self._begins[name], self.states[name]
        value, digest = np.empty(_bytes_of(state), np.uint8), hashlib.sha256()
        try:
            self._file.seek(begin)
            for at in range(0, len(value), _PIECE):
                piece = value[at : at + _PIECE].data
                if self._file.readinto(piece) != len(piece):
                    raise self._error(f"it ends within the state {name}")
                digest.update(piece)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from error
        if digest.hexdigest() != self._digests[name]:
            raise self._error(f"it is damaged: the bytes of the state {name} are not those that were written")
        return value

    def _error(self, what: str) -> Error:
        return Error(f"{self.path}: {what}")

    def _checked_header(self) -> bytes:
        first = self._file.read(8)
        if len(first) < 8:
            raise self._error(f"this is no checkpoint, or what is left of one: it has {self._size} bytes")
        length = int.from_bytes(first, "little")
        if length > self._size - 8:
            raise self._error(
                f"this is no checkpoint, or it is truncated: its header would have {length} bytes, and all of it has {self._size}"
            )
        header = self._file.read(min(length, _MOST_HEADER))
        if not header.startswith(_BEGIN):
            weights = "; load_weights() reads files of other programs" if header.startswith(b"{") else ""
            raise self._error(f"this is no checkpoint as save() writes it{weights}")
        self.digest = header[len(_BEGIN) : len(_BEGIN) + len(_NO_DIGEST)].decode(errors="replace")
        if hashlib.sha256(_with_digest(header, _NO_DIGEST)).hexdigest() != self.digest:
            raise self._error("it is damaged: its header is not the one that was written")
        return header

    def _understand(self, header: bytes) -> None:
        entries = json.loads(header)
        about = entries.pop("__metadata__")
        if about["lockstep.checkpoint"] != _VERSION:
            found = about["lockstep.checkpoint"]
            raise self._error(f"its format is of version {found}; this Lockstep reads version {_VERSION}")
        self._digests: dict[str, str] = json.loads(about["lockstep.tensors"])
        self.program: dict[str, str] = json.loads(about["lockstep.program"])
        self.settings: dict[str, float] = json.loads(about["lockstep.settings"])
        if not all(type(value) is float for value in self.settings.values()):
            raise ValueError("the settings are no numbers")
        self.metadata: Metadata = json.loads(about["lockstep.metadata"])
        if not all(isinstance(value, (str, int, float)) for value in self.metadata.values()):
            raise ValueError("the metadata are no text and numbers")
        if not isinstance(self.metadata["step"], int):
            raise TypeError("the step is no whole number")
        self.states: dict[str, ValueInfo] = {}
        self._begins: dict[str, int] = {}
        self._end = 8 + len(header)
        for name, entry in entries.items():
            state = ValueInfo(name, entry["dtype"].lower(), tuple(map(int, entry["shape"])))
            begin, end = entry["data_offsets"]
            if (begin, end) != (self._end - 8 - len(header), begin + _bytes_of(state)) or end < begin:
                raise ValueError(f"the place of {name}")
            self.states[name], self._begins[name] = state, self._end
            self._end += end - begin
        if self._digests.keys() != self.states.keys():
            raise ValueError("the digests are of other tensors")

    def _check_places(self) -> None:
        if self._end != self._size:
            what = "truncated" if self._size < self._end else "damaged"
            raise self._error(f"it is {what}: it has {self._size} bytes, and its header tells of {self._end}")
