"""A process of the jobs of test_stay.py and test/faults/elastic_kills.py: elastic_member.py FOLDER STEPS [PAUSE [OPTION]].

It trains STEPS steps and pauses PAUSE seconds after each. OPTION of compile is set to True. After each step it appends a line to FOLDER/<process>.steps:
the time, how often `train` was called in this process, the number of ranks, and the step. At the end it writes
FOLDER/<process>.json, with the hashes of the states. It runs without `lockstep elastic`, too, as one rank.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import lockstep as ls
from cases import CASES
from lockstep import elastic

BATCH, VIRTUAL_RANKS, PER_EPOCH = 48, 8, 20
MLP = CASES[1]


def train(job: elastic.Job, folder: Path, steps: int, pause: float, options: list[str], call: int) -> dict[str, str]:
    model = ls.load_onnx(MLP.model, dims={"batch": BATCH})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), MLP.optimizer)
    exe = ls.compile(step, world=job.world, virtual_ranks=VIRTUAL_RANKS, threads=1, **dict.fromkeys(options, True))
    job.adopt(exe)
    samples, labels = (each[: BATCH * PER_EPOCH] for each in MLP.data())
    with (folder / f"{os.getpid()}.steps").open("a") as lines:
        while exe.step < steps:
            epoch, first = divmod(exe.step, PER_EPOCH)
            for x, label in ls.data.batches(samples, labels, size=BATCH, world=job.world, seed=epoch, start=first):
                job.step(exe, x=x, label=label)
                lines.write(f"{time.time():.3f} {call} {job.world.size} {exe.step}\n")
                lines.flush()
                if exe.step == steps:
                    break
                time.sleep(pause)
    exe.check_replicas()
    whole = {state.name: exe._read_whole(state.name) for state in exe._whole_states()}  # None but on rank 0
    hashes = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in whole.items() if value is not None}
    return json.loads(job.world.gather_bytes(json.dumps(hashes).encode())[0])


def main(folder: Path, steps: int, pause: float, options: list[str]) -> None:
    calls = iter(range(1 << 30))
    states = elastic.run(
        lambda job: train(job, folder, steps, pause, options, next(calls)), shares=VIRTUAL_RANKS, timeout=60
    )
    (folder / f"{os.getpid()}.json").write_text(json.dumps(states))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0.0, sys.argv[4:])
