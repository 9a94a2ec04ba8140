"""Trainer: the numbers that fit writes for TensorBoard."""

from __future__ import annotations

import struct
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import lockstep as ls
from cases import BATCH
from ranks import run_in_threads
from test_trainer import LOSS, MLP, samples, trainer


class Scalars:
    """What TensorBoard's SummaryWriter is called with."""

    def __init__(self) -> None:
        self.written: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.written.append((name, value, step))


def test_rank_0_writes_the_numbers_of_steps_and_epochs() -> None:
    x, labels = samples()

    def body(world: ls.Communicator) -> list[tuple[str, float, int]]:
        found, scalars = trainer(world), Scalars()
        first, last = found.fit((x, labels), (x, labels), epochs=2, scalars=scalars)
        if world.rank != 0:
            return scalars.written
        steps = range(1, last["step"] + 1)
        losses = [("train/loss", loss, step) for loss, step in zip(found.losses, steps, strict=True)]
        rates = [("train/learning_rate", found.learning_rate, step) for step in steps]
        epochs = [
            (f"epoch/{name}", results[name], results["step"])
            for results in (first, last)
            for name in ("loss", "validation_loss", "accuracy")
        ]
        constant = [("train/beta1", 0.9, 1), ("train/beta2", 0.999, 1)]
        written = [each for each in scalars.written if not each[0].startswith("time/")]
        assert sorted(written) == sorted(losses + rates + constant + epochs)
        return []

    assert run_in_threads(2, body) == [[], []]


def test_scalars_have_the_speed_and_the_parts_of_a_step() -> None:
    x, labels = samples()
    found, scalars = trainer(), Scalars()
    begin = time.perf_counter()
    (results,) = found.fit((x, labels), scalars=scalars)
    seconds = time.perf_counter() - begin
    times = {name.removeprefix("time/"): value for name, value, _ in scalars.written if name.startswith("time/")}
    report = found.executable.report(calls=results["step"])
    assert {step for name, _, step in scalars.written if name.startswith("time/")} == {results["step"]}
    # The epoch is the only thing that took time, and its steps are a part of it.
    assert len(x) / seconds <= times.pop("samples_per_second") <= len(x) / (report.total * report.calls)
    assert times == {name: getattr(report, name) for name in times}
    assert set(times) == {"total", "compute", "exposed", "waiting", "other", "hidden", "between"}
    assert times["compute"] > 0


def test_scalars_have_the_time_of_steps_within_a_long_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep._trainer.scalars._SECONDS", 0.0)
    x, labels = samples()
    scalars = Scalars()
    (results,) = trainer().fit((x, labels), scalars=scalars)
    steps = [step for name, _, step in scalars.written if name == "time/total"]
    assert steps == [*range(1, results["step"] + 1)]


def test_a_setting_is_written_when_it_changes() -> None:
    x, labels = samples()
    scalars = Scalars()
    momentum = ls.optim.SGD(0.1, momentum=lambda step: 0.5 if step < 3 else 0.25)
    ls.Trainer(ls.load_onnx(MLP.model, dims={"batch": BATCH}), LOSS, momentum).fit((x, labels), scalars=scalars)
    assert [each for each in scalars.written if each[0] == "train/momentum"] == [
        ("train/momentum", 0.5, 1),
        ("train/momentum", 0.25, 4),
    ]


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum, from its polynomial (RFC 3720, appendix B.4)."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def records_of(data: bytes) -> list[bytes]:
    """The records of a TFRecord file: length, its checksum, bytes, their checksum (tensorflow/core/lib/io)."""

    def masked(each: bytes) -> bytes:
        value = crc32c(each)
        return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    found = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        record = data[12 : 12 + length]
        assert (data[8:12], data[12 + length : 16 + length]) == (masked(data[:8]), masked(record))
        found.append(record)
        data = data[16 + length :]
    return found


def test_a_folder_of_scalars_has_files_for_tensorboard(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    x, labels = samples()

    def body(world: ls.Communicator) -> list[float]:
        found = trainer(world)
        found.fit((x, labels), (x, labels), scalars=tmp_path / "runs" / "first")
        found.fit((x, labels), scalars=str(tmp_path / "runs" / "first"))
        return found.losses

    losses, _ = run_in_threads(2, body)
    files = sorted((tmp_path / "runs" / "first").iterdir())
    assert len(files) == 2 and all(file.name.startswith("events.out.tfevents.") for file in files)
    events = [Event.FromString(each) for file in files for each in records_of(file.read_bytes())]
    assert events[0].file_version == "brain.Event:2"
    written = [(each.tag, event.step, each.simple_value) for event in events for each in event.summary.value]
    values = {step: value for tag, step, value in written if tag == "train/loss"}
    assert values == {step: pytest.approx(loss) for step, loss in enumerate(losses, 1)}
    assert {tag for tag, _, _ in written} >= {"epoch/accuracy", "time/samples_per_second", "train/learning_rate"}


def test_a_folder_of_scalars_needs_tensorboardx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    x, labels = samples()

    def body(world: ls.Communicator) -> str:
        with pytest.raises(ls.Error, match="fit: scalars='runs' needs the Python package tensorboardX: pip install"):
            trainer(world).fit((x, labels), scalars="runs")
        return "raised"

    assert run_in_threads(2, body) == ["raised", "raised"]


def test_a_folder_of_scalars_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    x, labels = samples()
    with pytest.raises(ls.Error, match=r"fit: scalars='.*/file/runs': there can be no file: Not a directory"):
        trainer().fit((x, labels), scalars=tmp_path / "file" / "runs")


def test_scalars_that_cannot_be_written_end_training_on_all() -> None:
    x, labels = samples()

    class Full:
        def add_scalar(self, *_: Any) -> None:
            raise OSError("no space left")

    def body(world: ls.Communicator) -> str:
        with pytest.raises(OSError if world.rank == 0 else ls.Error, match="no space left"):
            trainer(world).fit((x, labels), scalars=Full())
        return "raised"

    assert run_in_threads(2, body) == ["raised", "raised"]
