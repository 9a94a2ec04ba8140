"""One rank of test_replicas.py: trains for two steps, then the last rank fails in the way of the argument while the
others continue.

Writes the message of this rank's Error, or "none", to <folder>/<rank>.txt.
"""

import os
import sys
from pathlib import Path

import numpy as np

mode, folder = sys.argv[1], Path(sys.argv[2])
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
if mode.startswith("isa") and rank == 0:
    os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41" if mode == "isa" else "AVX2"

import lockstep as ls

STEP = """
graph @step(%x: f32[12,3] split(0), %y: i64[12] split(0), %decay: f32[3,5], state %w: f32[3,5]) -> (loss: f32[], %w: f32[3,5]) {
  %z = matmul %x, %w : f32[12,5]
  %loss, %dz = softmax_cross_entropy %z, %y {scale=0.25} : f32[], f32[12,5]
  %dw = matmul %x, %dz {transpose_a=true} : f32[3,5]
  %w1 = sgd %w, %dw {learning_rate=0.1} : f32[3,5]
  %w2 = mul %w1, %decay : f32[3,5]
  return %loss, %w2
}
"""

world = ls.Communicator.mpi()
is_last = world.rank == world.size - 1
message = "none"
try:
    isa = "sse41" if mode == "isa given" else ""
    exe = ls.compile(ls.parse(STEP), world=world, threads=1, isa=isa, check_every=2)
    other = ls.compile(ls.parse(STEP.replace("rate=0.1", "rate=0.5")), world=world, threads=1, isa=isa, check_every=2)
    rows = 12 // world.size
    x, y = np.ones((rows, 3), np.float32), np.zeros(rows, np.int64)
    decay = np.ones((3, 5), np.float32)
    for _ in range(2):
        exe(x=x, y=y, decay=decay)
        other(x=x, y=y, decay=decay)
    if mode == "program" and is_last:
        exe = other
    if mode == "assignments" and is_last:
        exe.state["w"] = exe.state["w"]
    if mode == "inputs" and is_last:
        decay[2, 4] = 0.5
    if mode == "states":
        exe.state["w"] = np.full((3, 5), 1 + is_last, np.float32)
    exe(x=x, y=y, decay=decay)
except ls.Error as error:
    message = str(error)
(folder / f"{world.rank}.txt").write_text(message)
