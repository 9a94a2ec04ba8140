"""One rank of a contestant that trains with MXNet 1.9's KVStore, "mxnet-sync" or "mxnet-async", like worker.py.

    PYTHON mxnet_worker.py CONTESTANT MODEL DIRECTORY THREADS ROWS

PYTHON has MXNet (mxnet==1.9.1 with numpy==1.23.5), and nothing of Lockstep. Each rank is a worker and starts a server;
rank 0 also starts the scheduler. MODEL is lenet, mlp or resnet50. Networks are hybridized, that is, they run as MXNet's
own graph.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import worker
from mxnet import autograd, gluon
from mxnet.gluon import nn


def lenet() -> Any:
    net = nn.HybridSequential()
    for channels in (20, 50):
        net.add(nn.Conv2D(channels, 5, activation="tanh"), nn.MaxPool2D(2, 2))
    net.add(nn.Flatten(), nn.Dense(500, activation="tanh"), nn.Dense(10))
    return net


def mlp() -> Any:
    net = nn.HybridSequential()
    net.add(nn.Dense(4096, activation="relu"), nn.Dense(4096, activation="relu"), nn.Dense(1000))
    return net


def network(model: str) -> Any:
    if model == "resnet50":
        return gluon.model_zoo.vision.resnet50_v1()
    return {"lenet": lenet, "mlp": mlp}[model]()


def start_servers(rank: int, ranks: int) -> list[subprocess.Popen[bytes]]:
    os.environ.update(
        DMLC_PS_ROOT_URI=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        DMLC_PS_ROOT_PORT=os.environ["MASTER_PORT"],
        DMLC_NUM_WORKER=str(ranks),
        DMLC_NUM_SERVER=str(ranks),
        DMLC_INTERFACE=os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    )
    roles = ["server"] + (["scheduler"] if rank == 0 else [])
    return [
        subprocess.Popen([sys.executable, "-c", "import mxnet"], env={**os.environ, "DMLC_ROLE": role})
        for role in roles
    ]


class MXNet:
    def __init__(self, model: str, how: str, rows: int) -> None:
        self.rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
        ranks = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
        self.servers = start_servers(self.rank, ranks)
        os.environ["DMLC_ROLE"] = "worker"
        samples, labels = (np.load(worker.model_path(model).with_suffix(f".{part}.npy")) for part in ("x", "label"))
        self.rows = rows or len(samples) // ranks
        x, label = (worker.share(whole, self.rank, self.rows, len(samples)) for whole in (samples, labels))
        self.x, self.label = mx.nd.array(x), mx.nd.array(label)
        mx.random.seed(0)
        self.network = network(model)
        self.network.initialize(mx.init.Xavier())
        self.network.hybridize(static_alloc=True, static_shape=True)
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.trainer = gluon.Trainer(
            self.network.collect_params(),
            "sgd",
            {"learning_rate": worker.LEARNING_RATE, "momentum": worker.MOMENTUM},
            kvstore=mx.kv.create(f"dist_{how}"),
            update_on_kvstore=True,
        )
        self.batch = self.rows * (ranks if how == "sync" else 1)
        self.step()

    def step(self) -> float:
        """Runs a step. Returns when the loss is known, which is before the gradients are."""
        with autograd.record():
            loss = self.loss(self.network(self.x), self.label)
        loss.backward()
        self.trainer.step(self.batch)
        return float(loss.mean().asscalar())

    def finish(self) -> None:
        mx.nd.waitall()

    def report(self) -> dict[str, Any]:
        return {"compile_seconds": 0.0}


def main() -> None:
    contestant, model, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    rows = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    runner = MXNet(model, contestant.partition("-")[2], rows)
    worker.obey(runner, directory)
    # Skips MXNet's own shutdown, which waits for all processes, and sometimes for ever.
    for server in runner.servers:
        server.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
