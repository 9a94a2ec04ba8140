"""A LeNet on two workers, by a store and by a trainer, compared with the losses of MXNet's store "dist_sync"
(mxnet_lenet.py).
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import lockstep as ls
import mxnet_lenet as oracle
from cases import ROOT
from ranks import run_in_threads

EXPECTED = json.loads(oracle.EXPECTED.read_text())["losses"]
LENET = ROOT / "examples/mnist/lenet.onnx"
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
SGD = ls.optim.SGD(oracle.LEARNING_RATE, momentum=oracle.MOMENTUM)


def by_store(world: ls.Communicator) -> list[float]:
    """The losses of this worker's rows."""
    images, labels = oracle.data()
    model = ls.load_onnx(LENET, dims={"batch": oracle.BATCH // world.size})
    exe = ls.compile(ls.train_step(model, LOSS, optimizer=None), threads=1)
    weights = oracle.weights()
    names, values = list(weights), list(weights.values())
    store = ls.kv.create("dist_sync", world)
    store.init(names, values)
    store.set_optimizer(SGD, rescale_grad=1 / world.size)
    losses = []
    for step in range(oracle.STEPS):
        mine = oracle.share(step, world.rank)
        exe.state.update(weights)
        results = exe(image=images[mine], label=labels[mine])
        store.push(names, [results[f"grad/{name}"] for name in names])
        store.pull(names, out=values)
        losses.append(float(results["loss"]))
    return losses


def by_trainer(world: ls.Communicator) -> list[float]:
    """The losses of all rows, in two epochs."""
    images, labels = oracle.data()
    model = ls.load_onnx(LENET, dims={"batch": oracle.BATCH})
    trainer = ls.Trainer(model, LOSS, SGD, kvstore=ls.kv.create("dist_sync", world), threads=1)
    trainer.executable.state.update(oracle.weights())
    half = len(labels) // 2
    for part in (slice(0, half), slice(half, None)):
        trainer.fit((images[part], labels[part]), seed=None, progress=False)
    return trainer.losses


@pytest.mark.parametrize("train", [by_store, by_trainer])
def test_the_losses_are_those_of_mxnet(train: object) -> None:
    found = run_in_threads(oracle.WORKERS, train)  # type: ignore[arg-type]
    assert [len(losses) for losses in found] == [oracle.STEPS] * oracle.WORKERS
    np.testing.assert_allclose(np.mean(found, axis=0), EXPECTED, rtol=0, atol=1e-4)
    assert EXPECTED[-1] < EXPECTED[0] / 2  # it has learnt something
