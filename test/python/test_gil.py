"""A thread that waits in an executable lets other Python threads run, which may be the ranks that it waits for."""

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
from ranks import mpirun

STATE = """
graph @large(state %w: f32[8192,8192]) -> (y: f32[8192]) {
  %y = reduce_max %w {dims=[0]} : f32[8192]
  return %y
}
""".lstrip()
SHAPE = (8192, 8192)  # 256 MiB, which take a while to copy


def longest_silence(call: Callable[[], object]) -> tuple[float, float]:
    """The longest period in which a second thread did not run, and the call's time, both in seconds."""
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
    return max(b - a for a, b in itertools.pairwise(inside)), end - begin


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
    # The machine may be busy, so one good try is enough: with the GIL held, the silence is nearly all of the call.
    # Python itself lets a thread hold the GIL for its switch interval, which may be longer than the whole call.
    silences = []
    for _ in range(10):
        silence, duration = longest_silence(prepared(what, tmp_path))
        silences.append((silence, duration))
        if silence < max(0.4 * duration, sys.getswitchinterval()):
            return
    pytest.fail(f"no other thread ran for these seconds of calls that took these seconds: {silences}")


PRODUCTS = """
graph @products(state %w: f32[1536,1536]) -> (y: f32[1536]) {
  %a = matmul %w, %w : f32[1536,1536]
  %b = exp %a : f32[1536,1536]
  %c = matmul %b, %a : f32[1536,1536]
  %y = reduce_max %c {dims=[0]} : f32[1536]
  return %y
}
""".lstrip()
ENDS = """
import sys, threading, time
import lockstep as ls

class Last:
    def __del__(self, sleep=time.sleep):  # as sys is the last to be cleared
        sleep({pause})  # another thread's turn, when Python is at its end

def run(exe, begun):
    exe()
    while True:
        begun.set()
        exe()

{before}
begun = threading.Event()
threading.Thread(target=run, args=(ls.compile(ls.parse({graph!r}), threads=1), begun), daemon=True).start()
begun.wait()
sys.last = Last()
print("done", flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(("graph", "pause"), [(STATE, 1), (PRODUCTS, 0), (PRODUCTS, 0.05)])
def test_a_process_ends_while_a_daemon_thread_is_in_a_call(graph: str, pause: float) -> None:
    """The process ends at the end of the call, or in the middle of code of oneDNN that must not be unloaded."""
    code = ENDS.format(graph=graph, pause=pause, before="")
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", "")


def test_a_rank_that_ends_so_has_finalized_mpi(tmp_path: Path) -> None:
    before = "world = ls.Communicator.mpi(); world.barrier(); del world"
    program = tmp_path / "ends.py"
    program.write_text(ENDS.format(graph=PRODUCTS, pause=0, before=before).replace("sys.exit(3)", ""))
    done = mpirun(2, program)
    assert (done.returncode, done.stdout) == (0, "done\n" * 2), done.stderr
