"""Trains a U-Net to find shapes: mpirun -np 2 .venv/bin/python examples/segmentation/train.py

The main part is the function `train`. Weights are averaged over steps; both the weights and the averages are evaluated.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from model import unet
from shapes import CLASSES, Shapes

sys.path.append(str(Path(__file__).resolve().parents[1]))
from training_run import Run, at_least, batches_in, parse, parser, start

import lockstep as ls


def parse_arguments() -> argparse.Namespace:
    options = parser(
        "Trains a U-Net on generated images, on as many ranks as mpirun starts.",
        epochs=10, batch=16, out="build/segmentation",
    )  # fmt: skip
    add = options.add_argument
    add("--size", type=at_least(8), default=64, help="height and width of the images")
    add("--width", type=at_least(1), default=16, help="channels of the first level; 64 in the paper")
    add("--depth", type=at_least(1), default=3, help="number of times that the image is halved; 4 in the paper")
    add("--samples", type=at_least(1), default=1024, help="images in the training set")
    add("--validation", type=at_least(1), default=200, help="images to evaluate with")
    add("--lr", type=float, default=0.005, help="learning rate, which falls to 0 along a cosine")
    add(
        "--average",
        type=float,
        default=0.98,
        metavar="DECAY",
        help="decay of the exponential moving average of weights",
    )
    return parse(options)


def intersections_over_unions(confusion: np.ndarray) -> np.ndarray:
    """Returns for each class its correctly predicted pixels divided by those that have the class as label or
    prediction; NaN if there are none."""
    both = np.diag(confusion)
    with np.errstate(invalid="ignore"):
        return both / (confusion.sum(axis=0) + confusion.sum(axis=1) - both)


def evaluate(
    model: ls.Executable, weights: Mapping[str, np.ndarray], images: Shapes, size: int, world: ls.Communicator
) -> np.ndarray:
    """Returns the intersection over union of each class. Each rank evaluates its share of each batch; padding does not
    count."""
    model.state.assign(weights)
    confusion = ls.metrics.ConfusionMatrix(len(CLASSES))
    for image, label, weight in ls.data.batches(images, size=size, world=world, last="pad"):
        confusion.add(model(image=image)["logits"], label, weight)
    return intersections_over_unions(confusion.compute(world))


def train(world: ls.Communicator, arguments: argparse.Namespace) -> tuple[Run, ls.Executable]:
    """Returns the run, and the model with averaged weights."""
    training = Shapes(arguments.samples, arguments.size, seed=arguments.seed)
    validation = Shapes(arguments.validation, arguments.size, seed=arguments.seed + 1)
    per_epoch = batches_in(len(training), arguments)
    network = arguments.model or unet(
        len(CLASSES), arguments.size, arguments.width, arguments.depth, seed=arguments.seed
    )
    model = ls.load_onnx(network, dims={"batch": arguments.batch})  # the one-rank program over the global batch
    step = ls.train_step(
        model,
        loss=ls.loss.softmax_cross_entropy(logits="logits", target="label"),  # per pixel
        optimizer=ls.optim.AdamW(ls.schedule.cosine(arguments.lr, per_epoch * arguments.epochs)),
        average=ls.average.exponential(arguments.average),
    )
    exe = ls.compile(step, world=world)
    evaluation = ls.compile(model, world=world)
    run = Run(exe, world, arguments, {"samples": len(training), "size": arguments.size})

    for epoch, first in run.epochs(per_epoch):
        batches = ls.data.batches(
            training, size=arguments.batch, world=world, seed=arguments.seed + epoch, start=first
        )  # this rank's share of each batch
        for image, label in run.progress(epoch, first, per_epoch, batches):
            run.add(exe(image=image, label=label)["loss"])
        ious = evaluate(evaluation, exe.state, validation, arguments.batch, world)
        averaged = evaluate(evaluation, exe.state.averaged(), validation, arguments.batch, world)
        run.evaluated(epoch, mean_iou=np.nanmean(ious), mean_iou_averaged=np.nanmean(averaged))
    run.finish()
    final = evaluate(evaluation, exe.state.averaged(), validation, arguments.batch, world)
    each = ", ".join(f"{name} {iou:.4f}" for name, iou in zip(CLASSES, final, strict=True))
    run.print(f"intersection over union, averaged weights: {each}; mean {np.nanmean(final):.4f}")
    return run, evaluation


def draw(path: Path, model: ls.Executable, images: Shapes, count: int) -> None:
    """Draws images, labels and predictions. `model` is compiled for one rank, as this is not a share of a batch."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(count, 3, figsize=(6, 2 * count), layout="constrained", squeeze=False)
    for i in range(count):
        image, label = images[i]
        seen = model(image=image[None])["logits"][0].argmax(axis=0)
        shown = np.clip((image.transpose(1, 2, 0) + 1) / 2, 0, 1)
        for axis, picture, title in zip(axes[i], (shown, label, seen), ("image", "label", "prediction"), strict=True):
            axis.imshow(picture, vmin=0, vmax=len(CLASSES) - 1, cmap="viridis")
            axis.set(title=title if i == 0 else "", xticks=[], yticks=[])
    figure.savefig(path, dpi=120)


def main() -> None:
    arguments = parse_arguments()
    world = ls.Communicator.from_environment()
    run, trained = train(world, arguments)
    ls.save_onnx(trained, arguments.out / "unet-trained.onnx")
    if world.rank == 0:
        single = ls.compile(ls.load_onnx(arguments.out / "unet-trained.onnx", dims={"batch": 1}))
        images = Shapes(arguments.validation, arguments.size, seed=arguments.seed + 1)
        draw(run.wrote("predictions.png", "images, labels and predictions"), single, images, min(4, len(images)))
        run.wrote("unet-trained.onnx", "the model, with averaged weights")


if __name__ == "__main__":
    start(main)
