"""The format of checkpoints, damaged and foreign files, and that a file appears complete or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import lockstep as ls
from lockstep._base import atomic, tensor_file
from lockstep._base.values import ValueInfo
from lockstep._checkpoint import checkpoint_file
from lockstep._checkpoint.checkpoint_file import CheckpointFile
from test_errors import raises

HERE = Path(__file__).parent
DTYPES = ["bool", "u8", "i8", "bf16", "f16", "u16", "i16", "f32", "u32", "i32", "f64", "u64", "i64"]
SIZES = [1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8]
STATES = [ValueInfo(f"state/{dtype} é", dtype, shape) for dtype, shape in zip(DTYPES, [(3,), (), (0, 4), (2, 3)] * 4)]
METADATA = {"step": 7, "note": "é\n", "rate": 0.1, "best": float("inf"), "done": True}
SETTINGS = {"optimizer/learning_rate": 0.1, "optimizer/momentum": 1.0}
ABOUT = {"program": {"name": "g"}, "settings": SETTINGS, "schedules": {"optimizer/momentum": "f"}, "metadata": METADATA}


def values() -> dict[str, np.ndarray]:
    sizes = dict(zip(DTYPES, SIZES, strict=True))
    count = {state.name: sizes[state.dtype] * int(np.prod(state.shape)) for state in STATES}
    return {name: np.arange(i, i + n, dtype=np.uint8) % 2 for i, (name, n) in enumerate(count.items())}


def write(path: Path, states: list[ValueInfo] = STATES) -> Path:
    states, of = tensor_file.in_file_order(states), values()
    content = (of[state.name] for state in states)
    atomic.write(str(path), lambda file: checkpoint_file.write(file, states, content, ABOUT))
    return path


def read_all(path: Path) -> dict[str, np.ndarray]:
    file = CheckpointFile(str(path))
    try:
        return {name: file.read(name) for name in file.states}
    finally:
        file.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.safetensors"


# Contents of a file


def test_the_package_safetensors_reads_it(path: Path) -> None:
    of, found = values(), safetensors.deserialize(write(path).read_bytes())
    assert {name for name, _ in found} == set(of)
    by_name = {state.name: state for state in STATES}
    for name, entry in found:
        assert entry["dtype"] == by_name[name].dtype.upper()
        assert tuple(entry["shape"]) == by_name[name].shape
        assert bytes(entry["data"]) == of[name].tobytes()
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    assert json.loads(metadata["lockstep.metadata"]) == METADATA
    assert metadata["lockstep.checkpoint"] == "1"
    assert json.loads(metadata["lockstep.settings"]) == SETTINGS
    assert json.loads(metadata["lockstep.schedules"]) == {"optimizer/momentum": "f"}
    assert json.loads(metadata["lockstep.program"]) == {"name": "g", "fits": checkpoint_file.fits(STATES)}


def test_what_is_written_is_read(path: Path) -> None:
    of, found = values(), read_all(write(path))
    assert {name: value.tobytes() for name, value in found.items()} == {name: of[name].tobytes() for name in of}
    file = CheckpointFile(str(path))
    assert file.metadata == METADATA
    assert {name: type(value) for name, value in file.metadata.items()} == {k: type(v) for k, v in METADATA.items()}
    assert {(s.name, s.dtype, s.shape) for s in file.states.values()} == {(s.name, s.dtype, s.shape) for s in STATES}
    assert file.digest == hashlib.sha256(re.sub(file.digest.encode(), b"0" * 64, header_of(path))).hexdigest()
    file.close()


@pytest.mark.parametrize("writing", [2, 1 << 24])
@pytest.mark.parametrize("reading", [2, 1 << 24])
def test_large_tensors_are_written_and_read_in_pieces(
    writing: int, reading: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest does not depend on the sizes of the pieces."""
    monkeypatch.setattr(tensor_file, "_PIECE", writing)
    write(path)
    monkeypatch.setattr(tensor_file, "_PIECE", reading)
    of, found = values(), read_all(path)
    assert {name: value.tobytes() for name, value in found.items()} == {name: of[name].tobytes() for name in of}


def test_tensors_are_aligned_to_their_elements(path: Path) -> None:
    header, sizes = header_of(write(path)), dict(zip(DTYPES, SIZES, strict=True))
    assert len(header) % 8 == 0
    for name, entry in json.loads(header).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % sizes[entry["dtype"].lower()] == 0, name


