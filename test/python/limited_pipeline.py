"""A rank with limited memory, for test_pipeline.test_a_model_whose_states_exceed_a_ranks_limit.

Arguments: the folder in which rank.json is written; the bytes of values that the rank may hold; the bytes by which its
address space may grow; "stages" for one of several ranks, or "memory_limit" or "process" for a single rank, under the
first limit too or under the second only.
"""

import json
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.random import PCG64, Generator  # loaded before the limit

import lockstep as ls

LAYERS, WIDTH, ROWS, MICRO_BATCHES, STEPS = 8, 1024, 16, 4, 4


def step_of_layers() -> ls.Graph:
    """Weights start at zero, so that no rank reads a file of all of them."""
    weights = ", ".join(f"state %w{i}: f32[{WIDTH},{WIDTH}]" for i in range(LAYERS))
    lines = []
    for i in range(LAYERS):
        lines.append(f"  %h{i} = matmul %{f'a{i - 1}' if i else 'x'}, %w{i} : f32[{ROWS},{WIDTH}]")
        lines.append(f"  %a{i} = tanh %h{i} : f32[{ROWS},{WIDTH}]")
    text = f"graph @layers(%x: f32[{ROWS},{WIDTH}] split(0), {weights}) -> (logits: f32[{ROWS},{WIDTH}] split(0)) {{\n"
    model = ls.parse(text + "\n".join(lines) + f"\n  return %a{LAYERS - 1}\n}}\n")
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(model, loss, ls.optim.Adam(1e-3), accumulate=MICRO_BATCHES)


@dataclass
class Learnt:
    size: int
    losses: list[float]
    weights: list[str]  # of this rank
    states: int  # bytes
    values: int  # bytes, states included


def learn(world: ls.Communicator, step: ls.Graph, **options: object) -> Learnt:
    """Each rank draws the weights of its own stage."""
    exe = ls.compile(step, world=world, threads=1, **options)
    weights = [name for name in exe.state if "/" not in name]
    for name in weights:
        random = Generator(PCG64(int(name[1:])))
        exe.state[name] = random.standard_normal((WIDTH, WIDTH), np.float32) / 32
    random = Generator(PCG64(99))
    x, label = random.standard_normal((ROWS, WIDTH), np.float32), random.integers(WIDTH, size=ROWS)
    losses = [float(exe(x=x, label=label)["loss"]) for _ in range(STEPS)]
    return Learnt(world.size, losses, weights, exe.memory["states"], sum(exe.memory.values()))


def main(folder: Path, limit: int, more: int, how: str) -> None:
    world = ls.Communicator.mpi() if how == "stages" else ls.Communicator.single()
    step = step_of_layers()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, resource.RLIM_INFINITY))
    options = {} if how == "process" else {"memory_limit": limit}
    learnt = learn(world, step, mesh={"stage": world.size}, **options)
    (folder / f"{world.rank}.json").write_text(json.dumps(asdict(learnt)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
