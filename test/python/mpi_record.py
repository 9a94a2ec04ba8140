"""A rank of the jobs that test_record.py watches: mpi_record.py MODE CALLS.

Each call multiplies large matrices, which takes a while, and adds up the result over the ranks. In mode "stop" rank 1
is stopped in the product of the second call; in mode "kill" it is killed there; in mode "slow" it is stopped in the
product of each call until rank 0 has waited for it; in mode "run" nothing happens.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time

import numpy as np

import lockstep as ls
from lockstep import _lockstep

SIZE = 1400
LAYER = "onnx:/slow/MatMul"
PROGRAM = f"""
graph @work(%x: f32[2,{SIZE},{SIZE}] split(0), state %w: f32[2,{SIZE},{SIZE}]) -> (sum: f32[]) {{
  %y = matmul %x, %w : f32[2,{SIZE},{SIZE}] @"{LAYER}"
  %s = reduce_sum %y {{dims=[0,1,2]}} : f32[] @"onnx:/sum"
  return %s
}}
"""


def own_line() -> str:
    """The line of `lockstep status` about this process."""
    status = _lockstep._status(str(os.getpid()))
    return next((line for line in status.splitlines() if f"process {os.getpid()} " in line), "")


def call_in_layer() -> int:
    """The number of the call whose matrix product this process computes; 0 if it does something else."""
    line = own_line()
    found = re.search(r"call (\d+) of @work", line)
    return int(found[1]) if found and LAYER in line else 0


def signal_in_layer(number: signal.Signals, times: int, calls: int) -> None:
    """Signals this process in the products of as many calls, not of the first and the last. A busy machine may miss
    a call.
    """
    call = 1
    for _ in range(times):
        while (found := call_in_layer()) <= call:
            time.sleep(0.001)
        if found == calls:
            return
        call = found
        os.kill(os.getpid(), number)


def wake(process: int) -> None:
    """Wakes the other process each time this one has waited for it for a moment, however fast the machine is."""
    while True:
        time.sleep(0.02)
        if "  waits " in own_line():
            time.sleep(0.2)
            os.kill(process, signal.SIGCONT)


def main(mode: str, calls: int) -> None:
    world = ls.Communicator.mpi()
    processes = [int(text) for text in world.gather_bytes(str(os.getpid()).encode())]
    exe = ls.compile(ls.parse(PROGRAM), world=world, threads=1)
    x = np.ones((2 // world.size, SIZE, SIZE), np.float32)
    target = None
    if world.rank == 1 and mode != "run":
        number = signal.SIGKILL if mode == "kill" else signal.SIGSTOP
        target, arguments = signal_in_layer, (number, calls if mode == "slow" else 1, calls)
    elif world.rank == 0 and mode == "slow":
        target, arguments = wake, (processes[1],)
    if target is not None:
        threading.Thread(target=target, args=arguments, daemon=True).start()
    for _ in range(calls):
        exe(x=x)
    print(f"rank {world.rank} of {world.size} made {calls} calls", flush=True)
    if world.rank == 0:
        print(exe.report(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