def test_what_fits_does_not_depend_on_the_order_of_states() -> None:
    assert checkpoint_file.fits(STATES) == checkpoint_file.fits(STATES[::-1])
    other = [*STATES[:-1], ValueInfo(STATES[-1].name, "u64", STATES[-1].shape)]
    assert checkpoint_file.fits(STATES) != checkpoint_file.fits(other)


def test_no_states(path: Path) -> None:
    assert read_all(write(path, [])) == {}
    assert safetensors.numpy.load_file(path) == {}


def test_what_a_header_cannot_hold(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("a state cannot be called __metadata__"):
        write(path, [ValueInfo("__metadata__", "f32", ())])
    monkeypatch.setattr(tensor_file, "_MOST_HEADER", 100)
    with raises("names and metadata make a header of", "at most 100"):
        write(path)
    assert not list(path.parent.iterdir())


# Other files


def header_of(path: Path) -> bytes:
    content = path.read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def with_header(path: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Replaces the header of the file, with a correct digest."""
    old = header_of(path)
    entries = json.loads(old)
    entries["__metadata__"]["lockstep.digest"] = "0" * 64
    new = json.dumps(change(entries) or entries, separators=(",", ":")).encode()
    digest = hashlib.sha256(new).hexdigest().encode()
    new = new.replace(b"0" * 64, digest, 1)
    path.write_bytes(len(new).to_bytes(8, "little") + new + path.read_bytes()[8 + len(old) :])


def damaged(path: Path) -> str:
    """The error message for the file, without the file's name."""
    with pytest.raises(ls.Error) as caught:
        read_all(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def variants(content: bytes) -> Iterator[bytes]:
    header = 8 + int.from_bytes(content[:8], "little")
    for i in range(len(content)):
        yield content[:i]
        for bit in range(8) if i < header else (0, 7):
            yield content[:i] + bytes([content[i] ^ 1 << bit]) + content[i + 1 :]
    yield content + b"\0"


def test_every_truncation_and_every_flipped_bit_is_an_error(path: Path) -> None:
    """Every bit of the header, and two bits of each byte of the tensors."""
    content = write(path, STATES[:6]).read_bytes()
    said, tried = set(), 0
    with open(path, "r+b") as file:
        for variant in variants(content):
            os.pwrite(file.fileno(), variant, 0)
            os.ftruncate(file.fileno(), len(variant))
            said.add(re.sub(r"\d+", "#", damaged(path)))
            tried += 1
    assert tried > 9 * 1000
    for what in (
        "truncated: it has # bytes",
        "its header is not the one",
        "the bytes of the state",
        "not a checkpoint",
    ):
        assert any(what in message for message in said), (what, said)
    path.write_bytes(content)
    read_all(path)


MALFORMED: dict[str, Callable[[dict], object]] = {
    "a place that overlaps": lambda h: h["state/bool é"].update(data_offsets=[0, 3]),
    "a place with a gap": lambda h: h["state/bool é"]["data_offsets"].__setitem__(0, 2),
    "a place that is no pair": lambda h: h["state/bool é"].update(data_offsets=[0]),
    "a negative extent": lambda h: h["state/bool é"].update(shape=[-3]),
    "an endless extent": lambda h: h["state/bool é"].update(shape=[float("inf")]),
    "an extent of text": lambda h: h["state/bool é"].update(shape="three"),
    "an unknown dtype": lambda h: h["state/bool é"].update(dtype="F8_E4M3"),
    "a dtype that is none": lambda h: h["state/bool é"].update(dtype=[1]),
    "no dtype": lambda h: h["state/bool é"].pop("dtype") and None,
    "a tensor that is text": lambda h: h.update({"state/bool é": "tensor"}),
    "another tensor": lambda h: h.update(more={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
    "no digests": lambda h: h["__metadata__"].update({"lockstep.tensors": "{}"}),
    "digests that are no JSON": lambda h: h["__metadata__"].update({"lockstep.tensors": "{"}),
    "digests that are a list": lambda h: h["__metadata__"].update({"lockstep.tensors": "[]"}),
    "digests that are deep": lambda h: h["__metadata__"].update({"lockstep.tensors": "[" * 100_000}),
    "metadata that is a list": lambda h: h["__metadata__"].update({"lockstep.metadata": "[]"}),
    "metadata with a list": lambda h: h["__metadata__"].update({"lockstep.metadata": '{"a": []}'}),
    "no metadata": lambda h: h["__metadata__"].pop("lockstep.metadata") and None,
    "metadata without a step": lambda h: h["__metadata__"].update({"lockstep.metadata": "{}"}),
    "a step that is none": lambda h: h["__metadata__"].update({"lockstep.metadata": '{"step": 1.5}'}),
    "settings that are text": lambda h: h["__metadata__"].update({"lockstep.settings": '{"a": "1"}'}),
    "no settings": lambda h: h["__metadata__"].pop("lockstep.settings") and None,
    "a number of too many digits": lambda h: h["__metadata__"].update({"lockstep.metadata": "9" * 9999}),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_header_that_is_malformed_but_has_the_right_digest(what: str, path: Path) -> None:
    write(path)
    with_header(path, lambda header: None)
    read_all(path)
    with_header(path, MALFORMED[what])
    assert "its header is malformed: " in damaged(path)


def test_another_version(path: Path) -> None:
    with_header(write(path), lambda header: header["__metadata__"].update({"lockstep.checkpoint": "2"}))
    assert damaged(path) == "its format is of version 2; this Lockstep reads version 1"


def test_files_of_others(path: Path) -> None:
    safetensors.numpy.save_file({"w": np.ones(3, np.float32)}, path)
    assert damaged(path) == "this is not a checkpoint that save() wrote; load_weights() reads files of other programs"
    for content in (b"", b"1234567", b"a text, which is no checkpoint\n" * 100, b"\0" * 100):
        path.write_bytes(content)
        assert "not a checkpoint" in damaged(path)
    path.unlink()
    assert damaged(path) == "No such file or directory"
    path.mkdir()
    assert damaged(path) == "Is a directory"


# A file appears complete or not at all


def test_the_content_is_on_the_disk_before_the_name_and_the_name_at_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync of the file, rename, fsync of the folder. Without the first, a machine that stops leaves an empty file."""
    did: list[object] = []
    fsync, replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        did.append(("sync", name, os.path.getsize(name) if os.path.isfile(name) else "folder"))
        fsync(descriptor)

    def rename(old: str, new: str) -> None:
        did.append(("replace", old, new))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    write(path)
    part = str(path.parent / ".c.safetensors.lockstep-part")
    assert did == [
        ("sync", part, path.stat().st_size),
        ("replace", part, str(path)),
        ("sync", str(path.parent), "folder"),
    ]


def test_the_names_of_new_folders_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a machine that stops may lose a folder of checkpoints that were written to the disk."""
    synced: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((name, os.listdir(name)))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    atomic.make_folder(str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [(str(tmp_path), ["a"]), (str(tmp_path / "a"), ["b"])]
    atomic.make_folder(str(tmp_path / "a" / "b"))
    assert len(synced) == 2, "existing folders need no sync"


def test_a_folder_that_cannot_be_synced_is_an_error_unless_its_file_system_needs_no_sync(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, error = os.fsync, [errno.EIO]

    def sync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(error[0], os.strerror(error[0]))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with pytest.raises(OSError, match="Input/output error"):
        atomic.write(str(path), lambda file: file.write(b"one"))
    error[0] = errno.EINVAL
    atomic.write(str(path), lambda file: file.write(b"two"))
    assert path.read_bytes() == b"two"


def test_a_link_stays_one_and_others_may_read_the_file_as_any_other(path: Path) -> None:
    plain, link = path.with_name("plain"), path.with_name("link")
    (path.parent / "folder").mkdir()
    link.symlink_to(path.parent / "folder" / "target")
    plain.touch()
    atomic.write(str(link), lambda file: file.write(b"new"))
    assert link.is_symlink()
    assert [file.read_bytes() for file in (path.parent / "folder").iterdir()] == [b"new"]
    assert link.stat().st_mode == plain.stat().st_mode


def failing(file: object) -> None:
    file.write(b"half of it")  # type: ignore[attr-defined]
    raise ValueError("in the middle")


def test_an_old_file_stays_when_writing_fails(path: Path) -> None:
    for old in (None, b"old"):
        if old is not None:
            path.write_bytes(old)
        with pytest.raises(ValueError, match="in the middle"):
            atomic.write(str(path), failing)
        assert [file.read_bytes() for file in path.parent.iterdir()] == ([] if old is None else [old])


def test_a_new_file_is_not_longer_than_it_should_be(path: Path) -> None:
    """Even if the hidden file that a killed writer left, and that is overwritten, was longer."""
    (path.parent / ".c.safetensors.lockstep-part").write_bytes(b"x" * 1000)
    atomic.write(str(path), lambda file: file.write(b"new"))
    assert [file.read_bytes() for file in path.parent.iterdir()] == [b"new"]


def test_what_killed_writers_left_is_removed_and_nothing_else(path: Path) -> None:
    stay = [".hidden", "a.lockstep-part", ".kept.lockstep-part", ".dir.lockstep-part", ".link.lockstep-part"]
    for name in (*stay[:3], ".gone.safetensors.lockstep-part"):
        (path.parent / name).write_bytes(b"x")
    (path.parent / stay[3]).mkdir()
    (path.parent / stay[4]).symlink_to(path.parent / ".hidden")
    with open(path.parent / ".kept.lockstep-part") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)  # as if a process were writing it
        atomic.write(str(path), lambda file: file.write(b"new"))
    assert {file.name for file in path.parent.iterdir()} == {*stay, path.name}


def test_two_writers_of_one_file(path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    def slow(file: object) -> None:
        begun.set()
        assert end.wait(30)
        file.write(b"first")  # type: ignore[attr-defined]

    thread = threading.Thread(target=atomic.write, args=(str(path), slow))
    thread.start()
    assert begun.wait(30)
    with raises("another process or thread is writing this file"):
        atomic.write(str(path), lambda file: file.write(b"second"))
    atomic.write(str(path) + "2", lambda file: file.write(b"another"))
    end.set()
    thread.join()
    assert path.read_bytes() == b"first"
    assert len(list(path.parent.iterdir())) == 2


def test_a_writer_waits_for_who_looks_whether_a_file_was_abandoned(path: Path) -> None:
    """A process that checks if a file was abandoned locks the hidden file for a moment. To the writer it looks like
    another writer.
    """
    part = path.parent / ".c.safetensors.lockstep-part"
    part.touch()
    looking = open(part)  # noqa: SIM115 (the timer closes it)
    fcntl.flock(looking, fcntl.LOCK_EX)
    threading.Timer(0.2, looking.close).start()
    atomic.write(str(path), lambda file: file.write(b"new"))
    assert looking.closed
    assert [file.read_bytes() for file in path.parent.iterdir()] == [b"new"]


def test_who_opens_a_file_that_is_just_given_its_name_writes_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a writer that starts when another one ends would write into that one's file."""
    part, flock = path.parent / ".c.safetensors.lockstep-part", fcntl.flock

    def late(descriptor: int, how: int) -> None:
        if not path.exists():  # the other writer ends between open and lock
            part.write_bytes(b"the other's")
            os.replace(part, path)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ValueError, match="in the middle"):
        atomic.write(str(path), failing)
    assert [file.read_bytes() for file in path.parent.iterdir()] == [b"the other's"]


def test_a_file_system_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks, the file of a killed writer may still be in use, so it stays, except one for the same name."""

    def none(descriptor: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    for name in (".other.lockstep-part", ".c.safetensors.lockstep-part"):
        (path.parent / name).write_bytes(b"x" * 1000)
    for content in (b"one", b"two"):
        atomic.write(str(path), lambda file, content=content: file.write(content))
        assert path.read_bytes() == content
    assert {file.name for file in path.parent.iterdir()} == {path.name, ".other.lockstep-part"}


def test_a_lock_that_fails_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system has locks, but locking fails, as behind a network that is down."""

    def stale(descriptor: int, how: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(fcntl, "flock", stale)
    with pytest.raises(OSError, match="Stale file handle"):
        atomic.write(str(path), lambda file: file.write(b"new"))
    assert not path.exists()


def test_a_hundred_kills_leave_a_whole_file(tmp_path: Path) -> None:
    command = [sys.executable, HERE / "kill_saves.py", tmp_path, "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    inside, written = re.fullmatch(r"(\d+) of \d+ kills in a save, (\d+) files: whole\n", done.stdout).groups()
    assert int(inside) >= 10, "otherwise the kills did not hit saves"
    assert int(written) >= 20
