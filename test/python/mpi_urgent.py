"""A rank of test_urgent.py: a sum of eight MiB, and after it a small sum that the computation needs. Writes the time of
each wait.

mpi_urgent.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np

import lockstep as ls

LARGE, SMALL, CALLS = 2 << 20, 1024, 3
PROGRAM = f"""
graph @step(%x: f32[2,{LARGE}] split(0), %y: f32[2,{SMALL}] split(0)) -> (large: f32[{LARGE}], deviation: f32[{SMALL}]) {{
  %large = reduce_sum %x {{dims=[0]}} : f32[{LARGE}]
  %sum = reduce_sum %y {{dims=[0]}} : f32[{SMALL}]
  %rows = broadcast %sum {{dims=[1], shape=[2,{SMALL}]}} : f32[2,{SMALL}]
  %apart = sub %y, %rows : f32[2,{SMALL}]
  %squared = mul %apart, %apart : f32[2,{SMALL}]
  %deviation = reduce_sum %squared {{dims=[0]}} : f32[{SMALL}]
  return %large, %deviation
}}
"""

world = ls.Communicator.mpi()
exe = ls.compile(ls.parse(PROGRAM), world=world, threads=1)
x = np.full((1, LARGE), 1.0 + world.rank, np.float32)
y = np.full((1, SMALL), 2.0 * world.rank, np.float32)
for _ in range(CALLS):
    results = exe(x=x, y=y)
    assert (results["large"] == 3).all()
    assert (results["deviation"] == 4).all()
waits = [(step.urgent, step.bytes, seconds) for step, seconds in exe.report().steps if step.kind == "wait"]
(Path(sys.argv[1]) / str(world.rank)).write_text(json.dumps(waits))
