"""exe.save and exe.load beside other activity: background writers, slow readers and writers, started calls."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import lockstep as ls
from lockstep._base import atomic
from lockstep._checkpoint import checkpoint
from lockstep._checkpoint.checkpoint_file import CheckpointFile
from lockstep._checkpoint.thread import Writing
from ranks import errors_of
from test_checkpoint import assert_same_bits, compiled, in_ranks, run, share, states_of
from test_errors import X, raises

HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.safetensors"


# Writers in the background


class Gate:
    """Holds every writer until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        write = atomic.write

        def wait(path: str, content: Any) -> None:
            def later(file: Any) -> None:
                self.reached.set()
                assert self.opened.wait(60)
                content(file)

            write(path, later)

        monkeypatch.setattr(atomic, "write", wait)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_training_goes_on_while_a_thread_writes(ranks: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        run(exe, 0, 2)
        at_save = states_of(exe)
        exe.save(path, step=2, background=True)
        if world.rank == 0:
            assert gate.reached.wait(60)
        run(exe, 2, 4)  # during the write
        assert not path.exists()
        later = states_of(exe)
        world.barrier()
        if world.rank == 0:
            gate.opened.set()
        exe.saved()
        assert path.exists()
        exe.saved()
        assert exe.load(path) == {"step": 2}
        assert_same_bits(states_of(exe), at_save)
        assert any(not np.array_equal(later[name], at_save[name]) for name in later)

    in_ranks(ranks, body)


@pytest.mark.parametrize("what", ["save", "load", "saved"])
def test_who_comes_next_waits_for_the_writer(what: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    exe = compiled()
    exe.save(path, step=1, background=True)
    opener = threading.Timer(0.5, gate.opened.set)
    opener.start()
    assert not path.exists()
    {"save": lambda: exe.save(path, step=2), "load": lambda: exe.load(path), "saved": exe.saved}[what]()
    assert gate.opened.is_set()
    assert exe.load(path) == {"step": 2 if what == "save" else 1}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("what", ["save", "load", "saved"])
def test_an_error_of_the_writer_is_of_who_comes_next_once(
    what: str, ranks: int, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = path.parent / "no" / "folder"

    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        exe.save(nowhere, background=True)
        following = {"save": lambda: exe.save(path), "load": lambda: exe.load(path), "saved": exe.saved}[what]
        with pytest.raises(ls.Error, match="No such file or directory") as caught:
            following()
        assert ("rank 0 on host" in str(caught.value)) == (ranks > 1)
        assert str(nowhere) in str(caught.value)
        assert not path.exists(), "nothing else was done"
        exe.saved()
        world.barrier()
        exe.save(path)

    with caplog.at_level(logging.ERROR, "lockstep"):
        in_ranks(ranks, body)
    assert [record.getMessage() for record in caplog.records] == [f"save: {nowhere}: No such file or directory"]
    assert path.exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_writer_that_fails_at_once_keeps_nobody_waiting(
    ranks: int, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failed writer must still take the states that it is given, because its queue has room for only one."""
    nowhere = path.parent / "no" / "folder"

    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        with raises(f"{nowhere}: No such file or directory"):
            exe.save(nowhere)
        exe.save(path)

    with caplog.at_level(logging.ERROR, "lockstep"):
        in_ranks(ranks, body)
    assert not caplog.records, "the caller gets the error"
    assert path.exists()


@pytest.mark.parametrize("background", [False, True])
def test_whatever_a_writer_meets_is_an_error(background: bool, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(path: str, content: Any) -> None:
        raise ValueError("what nobody has thought of")

    monkeypatch.setattr(atomic, "write", odd)
    exe = compiled()
    with raises(f"{path}: ValueError: what nobody has thought of"):
        exe.save(path, background=background)
        exe.saved()


def test_a_writer_that_has_failed_when_the_save_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed writer ends like any other: its thread prints nothing."""
    wait, waits, uncaught = checkpoint._wait, [], []

    def failing(world: ls.Communicator, caller: str, progress: Any) -> None:
        waits.append(progress)
        if len(waits) == 4:  # the second state has been taken by then, so the writer has failed
            raise MemoryError("nothing is left")
        wait(world, caller, progress)

    monkeypatch.setattr(checkpoint, "_wait", failing)
    monkeypatch.setattr(threading, "excepthook", uncaught.append)
    with pytest.raises(MemoryError, match="nothing is left"):
        compiled().save(path.parent / "no" / "folder")
    assert not [each for each in threading.enumerate() if each.name == "lockstep save"]
    assert not uncaught


def test_a_writer_that_takes_longer_than_ranks_wait_for_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    worlds = ls.Communicator.in_process(2, timeout=1.0)
    failures = []

    def body(world: ls.Communicator) -> None:
        try:
            compiled(world).save(path)
        except ls.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    threading.Timer(3.0, gate.opened.set).start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert path.exists()


@pytest.mark.parametrize("background", [False, True])
def test_states_wait_in_memory_for_a_writer_in_the_background_alone(
    background: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    put, told = Writing.put, []

    def telling(self: Writing, value: np.ndarray) -> str:
        told.append(put(self, value))
        if told.count("writing") == 2 or len(told) == count:
            gate.opened.set()
        return told[-1]

    monkeypatch.setattr(Writing, "put", telling)
    exe = compiled()
    run(exe, 0, 2)
    count = len(exe.state)
    exe.save(path, background=background)
    exe.saved()
    if background:
        assert told == [""] * count
    else:
        assert told[:3] == ["", "writing", "writing"], "one state is queued until the writer takes it"
        assert told.count("") == count
    assert_same_bits(safetensors.numpy.load_file(path), states_of(exe))


@pytest.mark.parametrize("background", [False, True])
def test_a_save_that_fails_halfway_ends_on_all_ranks(
    background: bool, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No file is left, and no thread, for which the process would wait at its end."""
    wait, unlink, waits = checkpoint._wait, os.unlink, []

    def failing(world: ls.Communicator, caller: str, progress: Any) -> None:
        if world.rank == 0:
            waits.append(progress)
            if len(waits) == 3:
                raise MemoryError("nothing is left")
        wait(world, caller, progress)

    def slowly(*args: Any, **kwargs: Any) -> None:
        time.sleep(0.3)
        unlink(*args, **kwargs)

    monkeypatch.setattr(checkpoint, "_wait", failing)
    monkeypatch.setattr(os, "unlink", slowly)
    left: list[Any] = []

    def body(world: ls.Communicator) -> str:
        exe = compiled(world)
        try:
            exe.save(path, background=background)
        except (ls.Error, MemoryError) as error:  # not raised: the other rank must learn it from save
            if world.rank == 0:
                left.extend([list(path.parent.iterdir()), [each.name for each in threading.enumerate()]])
            return repr(error)
        return "saved"

    with caplog.at_level(logging.ERROR, "lockstep"):
        own, other = in_ranks(2, body)
    assert not caplog.records
    assert own == "MemoryError('nothing is left')"
    assert "rank 0" in other and "nothing is left" in other
    files, threads = left
    assert not files
    assert "lockstep save" not in threads


def test_a_reader_that_takes_longer_than_ranks_wait_for_each_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = compiled()
    run(one, 0, 2)
    one.save(path)
    read = CheckpointFile.read

    def slow(self: CheckpointFile, name: str) -> Any:
        if name == "fc1.weight" and self in of_rank_0:
            # The first delay is too long for a rank that asks less and less often; the second for a rank that does not
            # ask.
            time.sleep(times.pop(0))
        return read(self, name)

    of_rank_0: list[CheckpointFile] = []
    times = [5.5, 2.5]
    init = CheckpointFile.__init__

    def opening(self: CheckpointFile, *args: Any) -> None:
        init(self, *args)
        if not of_rank_0:
            of_rank_0.append(self)

    monkeypatch.setattr(CheckpointFile, "read", slow)
    monkeypatch.setattr(CheckpointFile, "__init__", opening)
    failures, loaded = [], []

    def body(world: ls.Communicator) -> None:
        try:
            exe = compiled(world)
            exe.load(path)
            loaded.append(states_of(exe))
        except ls.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(world,)) for world in ls.Communicator.in_process(2, timeout=1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    for states in loaded:
        assert_same_bits(states, states_of(one))
    assert len(loaded) == 2
    assert not times, "the file was read twice"


ENDS = """
import sys, time
sys.path.insert(0, {folder!r})
from lockstep._base import atomic
from test_checkpoint import compiled, run
write = atomic.write
def slowly(path, content):
    time.sleep(1)
    write(path, content)
atomic.write = slowly
exe = compiled()
run(exe, 0, 2)
exe.save({path!r}, background=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise KeyError(5)"])
def test_a_program_does_not_end_before_its_writer(end: str, path: Path) -> None:
    program = ENDS.format(folder=str(HERE), path=str(path), end=end)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(end, 1), done.stderr
    one, other = compiled(), compiled()
    run(one, 0, 2)
    assert other.load(path) == {"step": 2}
    assert_same_bits(states_of(other), states_of(one))


# Started calls


def test_a_save_waits_for_a_started_call(path: Path) -> None:
    one, other = compiled(), compiled()
    run(one, 0, 2)
    other(**share(other._world(), None, 0))
    call = other.start(**share(other._world(), None, 1))
    other.save(path)
    assert_same_bits(safetensors.numpy.load_file(path), states_of(one))
    assert np.isfinite(call["loss"])


@pytest.mark.parametrize("what", ["save", "load"])
def test_an_error_of_a_started_call_is_of_the_save_or_load(what: str, path: Path) -> None:
    exe = compiled()
    exe.save(path)
    content = path.read_bytes()
    run(exe, 0, 1)
    before = states_of(exe)
    exe.start(x=X, label=np.array([0, 1, 2, 3, 4, 9]))
    with raises("call 2, which was started before: ", "label 9 at position [5]"):
        exe.save(path) if what == "save" else exe.load(path)
    assert path.read_bytes() == content
    assert_same_bits(states_of(exe), before)


def test_states_that_a_failed_call_has_half_updated_are_not_saved_and_load_repairs_them(path: Path) -> None:
    graph = ls.parse(
        "graph @divide(state %d: i32[4], state %w: i32[4]) -> (%w: i32[4]) {\n  %w1 = div %w, %d : i32[4]\n  return %w1\n}\n"
    )
    exe = ls.compile(graph, threads=1)
    exe.state.update({"w": np.full(4, 6, np.int32), "d": np.full(4, 2, np.int32)})
    exe.save(path)
    content = path.read_bytes()
    exe.state["d"] = np.zeros(4, np.int32)  # a state; a wrong input would be refused before anything is updated
    with raises("div"):
        exe()
    for call in (exe, lambda: exe.save(path)):
        with raises("half updated"):
            call()
    assert path.read_bytes() == content
    exe.load(path)
    exe()
    assert exe.state["w"].tolist() == [3] * 4


def test_a_rank_whose_call_failed_is_named_by_all(path: Path) -> None:
    def body(world: ls.Communicator) -> None:
        exe = compiled(world)
        batch = share(world, None, 0)
        if world.rank == 1:
            batch["label"] = np.array([9, 9, 9])
        try:
            exe.start(**batch)
        except ls.Error:
            pass
        exe.save(path)

    other, culprit = errors_of(2, body)
    assert "label 9" in culprit
    assert "rank 1 on host" in other and "label 9" in other
    assert not path.exists()
