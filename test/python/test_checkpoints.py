"""ls.Checkpoints: the files that a folder keeps, and the one from which a run continues."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import errors_of, run_in_threads
from test_checkpoint import assert_same_bits, compiled, in_ranks, run, states_of
from test_checkpoint_background import Gate
from test_errors import raises, training

HERE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_the_last_ones_stay(folder: Path) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(folder, keep=2)
    assert (checkpoints.steps(), checkpoints.latest()) == ([], None)
    for step in (0, 9, 10, 100):
        run(exe, 0, 1)
        checkpoints.save(exe, step=step, metadata={"epoch": step})
        assert checkpoints.steps()[-1] == step, "the given step counts, not exe.step"
    assert names(folder) == ["step-000000000010.safetensors", "step-000000000100.safetensors"]
    assert checkpoints.steps() == [10, 100]
    assert checkpoints.latest() == folder / "step-000000000100.safetensors"
    other = compiled()
    assert checkpoints.restore(other) == {"step": 100, "epoch": 100}
    assert_same_bits(states_of(other), states_of(exe))
    assert other.load(folder / names(folder)[0]) == {"step": 10, "epoch": 10}


def test_what_a_run_must_have_in_common_with_the_one_it_continues(folder: Path) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(folder)
    about = {"batch": 128, "rate": 0.5, "text": "sonnets", "none": float("nan")}
    assert checkpoints.restore(exe, expected=about) is None  # there is no checkpoint yet
    run(exe, 0, 2)
    checkpoints.save(exe, metadata=about)
    other = compiled()
    before = states_of(other)
    for expected, message in (
        ({"batch": 128, "rate": 0.25}, "step-000000000002.safetensors: rate was 0.5 when it was saved, and is 0.25"),
        ({"rate": float("nan")}, "rate was 0.5 when it was saved, and is nan"),
        ({"batches": 128}, "its metadata has no batches, expected 128; there is batch"),
        ({"batch": np.arange(2)}, "restore: expected's batch is array"),
        ({3: 1}, "restore: a name in expected is 3"),
        ([("batch", 128)], ", expected names with text or numbers"),
    ):
        with raises(message):
            checkpoints.restore(other, expected=expected)
    assert other.step == 0
    assert_same_bits(states_of(other), before)
    found = checkpoints.restore(other, expected={"text": "sonnets", "batch": np.int32(128), "none": float("nan")})
    assert repr(found) == repr({"step": 2, **about})
    assert_same_bits(states_of(other), states_of(exe))


def test_ranks_that_expect_other_metadata(folder: Path) -> None:
    def body(world: ls.Communicator) -> None:
        exe, checkpoints = compiled(world), ls.Checkpoints(folder)
        checkpoints.save(exe, metadata={"batch": 128})
        checkpoints.restore(exe, expected={"batch": 128 + world.rank})

    for found in errors_of(2, body):
        assert re.search("rank 1 on host .*batch was 128 when it was saved, and is 129", found), found


def test_three_stay_by_default(folder: Path) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(str(folder))
    for step in range(5):
        checkpoints.save(exe)
        run(exe, step, step + 1)
    assert checkpoints.steps() == [2, 3, 4] == [exe.step - 3, exe.step - 2, exe.step - 1]


def test_nothing_to_restore(folder: Path) -> None:
    exe = compiled()
    run(exe, 0, 2)
    before = states_of(exe)
    assert ls.Checkpoints(folder).restore(exe) is None
    folder.mkdir(parents=True)
    assert ls.Checkpoints(folder).restore(exe) is None
    assert_same_bits(states_of(exe), before)


def test_files_of_others_are_left_alone(folder: Path) -> None:
    others = [
        "step-1.safetensors", "step-000000000001.safetensors.old", "step-0000000000001.safetensors",
        "a-step-000000000001.safetensors", "step-00000000000x.safetensors", "notes.txt", ".step-000000000001.safetensors",
    ]  # fmt: skip
    folder.mkdir(parents=True)
    for name in others:
        (folder / name).write_text("mine")
    exe, checkpoints = compiled(), ls.Checkpoints(folder, keep=1)
    assert (checkpoints.restore(exe), checkpoints.latest()) == (None, None)
    for step in (2, 3):
        checkpoints.save(exe, step=step)
    assert names(folder) == sorted([*others, "step-000000000003.safetensors"])
    assert all((folder / name).read_text() == "mine" for name in others)


def test_a_step_that_is_saved_again(folder: Path) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(folder)
    checkpoints.save(exe, step=1)
    run(exe, 0, 1)
    checkpoints.save(exe, step=1)
    other = compiled()
    checkpoints.restore(other)
    assert_same_bits(states_of(other), states_of(exe))
    assert checkpoints.steps() == [1]


def test_a_folder_of_a_run_that_came_further(folder: Path) -> None:
    """A later restore would load that run's last checkpoint instead of the one saved now."""
    exe, checkpoints = compiled(), ls.Checkpoints(folder)
    for step in (5, 10):
        checkpoints.save(exe, step=step)
    with raises(
        "step-000000000007.safetensors: there is step-000000000010.safetensors, of a later step", "call restore()"
    ):
        ls.Checkpoints(folder).save(exe, step=7)
    assert checkpoints.steps() == [5, 10]


