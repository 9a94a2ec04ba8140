"""Whoever waits in an executable lets other threads of Python run, which may be the ranks that it waits for."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls

STATE = """
graph @large(state %w: f32[8192,8192]) -> (y: f32[8192]) {
  %y = reduce_max %w {dims=[0]} : f32[8192]
  return %y
}
""".lstrip()
SHAPE = (8192, 8192)  # 256 MiB, which take a while to copy


def longest_silence(call: Callable[[], object]) -> float:
    """The part of the call's time in which a second thread did not come to run, at most in one piece."""
    stamps: list[float] = []
    begun, ended = threading.Event(), threading.Event()

    def tick() -> None:
        while not ended.is_set():
            stamps.append(time.perf_counter())
            begun.set()
            time.sleep(0.0001)

    thread = threading.Thread(target=tick)
    thread.start()
    begun.wait()
    begin = time.perf_counter()
    call()
    end = time.perf_counter()
    ended.set()
    thread.join()
    inside = [begin, *(stamp for stamp in stamps if begin < stamp < end), end]
    return max(b - a for a, b in itertools.pairwise(inside)) / (end - begin)


def prepared(what: str, folder: Path) -> Callable[[], object]:
    exe = ls.compile(ls.parse(STATE), threads=1)
    value = np.ones(SHAPE, np.float32)
    exe.state["w"] = value
    if what == "read":
        return lambda: exe.state["w"]
    if what == "assign":
        return lambda: exe.state.update(w=value)
    if what == "save":
        return lambda: exe.save(folder / "c.safetensors")
    if what == "load":
        exe.save(folder / "c.safetensors")
        return lambda: exe.load(folder / "c.safetensors")
    alone = [exe]
    return alone.clear


@pytest.mark.parametrize("what", ["read", "assign", "save", "load", "destroy"])
def test_other_threads_run_meanwhile(what: str, tmp_path: Path) -> None:
    # The machine may be busy: once is enough, as with the GIL held the silence is nearly all of the call.
    silences = []
    for _ in range(10):
        silences.append(longest_silence(prepared(what, tmp_path)))
        if silences[-1] < 0.4:
            return
    pytest.fail(f"no other thread runs for these parts of the time: {silences}")


ENDS = f"""
import sys, threading, time
import lockstep as ls

class Last:
    def __del__(self, sleep=time.sleep):  # as sys is the last to be cleared
        sleep(1)  # another thread's turn, when Python is at its end

def run(exe, begun):
    while True:
        begun.set()
        exe()

begun = threading.Event()
threading.Thread(target=run, args=(ls.compile(ls.parse({STATE!r}), threads=1), begun), daemon=True).start()
begun.wait()
sys.last = Last()
print("done", flush=True)
"""


def test_a_process_ends_while_a_daemon_thread_is_in_a_call() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
