"""MXNet's losses of a LeNet on two workers. `PYTHON test/python/mxnet_lenet.py` writes mxnet_lenet.json.

test_mxnet_lenet.py compares them with ours. PYTHON has mxnet==1.9.1 and numpy==1.23.5, and nothing of Lockstep. It
starts a job of MXNet with two workers, two servers and a scheduler. Its Gluon trainer uses a store "dist_sync" that
updates the weights. Weights, data and the workers' rows are defined in this file, which the test imports.
"""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

EXPECTED = Path(__file__).with_suffix(".json")
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
WORKERS, SERVERS = 2, 2
STEPS, BATCH = 40, 64  # of all workers
LEARNING_RATE, MOMENTUM = 0.05, 0.9
SHAPES = {
    "conv1.weight": (20, 1, 5, 5), "conv1.bias": (20,), "conv2.weight": (50, 20, 5, 5), "conv2.bias": (50,),
    "fc1.weight": (500, 800), "fc1.bias": (500,), "fc2.weight": (10, 500), "fc2.bias": (10,),
}  # fmt: skip


def weights() -> dict[str, np.ndarray]:
    """Initial weights with PyTorch's uniform distribution, drawn by NumPy."""
    random = np.random.Generator(np.random.PCG64(11))
    drawn, bound = {}, 0.0
    for name, shape in SHAPES.items():
        bound = float(np.prod(shape[1:])) ** -0.5 if name.endswith("weight") else bound
        drawn[name] = random.uniform(-bound, bound, shape).astype(np.float32)
    return drawn


def data() -> tuple[np.ndarray, np.ndarray]:
    """Images [STEPS * BATCH, 1, 28, 28] and labels."""
    count = STEPS * BATCH
    with gzip.open(FASHION_MNIST / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(16 + 784 * count)[16:], np.uint8).reshape(count, 1, 28, 28)
    with gzip.open(FASHION_MNIST / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(8 + count)[8:], np.uint8).astype(np.int64)
    return images.astype(np.float32) / np.float32(255), labels


def share(step: int, rank: int) -> slice:
    """The rows of a worker in a step."""
    rows = BATCH // WORKERS
    return slice(step * BATCH + rank * rows, step * BATCH + (rank + 1) * rows)


def network() -> Any:
    import mxnet as mx
    from mxnet.gluon import nn

    layers = [
        nn.Conv2D(20, 5, in_channels=1),
        nn.Conv2D(50, 5, in_channels=20),
        nn.Dense(500, in_units=800),
        nn.Dense(10, in_units=500),
    ]
    net = nn.HybridSequential()
    for i, layer in enumerate(layers):
        net.add(layer)
        if i < 3:
            net.add(nn.Activation("tanh"))
        if i < 2:
            net.add(nn.MaxPool2D(2, 2))
        if i == 1:
            net.add(nn.Flatten())
    net.initialize()
    given = weights()
    for name, layer in zip(("conv1", "conv2", "fc1", "fc2"), layers):
        layer.weight.set_data(mx.nd.array(given[f"{name}.weight"]))
        layer.bias.set_data(mx.nd.array(given[f"{name}.bias"]))
    return net


def work(path: Path) -> None:
    """Trains as a worker, and writes its losses, the means over its rows in each step."""
    import mxnet as mx
    from mxnet import autograd, gluon

    net, loss = network(), gluon.loss.SoftmaxCrossEntropyLoss()
    options = {"learning_rate": LEARNING_RATE, "momentum": MOMENTUM}
    store = mx.kv.create("dist_sync")
    trainer = gluon.Trainer(net.collect_params(), "sgd", options, kvstore=store, update_on_kvstore=True)
    images, labels = data()
    losses = []
    for step in range(STEPS):
        mine = share(step, store.rank)
        with autograd.record():
            each = loss(net(mx.nd.array(images[mine])), mx.nd.array(labels[mine]))
        each.backward()
        trainer.step(BATCH)
        losses.append(float(each.mean().asscalar()))
    path.with_suffix(f".{store.rank}").write_text(json.dumps(losses))
    store._barrier()
    os._exit(0)  # the end of an MXNet job sometimes hangs


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port), "DMLC_INTERFACE": "lo",
        "DMLC_NUM_WORKER": str(WORKERS), "DMLC_NUM_SERVER": str(SERVERS), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "losses"
        started = {"scheduler": [], "server": [], "worker": []}  # type: dict[str, list[subprocess.Popen[bytes]]]
        for role, count in (("scheduler", 1), ("server", SERVERS), ("worker", WORKERS)):
            command = (
                [sys.executable, __file__, str(path)] if role == "worker" else [sys.executable, "-c", "import mxnet"]
            )
            for _ in range(count):
                started[role].append(subprocess.Popen(command, env={**environment, "DMLC_ROLE": role}))
        codes = [each.wait(600) for each in started["worker"]]
        for each in started["scheduler"] + started["server"]:
            each.kill()
        assert codes == [0] * WORKERS, codes
        of_workers = [json.loads(path.with_suffix(f".{rank}").read_text()) for rank in range(WORKERS)]
    EXPECTED.write_text(json.dumps({"losses": np.mean(of_workers, axis=0).tolist()}) + "\n")
    print(EXPECTED, EXPECTED.read_text())


if __name__ == "__main__":
    work(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