def test_a_file_that_was_damaged_is_an_error_that_names_it(folder: Path) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(folder)
    for step in (1, 2):
        checkpoints.save(exe, step=step)
    latest = checkpoints.latest()
    assert latest is not None
    latest.write_bytes(latest.read_bytes()[:-1])
    with raises(f"{latest}: it is truncated"):
        checkpoints.restore(exe)
    latest.unlink()
    assert checkpoints.restore(exe) == {"step": 1}


def test_a_save_that_fails_removes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(folder, keep=1)
    checkpoints.save(exe, step=1)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with raises("step-000000000002.safetensors: No space left on device"):
            checkpoints.save(exe, step=2)
        checkpoints.save(exe, step=3, background=True)
        with raises("step-000000000003.safetensors: No space left on device"):
            checkpoints.restore(exe)
    assert names(folder) == ["step-000000000001.safetensors"]


def test_an_old_one_is_removed_after_the_new_one_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(folder, keep=1)
    checkpoints.save(exe, step=1)
    gate = Gate(monkeypatch)
    checkpoints.save(exe, step=2, background=True)
    assert gate.reached.wait(60)
    assert checkpoints.steps() == [1]
    gate.opened.set()
    exe.saved()
    assert checkpoints.steps() == [2]


def test_an_old_one_that_somebody_removes_meanwhile(folder: Path) -> None:
    class Late(ls.Checkpoints):
        def steps(self) -> list[int]:
            return [1, *super().steps()]

    exe, checkpoints = compiled(), Late(folder, keep=1)
    checkpoints.save(exe, step=2)
    assert names(folder) == ["step-000000000002.safetensors"]


