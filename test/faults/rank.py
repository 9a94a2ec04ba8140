"""One rank of a job that faults.py disturbs: rank.py FOLDER TIMEOUT.

It trains without end and sometimes saves a checkpoint in FOLDER/disk. After its first steps it writes its process id to
FOLDER/<rank>.begun; when it gets an Error, it writes the time and the message to FOLDER/<rank>.error. If there is a
file FOLDER/<rank>.do, it does what the file says.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import lockstep as ls

MODEL = Path(__file__).resolve().parents[1] / "models" / "mlp.onnx"
BATCH, WARM_UP, SAVE_EVERY = 24, 3, 10


def write(path: Path, content: object) -> None:
    """Writes a file that appears only when it is complete."""
    part = path.with_suffix(f"{path.suffix}.part")
    part.write_text(json.dumps(content))
    part.rename(path)


def compiled(world: ls.Communicator, learning_rate: float) -> ls.Executable:
    model = ls.load_onnx(MODEL, dims={"batch": BATCH})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.Adam(learning_rate))
    return ls.compile(step, world=world, threads=1)


def train(world: ls.Communicator, folder: Path) -> None:
    exe, other = compiled(world, 0.01), compiled(world, 0.02)
    checkpoints = ls.Checkpoints(folder / "disk" / "checkpoints")
    order = folder / f"{world.rank}.do"
    rows = BATCH // world.size
    x, label = np.ones((rows, 12), np.float32), np.zeros(rows, np.int64)
    while True:
        what = order.read_text() if order.exists() else ""
        if what == "raise":
            raise ValueError("no more data")
        if what == "exit":
            sys.exit(0)
        if what == "data":
            label[1] = 99
        if what == "state":
            exe.state["fc1.bias"] = np.ones_like(exe.state["fc1.bias"])
        (other if what == "program" else exe)(x=x, label=label)
        if exe.step == WARM_UP:
            write(folder / f"{world.rank}.begun", os.getpid())
        if exe.step % SAVE_EVERY == 0:
            checkpoints.save(exe)


def main(folder: Path, timeout: float) -> None:
    world = ls.Communicator.from_environment(timeout=timeout)
    try:
        train(world, folder)
    except ls.Error as error:
        write(folder / f"{world.rank}.error", {"time": time.time(), "message": str(error)})
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
