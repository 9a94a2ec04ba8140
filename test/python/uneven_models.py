"""Small versions of the examples' networks, and the division of their batches among ranks, for test_uneven_models.py
and mpi_uneven.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

import lockstep as ls
from cases import ROOT
from example_parts import part


@dataclass(frozen=True)
class Network:
    make: Callable[[], onnx.ModelProto]
    input: str
    shape: tuple[int, ...]  # of a row; a sequence of tokens, if it has one dimension
    classes: int
    label: tuple[int, ...] = ()  # shape of a row


# All layers of the real networks, except the GPT's; fewer channels, and smaller images and texts. Without dropout,
# whose draws depend on the position in the batch.
NETWORKS = {
    "lenet": Network(lambda: onnx.load(ROOT / "examples/mnist/lenet.onnx"), "image", (1, 28, 28), 10),
    "resnet50": Network(lambda: part("imagenet/model").resnet(50, 7, 32, 8), "image", (3, 32, 32), 7),
    "gpt": Network(lambda: part("language/model").gpt(2, 24, 3, 16, 0.0), "tokens", (16,), 256, (16,)),
    "unet": Network(lambda: part("segmentation/model").unet(4, 16, 4, 2), "image", (3, 16, 16), 4, (16, 16)),
}

# By the number of ranks: the rows that each has room for, and the rows that they have in two steps, unequal and equal
# ones. One of several ranks has none.
SHARES: dict[int, tuple[int, list[list[int]]]] = {
    1: (13, [[12]]),
    2: (12, [[12, 0], [6, 6]]),
    3: (7, [[0, 7, 5], [4, 4, 4]]),
    4: (5, [[5, 0, 3, 4], [3, 3, 3, 3]]),
    7: (3, [[3, 0, 1, 2, 0, 3, 3], [2, 2, 2, 2, 2, 2, 2]]),
}


def data(network: Network, rows: int) -> dict[str, np.ndarray]:
    random = np.random.Generator(np.random.PCG64(11))
    if network.input == "tokens":
        given = random.integers(network.classes, size=(14, *network.shape))
    else:
        given = random.standard_normal((14, *network.shape)).astype(np.float32)
    return {network.input: given[:rows], "label": random.integers(network.classes, size=(14, *network.label))[:rows]}


def compiled(network: Network, world: ls.Communicator, batch: int, uneven: bool) -> ls.Executable:
    model = ls.load_onnx(network.make(), dims={"batch": batch})
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    # With a rate of 1 the new weights show the gradients.
    return ls.compile(ls.train_step(model, loss, ls.optim.SGD(1.0), uneven=uneven), world=world, threads=1)


def start(exe: ls.Executable) -> None:
    """Sets the initial weights of each step. The usual scale of 0, with which a block starts as the identity, would
    hide its gradients.
    """
    random = np.random.Generator(np.random.PCG64(12))
    for name in sorted(exe.state):
        if name.endswith(".running_mean"):
            exe.state[name] = np.zeros_like(exe.state[name])
        elif name.endswith(".running_var"):
            exe.state[name] = np.ones_like(exe.state[name])
        elif exe.state[name].dtype == np.float32:
            shape = exe.state[name].shape
            fan = max(1, int(np.prod(shape[1:])))
            value = 0.5 + random.random(shape) if len(shape) == 1 else random.standard_normal(shape) / np.sqrt(fan)
            exe.state[name] = value.astype(np.float32)