def test_a_restore_waits_for_a_save_in_the_background(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe, checkpoints = compiled(), ls.Checkpoints(folder)
    checkpoints.save(exe, step=1)
    gate = Gate(monkeypatch)
    checkpoints.save(exe, step=2, background=True)
    threading.Timer(0.5, gate.opened.set).start()
    assert checkpoints.restore(exe) == {"step": 2}


@pytest.mark.parametrize("ranks", [2, 3])
def test_several_ranks(ranks: int, folder: Path) -> None:
    def body(world: ls.Communicator) -> None:
        exe, checkpoints = compiled(world), ls.Checkpoints(folder, keep=2)
        assert checkpoints.restore(exe) is None
        for step in range(1, 6):
            run(exe, step - 1, step)
            checkpoints.save(exe, step=step, background=step % 2 == 1)
        other = compiled(world)
        exe.saved()
        assert checkpoints.restore(other) == {"step": 5}
        assert_same_bits(states_of(other), states_of(exe))

    in_ranks(ranks, body)
    assert ls.Checkpoints(folder).steps() == [4, 5]


def test_rank_0_chooses_what_is_restored(folder: Path) -> None:
    """Another rank may see an old listing of the folder, if it is behind a network."""

    class Behind(ls.Checkpoints):
        def latest(self) -> Path | None:
            return super().latest() if self.is_first else None

    def body(world: ls.Communicator) -> Any:
        exe, checkpoints = compiled(world), Behind(folder)
        checkpoints.is_first = world.rank == 0
        checkpoints.save(exe, step=3)
        return checkpoints.restore(exe)

    assert run_in_threads(2, body, timeout=30) == [{"step": 3}] * 2


def test_errors_of_rank_0_are_raised_on_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    def saving(world: ls.Communicator) -> None:
        ls.Checkpoints(tmp_path / "file" / "folder").save(compiled(world), step=1)

    def restoring(world: ls.Communicator) -> None:
        ls.Checkpoints(tmp_path / "file").restore(compiled(world))

    def of_other_steps(world: ls.Communicator) -> None:
        ls.Checkpoints(tmp_path / "new").save(compiled(world), step=world.rank)

    for body, message in (
        (saving, "rank 0 on host .*/file/folder/step-000000000001.safetensors: Not a directory"),
        (restoring, "rank 0 on host .*/file: Not a directory"),
        (of_other_steps, "save: path is .*step-000000000000.* on rank 0, and .*step-000000000001.* on rank 1 on host"),
    ):
        for found in errors_of(2, body):
            assert re.search(message, found), found
    assert not (tmp_path / "new").exists()


def test_wrong_arguments(folder: Path) -> None:
    exe: Any = compiled()
    with raises("Checkpoints: keep is 0, expected at least 1"):
        ls.Checkpoints(folder, keep=0)
    with raises("the path is 5, expected text or a path"):
        ls.Checkpoints(5)  # type: ignore[arg-type]
    with raises("Checkpoints.save: step is 'one', expected a whole number"):
        ls.Checkpoints(folder).save(exe, step="one")  # type: ignore[arg-type]
    with raises("Checkpoints.save: step is -1, expected at least 0"):
        ls.Checkpoints(folder).save(exe, step=-1)
    for call in (lambda: ls.Checkpoints(folder).restore(training()), lambda: ls.Checkpoints(folder).save(5, step=1)):
        with raises("Checkpoints.", "the executable is", "expected what compile() returns"):
            call()
    assert repr(ls.Checkpoints(folder)) == f"<lockstep.Checkpoints in {folder}>"


KILLED = """
import sys, threading, time
import numpy as np
import lockstep as ls
from test_checkpoint import compiled, run
exe, checkpoints = compiled(), ls.Checkpoints(sys.argv[1], keep=1)
done = checkpoints.restore(exe) or {"step": 0}
print("ready", flush=True)
for step in range(done["step"] + 1, 10**6):
    run(exe, step - 1, step)
    checkpoints.save(exe, step=step, background=bool(step % 2))
"""


def test_runs_that_are_killed_leave_their_last_checkpoint(folder: Path) -> None:
    """With `keep=1` one checkpoint is left, or two if the kill fell between the rename of the new one and the removal
    of the old one.
    """
    chance, last, runs = np.random.Generator(np.random.PCG64(0)), 0, 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    while runs < 8 or last <= 8:  # on a busy machine a run may be killed before its first step
        runs += 1
        command = [sys.executable, "-c", KILLED, folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout.readline() == "ready\n"
            threading.Event().wait(chance.uniform(0.01, 0.3) * max(1, runs / 8))
            process.kill()
        steps = ls.Checkpoints(folder).steps()
        if not steps and not last:
            continue
        assert steps[-1] >= last
        assert len(steps) <= 2
        assert len(names(folder)) <= len(steps) + 1, "at most one more that was being written"
        last = steps[-1]
        exe, expected = compiled(), compiled()
        assert ls.Checkpoints(folder).restore(exe) == {"step": last}
        assert exe.state["optimizer/step"] == last
    run(expected, 0, last)
    assert_same_bits(states_of(exe), states_of(expected))
