"""The calls of a job on NumPy's bytes: their descriptions, collectives and results. Independent of torch.

A call is made by the rank that calls, or, on a rank that has joined, as a shadow of that call (`shadow_of`), which
takes part with zeros or without rows.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from .. import _lockstep
from .._base.errors import Error
from .._lockstep import Communicator

RECORD_BYTES = 1024
_NAME_BYTES = 96  # the length of the engine's labels, so that a record fits
Record = dict[str, Any]
SIZES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "u8": 1, "bool": 1}


class Call:
    """One call of one rank, from start to result. The session calls `start` and then `finish`."""

    needs_records = False  # true if `start` needs the records of all ranks

    def __init__(self, record: Record) -> None:
        self.record = record
        self.records: list[Record] | None = None  # of all ranks, when they are known
        self.complete = False
        self.described: np.ndarray
        self.description = -1  # the ticket of the gather of records
        self.tickets: list[int] = []
        if "name" in record:
            record["name"] = record["name"].encode()[:_NAME_BYTES].decode(errors="ignore")

    @property
    def label(self) -> str:
        return f"horovod: {self.record['op']} {self.record.get('name', '')}"

    def packed(self, record: Record) -> bytes:
        text = json.dumps(record, ensure_ascii=False).encode()
        if len(text) > RECORD_BYTES:
            raise Error(
                f"{self.label}: its description has {len(text)} bytes, expected at most {RECORD_BYTES}: use a shorter name"
            )
        return text.ljust(RECORD_BYTES)

    def unpacked(self, text: bytes) -> Record:
        return json.loads(text)

    def same(self, record: Record) -> Record:
        """Returns the part of a record that must be the same on all ranks that have not joined."""
        return record

    def joins_are_fine(self) -> bool:
        """True if the call is possible when some ranks have joined."""
        return True

    def check(self) -> None:
        assert self.records is not None
        there = [(rank, record) for rank, record in enumerate(self.records) if record["op"] != "join"]
        first, mine = there[0]
        for rank, record in there[1:]:
            if self.same(record) != self.same(mine):
                raise Error(
                    f"ranks make different calls: rank {first} {_text(mine)}, rank {rank} {_text(record)}; all ranks must make the "
                    "same calls in the same order"
                )
        if len(there) < len(self.records) and not self.joins_are_fine():
            joined = [rank for rank, record in enumerate(self.records) if record["op"] == "join"]
            raise Error(f"rank {first} {_text(mine)} needs all ranks, but {joined} have called join()")

    def start(self, world: Communicator) -> None:
        """Starts the collectives."""

    def wait_first(self, world: Communicator) -> None:
        """Waits for collectives that can be waited for before the description, because they take longer."""

    def finish(self, world: Communicator) -> None:
        """Waits for the collectives. The outputs are then written."""
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            _lockstep._wait(world, ticket)


def _text(record: Record) -> str:
    name = f" {record['name']!r}" if "name" in record else ""
    rest = [f"{key} {value}" for key, value in record.items() if key not in ("op", "name", "rows", "count")]
    return f"{record['op']}{name}" + (f" ({', '.join(rest)})" if rest else "")


class AllReduce(Call):
    def __init__(self, record: Record, input: np.ndarray, output: np.ndarray) -> None:
        """`record` has name, dtype, kind and shape. The arrays are the bytes of tensors, and may be the same array."""
        super().__init__({"op": "allreduce", **record})
        self._arrays = (input, output)

    def joins_are_fine(self) -> bool:
        return self.record["kind"] in ("sum", "mean")

    def start(self, world: Communicator) -> None:
        record = self.record
        self.tickets = [_lockstep._start_all_reduce(world, *self._arrays, record["dtype"], record["kind"], self.label)]


class Broadcast(Call):
    def __init__(self, record: Record, input: np.ndarray, output: np.ndarray) -> None:
        super().__init__({"op": "broadcast", **record})
        self._arrays = (input, output)

    def joins_are_fine(self) -> bool:
        assert self.records is not None
        return self.records[self.record["root"]]["op"] != "join"

    def start(self, world: Communicator) -> None:
        record = self.record
        self.tickets = [_lockstep._start_broadcast(world, *self._arrays, record["dtype"], record["root"], self.label)]


class _OfRows(Call):
    """A call in which ranks may have different numbers of rows. A row has the shape `row`."""

    needs_records = True

    def same(self, record: Record) -> Record:
        return {key: value for key, value in record.items() if key != "rows"}

    def rows(self) -> list[int]:
        """The numbers of rows by rank."""
        assert self.records is not None
        return [record.get("rows", 0) for record in self.records]

    def row_bytes(self) -> int:
        record = self.record
        return int(np.prod(record["row"], dtype=np.int64)) * SIZES[record["dtype"]]


class AllGather(_OfRows):
    """An all-gather of rows. `output` is then u8[rows of all ranks, bytes of a row]."""

    def __init__(self, record: Record, input: np.ndarray) -> None:
        super().__init__({"op": "allgather", **record})
        self._input = input
        self.output = np.empty((0, 0), np.uint8)
        self._gathered = self.output

    def start(self, world: Communicator) -> None:
        rows, width = self.rows(), self.row_bytes()
        most = max(rows)
        if min(rows) == most:
            self.output = self._gathered = np.empty((most * world.size, width), np.uint8)
            own = self._input
        else:
            self._gathered = np.empty((world.size, most, width), np.uint8)
            own = np.zeros((most, width), np.uint8)
            own[: rows[world.rank]] = self._input.reshape(-1, width) if self._input.size else 0
        self.tickets = [_lockstep._start_all_gather(world, own, self._gathered, "u8", self.label)]

    def finish(self, world: Communicator) -> None:
        super().finish(world)
        rows = self.rows()
        if min(rows) != max(rows):
            self.output = np.concatenate([self._gathered[rank, :count] for rank, count in enumerate(rows)])


class AllToAll(_OfRows):
    """An all-to-all of rows. `output` is then u8[rows for this rank, bytes of a row]; `received`, the rows by rank."""

    def __init__(self, record: Record, input: np.ndarray, splits: list[int] | None) -> None:
        super().__init__({"op": "alltoall", **record})
        self._input = input
        self._splits = splits  # rows for each rank; None: no rows
        self.output = self._got = np.empty((0, 0), np.uint8)
        self.received: list[int] = []

    def start(self, world: Communicator) -> None:
        width = self.row_bytes()
        splits = np.array(self._splits if self._splits is not None else [0] * world.size, np.int64)
        everyones = np.empty((world.size, world.size), np.int64)
        _lockstep._wait(world, _lockstep._start_all_gather(world, splits, everyones, "i64", f"{self.label}: splits"))
        most = int(everyones.max())
        self.received = [int(count) for count in everyones[:, world.rank]]
        sent = np.zeros((world.size, most, width), np.uint8)
        begin = 0
        for rank, count in enumerate(splits):
            sent[rank, :count] = self._input.reshape(-1, width)[begin : begin + count] if count and width else 0
            begin += count
        self._got = np.empty_like(sent)
        self.tickets = [_lockstep._start_all_to_all(world, sent, self._got, "u8", self.label)]

    def finish(self, world: Communicator) -> None:
        super().finish(world)
        self.output = np.concatenate([self._got[rank, :count] for rank, count in enumerate(self.received)])


class ReduceScatter(Call):
    """A reduce-scatter of rows. `output` then has the bytes of this rank's rows, which `rows_of` assigns."""

    def __init__(self, record: Record, input: np.ndarray) -> None:
        super().__init__({"op": "reducescatter", **record})
        self._input = input
        self.output = np.empty(0, np.uint8)

    def joins_are_fine(self) -> bool:
        return self.record["kind"] in ("sum", "mean")

    def start(self, world: Communicator) -> None:
        record = self.record
        rows, *row = record["shape"]
        width = int(np.prod(row, dtype=np.int64)) * SIZES[record["dtype"]]
        most = -(-rows // world.size)
        counts = rows_of(rows, world.size)
        own = self._input
        if rows % world.size != 0:
            own = np.zeros((world.size, most, width), np.uint8)
            begin = 0
            for rank, count in enumerate(counts):
                own[rank, :count] = self._input.reshape(rows, width)[begin : begin + count]
                begin += count
        share = np.empty((most, width), np.uint8)
        self.output = share[: counts[world.rank]]
        self.tickets = [_lockstep._start_reduce_scatter(world, own, share, record["dtype"], record["kind"], self.label)]


def rows_of(rows: int, ranks: int) -> list[int]:
    """The numbers of rows by rank. If `rows` is not divisible by `ranks`, the first ranks have one more."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def shadow_of(record: Record) -> Call:
    """Returns the call by which a rank that has joined takes part in the call of another one."""
    op = record["op"]
    own = {key: value for key, value in record.items() if key not in ("op", "rows")}
    if op in ("allreduce", "broadcast", "reducescatter"):
        nothing = np.zeros(int(np.prod(record["shape"], dtype=np.int64)) * SIZES[record["dtype"]], np.uint8)
        if op == "reducescatter":
            return ReduceScatter(own, nothing)
        return (AllReduce if op == "allreduce" else Broadcast)(own, nothing, nothing)
    if op == "allgather":
        return AllGather(own, np.empty(0, np.uint8))
    if op == "alltoall":
        return AllToAll(own, np.empty(0, np.uint8), None)
    return Call(record)  # a barrier is only its description
