"""One rank of test_shared_weights: trains a wide network, with one copy of the weights on the host unless the mode is
`plain`.

Writes <folder>/<mode>.<rank>.json with the losses, a hash of the weights, the rank's bytes according to exe.memory, and
those of the process (its proportional set size); and <mode>.<rank>.shm with the files of /dev/shm that it has mapped.
In the modes `kill`, `stop` and `raise` rank 1 does that after two steps, and the others write their Error to
<folder>/<mode>.<rank>.txt.
"""

import gc
import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np

import lockstep as ls

mode, folder = sys.argv[1], Path(sys.argv[2])
ROWS, STEPS = 8, 4
WIDTH = 1024 if mode in ("plain", "shared") else 64
fails = mode in ("kill", "stop", "raise")
world = ls.Communicator.mpi(timeout=5) if fails else ls.Communicator.mpi()
random = np.random.Generator(np.random.PCG64(world.rank))


def network() -> ls.Graph:
    rows = ROWS * world.size
    return ls.parse(f"""
graph @wide(%x: f32[{rows},{WIDTH}] split(0), state %w1: f32[{WIDTH},{WIDTH}], state %w2: f32[{WIDTH},{WIDTH}], state %w3: f32[{WIDTH},{WIDTH}]) -> (logits: f32[{rows},{WIDTH}]) {{
  %z = matmul %x, %w1 : f32[{rows},{WIDTH}]
  %h = tanh %z : f32[{rows},{WIDTH}]
  %i = matmul %h, %w2 : f32[{rows},{WIDTH}]
  %j = tanh %i : f32[{rows},{WIDTH}]
  %logits = matmul %j, %w3 : f32[{rows},{WIDTH}]
  return %logits
}}
""")


def pss() -> int:
    gc.collect()
    text = Path("/proc/self/smaps_rollup").read_text()
    # Without files such as libraries: the number of processes that share those depends on what else runs.
    return 1024 * sum(int(size) for size in re.findall(r"^Pss_(?:Anon|Shmem): *(\d+) kB", text, re.MULTILINE))


def call(exe: ls.Executable) -> float:
    x = random.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return float(exe(x=x, label=np.arange(ROWS))["loss"])


def fail() -> None:
    if mode == "raise":
        raise ValueError("no more data")
    os.kill(os.getpid(), signal.SIGKILL if mode == "kill" else signal.SIGSTOP)


step = ls.train_step(network(), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(1e-3))
exe = ls.compile(step, world=world, threads=1, shared_weights=mode != "plain")
for name in ("w1", "w2", "w3"):
    exe.state[name] = np.random.Generator(np.random.PCG64(7)).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 40
maps = Path("/proc/self/maps").read_text()
(folder / f"{mode}.{world.rank}.shm").write_text("\n".join(set(re.findall(r"/dev/shm/\S+", maps))))
if fails:
    try:
        call(exe)
        call(exe)
        if world.rank == 1:
            fail()
        for _ in range(1000):
            call(exe)
    except ls.Error as error:
        (folder / f"{mode}.{world.rank}.txt").write_text(str(error))
        raise
losses = [call(exe) for _ in range(STEPS)]
world.barrier()
memory = exe.memory
said = {
    "losses": losses,
    "held": memory["states"] + memory["buckets"],
    "pss": pss(),
    "hash": hashlib.sha256(b"".join(exe.state[name].tobytes() for name in ("w1", "w2", "w3"))).hexdigest(),
}
(folder / f"{mode}.{world.rank}.json").write_text(json.dumps(said))
world.barrier()
