"""A rank whose address space may grow only by a number of bytes, for test_placements.test_a_process_without_room.

Arguments: the folder with plan.toml, in which rank.json is written; the bytes; "alone" for a rank without others.
"""

import json
import resource
import sys
from pathlib import Path

import numpy as np

import lockstep as ls

WIDTH, ROWS = 2048, 4
MODEL = f"""
graph @wide(%x: f32[{ROWS},{WIDTH}] split(0), state %w1: f32[{WIDTH},{WIDTH}], state %w2: f32[{WIDTH},{WIDTH}], state %w3: f32[{WIDTH},4]) -> (logits: f32[{ROWS},4] split(0)) {{
  %h1 = matmul %x, %w1 : f32[{ROWS},{WIDTH}]
  %r1 = relu %h1 : f32[{ROWS},{WIDTH}]
  %h2 = matmul %r1, %w2 : f32[{ROWS},{WIDTH}]
  %r2 = relu %h2 : f32[{ROWS},{WIDTH}]
  %z = matmul %r2, %w3 : f32[{ROWS},4]
  return %z
}}
"""  # states that start at zero, so that no rank reads a file of all states


def wide_step() -> ls.Graph:
    return ls.train_step(ls.parse(MODEL), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(0.01))


def main(folder: Path, more: int, is_alone: bool) -> None:
    world = ls.Communicator.single() if is_alone else ls.Communicator.mpi()
    step = wide_step()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))
    placements = {} if is_alone else {"mesh": None, "placements": ls.Plan.read(folder / "plan.toml")}
    exe = ls.compile(step, world=world, threads=1, **placements)
    x, label = np.ones((ROWS, WIDTH), np.float32), np.arange(ROWS) % 4
    losses = [float(exe(x=x, label=label)["loss"]) for _ in range(3)]
    report = {"size": world.size, "losses": losses, "states": exe.memory["states"]}
    (folder / f"{world.rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["alone"])
