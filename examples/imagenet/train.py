"""Trains a ResNet on folders of images: mpirun -np 2 .venv/bin/python examples/imagenet/train.py --data /data/imagenet

The main part is the function `train`. The recipe is that of Goyal et al., "Accurate, large minibatch SGD: training
ImageNet in 1 hour" (2017); with a batch of 256 it equals that of He et al. (2016).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from images import Images, read_ahead
from model import BLOCKS, resnet

sys.path.append(str(Path(__file__).resolve().parents[1]))
from training_run import Run, at_least, batches_in, groups_of, parse, parser, start

import lockstep as ls


def parse_arguments() -> argparse.Namespace:
    options = parser(
        "Trains an image classifier, on as many ranks as mpirun starts.", epochs=90, batch=256, out="build/imagenet"
    )
    add = options.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="has train/<class>/*.jpg and val/<class>/*.jpg")
    add("--depth", type=int, choices=BLOCKS, default=50, help="depth of the ResNet")
    add("--width", type=at_least(1), default=64, help="channels of the first layer")
    add("--size", type=at_least(8), default=224, help="height and width of images after resizing")
    add("--lr", type=float, default=0.1, help="learning rate for a batch of 256; scaled for other batches")
    add("--label-smoothing", type=float, default=0.1)
    add("--batch-statistics", choices=["global", "rank"], default="global",
        help="batch of batch normalisation: with `rank`, as in the paper, results depend on the number of ranks")  # fmt: skip
    add(
        "--readers",
        type=at_least(1),
        default=max(1, min(8, os.cpu_count() or 1)),
        help="threads per rank that read images",
    )
    return parse(options)


def recipe(model: ls.Graph, arguments: argparse.Namespace, per_epoch: int) -> dict[str, Any]:
    """Returns the optimizer: a learning rate in proportion to the batch, with warm-up, and a tenth after epochs 30, 60
    and 80.

    The warm-up takes 5 epochs, from the rate for a batch of 256. These numbers are for 90 epochs, and scaled for
    others. Weights decay; biases and normalisation do not.
    """
    steps = per_epoch * arguments.epochs
    warmup = max(1, steps * 5 // 90)
    peak = arguments.lr * arguments.batch / 256
    decays = [max(1, steps * part // 90 - warmup) for part in (30, 60, 80)]
    rate = ls.schedule.multi_step(peak, decays).after_warmup(
        warmup, start=min(1.0, arguments.lr / peak) if peak else 1.0
    )

    def sgd(decay: float) -> ls.optim.Optimizer:
        return ls.optim.SGD(rate, momentum=0.9, weight_decay=decay)

    groups = groups_of(model, ("*.bias", "bn*.weight", "*.bn*.weight", "*.downsample.1.weight"), sgd(0.0))
    return {"optimizer": sgd(1e-4), "groups": groups}


def train(world: ls.Communicator, arguments: argparse.Namespace) -> tuple[Run, ls.Executable]:
    training = Images(arguments.data / "train", None, arguments.size)
    classes = training.classes
    validation = Images(arguments.data / "val", classes, arguments.size)
    per_epoch = batches_in(len(training), arguments)
    network = arguments.model or resnet(arguments.depth, len(classes), arguments.size, arguments.width, arguments.seed)
    model = ls.load_onnx(network, dims={"batch": arguments.batch})  # the one-rank program over the global batch
    step = ls.train_step(
        model,
        loss=ls.loss.softmax_cross_entropy(logits="logits", target="label", label_smoothing=arguments.label_smoothing),
        **recipe(model, arguments, per_epoch),
        batch_statistics=arguments.batch_statistics,
    )
    exe = ls.compile(step, world=world)
    metrics = {"top1": ls.metrics.Accuracy(), "top5": ls.metrics.Accuracy(k=5)}
    evaluation = ls.compile(
        ls.evaluation(model, ls.loss.softmax_cross_entropy("logits", "label"), metrics), world=world
    )
    run = Run(exe, world, arguments, {"images": len(training), "classes": len(classes), "size": arguments.size})

    for epoch, first in run.epochs(per_epoch):
        # ls.data.batches chooses the indices of this rank's images; threads then read the images.
        images = training.drawn(arguments.seed, epoch)
        numbers = ls.data.batches(
            np.arange(len(training)), size=arguments.batch, world=world, seed=arguments.seed + epoch, start=first
        )
        batches = read_ahead(images, numbers, arguments.readers)
        for image, label in run.progress(epoch, first, per_epoch, batches):
            run.add(exe(image=image, label=label)["loss"])
        evaluation.state.assign(exe.state)
        numbers = ls.data.batches(np.arange(len(validation)), size=arguments.batch, world=world, last="pad")
        found = evaluation.evaluate(read_ahead(validation, numbers, arguments.readers))
        run.evaluated(epoch, validation_loss=found["loss"], top1=found["top1"], top5=found["top5"])
    run.finish()
    return run, exe


def main() -> None:
    arguments = parse_arguments()
    run, exe = train(ls.Communicator.from_environment(), arguments)
    ls.save_onnx(exe, run.wrote("resnet-trained.onnx", "the trained model"))


if __name__ == "__main__":
    start(main)
