"""Shared code of the tutorial: options, the images, the network, and its accuracy."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import lockstep as ls

MODEL = Path(__file__).parents[1] / "mnist/lenet.onnx"  # input `image`, result `logits`
LOSS = ls.loss.softmax_cross_entropy("logits", "label")
OPTIMIZER = ls.optim.SGD(0.05, momentum=0.9)
BATCH = 128  # the batch of all workers together


def parse_arguments(description: str) -> argparse.Namespace:
    logging.basicConfig(format="%(message)s")
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    add = options.add_argument
    add(
        "--data",
        default="/usr/share/datasets/fashion-mnist",
        metavar="DIR",
        help="has the four files of MNIST's format",
    )
    add("--samples", type=int, default=60000, help="number of training images")
    add("--epochs", type=int, default=2, help="passes over the training images")
    return options.parse_args()


def training_set(arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Returns images f32[n, 1, 28, 28] and labels i64[n]."""
    images, labels = ls.data.mnist(arguments.data)
    return images[: arguments.samples], labels[: arguments.samples]


def accuracy(weights: Mapping[str, np.ndarray], arguments: argparse.Namespace) -> float:
    """Returns the share of the test set that LeNet with these weights classifies correctly."""
    images, labels = ls.data.mnist(arguments.data, train=False)
    evaluation = ls.compile(ls.evaluation(ls.load_onnx(MODEL, dims={"batch": 500}), LOSS))
    evaluation.state.assign(weights)
    return evaluation.evaluate(ls.data.batches(images, labels, size=500, last="pad"))["accuracy"]


def gradients(
    step: ls.Executable, weights: Mapping[str, np.ndarray], image: np.ndarray, label: np.ndarray
) -> list[np.ndarray]:
    """Returns the gradient of each weight, for the mean loss over the batch."""
    step.state.update(weights)
    results = step(image=image, label=label)
    return [results[f"grad/{name}"] for name in weights]


def first_weights() -> dict[str, np.ndarray]:
    model = ls.load_onnx(MODEL, dims={"batch": BATCH})
    return {state.name: np.array(model.initial_value(state.name)) for state in model.states}


def gradient_step(batch: int) -> ls.Executable:
    """Returns the step that `gradients` takes, for batches of this size, on this process only."""
    model = ls.load_onnx(MODEL, dims={"batch": batch})
    return ls.compile(ls.train_step(model, LOSS, optimizer=None))


def say(rank: int, text: str) -> None:
    """Prints on rank 0 only."""
    if rank == 0:
        print(text)
        sys.stdout.flush()
