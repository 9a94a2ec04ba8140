"""Kills processes that write one checkpoint after the other, at random moments, and checks the files that they leave.

    python test/python/kill_saves.py <empty folder> <kills> [seed]

test_checkpoint_file.py runs it with a hundred kills; by hand, use some thousand. It continues until a tenth as many
kills hit a save in progress and a fifth as many files were written, even if the machine is slow. Prints these numbers,
and "whole" at the end. Exits with 1 at the first incomplete file.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from lockstep._base import atomic, tensor_file
from lockstep._base.values import ValueInfo
from lockstep._checkpoint import checkpoint_file

STATES = [ValueInfo("weight", "f32", (100_000,)), ValueInfo("step", "i64", ())]


def save(path: str, step: int) -> None:
    values = (np.full(state.shape, step, {"f32": "<f4", "i64": "<i8"}[state.dtype]) for state in ordered())
    content = [value.reshape(-1).view(np.uint8) for value in values]
    about = {"program": {"name": "g"}, "settings": {}, "schedules": {}, "metadata": {"step": step}}
    atomic.write(path, lambda file: checkpoint_file.write(file, ordered(), content, about))


def ordered() -> list[ValueInfo]:
    return tensor_file.in_file_order(STATES)


def step_of(path: str) -> int:
    """The step of a file. Asserts that the file is complete."""
    file = checkpoint_file.CheckpointFile(path)
    step = int(file.metadata["step"])
    assert np.all(file.read("weight").view("<f4") == step), path
    assert file.read("step").view("<i8") == step, path
    file.close()
    return step


def save_for_ever(path: str, step: int) -> None:
    while True:
        step += 1
        save(path, step)


def kill_one(path: str, seconds: float) -> bool:
    """Returns True if the kill fell between the first byte of a file and its rename."""
    before = step_of(path)
    child = os.fork()
    if child == 0:
        save_for_ever(path, before)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    after = step_of(path)
    assert after >= before, f"{path} went back from {before} to {after}"
    left = set(os.listdir(Path(path).parent)) - {Path(path).name}
    assert len(left) <= 1, f"more than one file was left: {left}"
    return bool(left)


def main(folder: str, kills: str, seed: str = "0") -> None:
    path, chance, inside = os.path.join(folder, "k.safetensors"), random.Random(int(seed)), 0
    save(path, 0)
    done = 0
    while done < int(kills) or inside < int(kills) / 10 or step_of(path) < int(kills) / 5:
        # The longer both take to happen, the longer the times.
        inside += kill_one(path, chance.uniform(0, 0.03 * max(1, done / int(kills))))
        done += 1
    written = step_of(path)
    save(path, written + 1)
    assert os.listdir(folder) == ["k.safetensors"], "the next save removes the files that kills left"
    print(f"{inside} of {done} kills in a save, {written} files: whole")


if __name__ == "__main__":
    main(*sys.argv[1:])
