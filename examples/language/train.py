"""Trains a GPT on the bytes of a text: mpirun -np 2 .venv/bin/python examples/language/train.py

The main part is the function `train`. At the end the model writes a sample of text.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from model import gpt
from sample import Sampler
from text import Windows, read, windows_of_epoch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from training_run import Run, at_least, batches_in, groups_of, parse, parser, start

import lockstep as ls


def parse_arguments() -> argparse.Namespace:
    options = parser(
        "Trains a language model on any file, on as many ranks as mpirun starts.",
        epochs=20, batch=16, out="build/language",
    )  # fmt: skip
    add = options.add_argument
    add("--text", type=Path, default=Path(__file__).with_name("sonnets.txt"), metavar="FILE", help="the text to learn")
    add("--layers", type=at_least(1), default=4)
    add("--width", type=at_least(1), default=128, help="size of the vector that represents a byte")
    add("--heads", type=at_least(1), default=4, help="heads of attention, which split the width")
    add("--length", type=at_least(2), default=128, help="number of previous bytes that the model sees")
    add("--dropout", type=float, default=0.1)
    add(
        "--lr",
        type=float,
        default=0.002,
        help="learning rate, reached after a warm-up; falls to a tenth along a cosine",
    )
    add("--weight-decay", type=float, default=0.1, help="weight decay of matrices; biases and normalisation have none")
    add("--clip", type=float, default=1.0, help="maximum global norm of the gradients")
    add("--prompt", default="\n\nShall I ", help="beginning of the sample at the end")
    add("--sample", type=at_least(0), default=300, metavar="BYTES", help="length of the sample")
    return parse(options)


def recipe(model: ls.Graph, arguments: argparse.Namespace, steps: int) -> dict[str, Any]:
    """Returns GPT-3's recipe (Brown et al., 2020): AdamW, a warm-up and a cosine, clipping by the global norm of
    gradients."""
    warmup = max(1, steps // 20)
    rate = ls.schedule.cosine(arguments.lr, max(1, steps - warmup), minimum=arguments.lr / 10).after_warmup(warmup)

    def adamw(decay: float) -> ls.optim.Optimizer:
        return ls.optim.AdamW(rate, beta2=0.95, weight_decay=decay)

    return {
        "optimizer": adamw(arguments.weight_decay),
        "groups": groups_of(model, ("*.bias", "*norm*.weight"), adamw(0.0)),
        "clip": ls.clip.global_norm(arguments.clip),
    }


def train(world: ls.Communicator, arguments: argparse.Namespace) -> tuple[Run, ls.Executable, Any]:
    """Returns the run, the trained executable, and the network that it trained."""
    text, validation = read(arguments.text, arguments.length)
    per_epoch = batches_in(len(Windows(text, arguments.length)), arguments)
    sizes = {name: getattr(arguments, name) for name in ("layers", "width", "heads", "length", "dropout", "seed")}
    network = arguments.model or gpt(**sizes)
    model = ls.load_onnx(network, dims={"batch": arguments.batch})  # the one-rank program over the global batch
    loss = ls.loss.softmax_cross_entropy(logits="logits", target="label")  # per byte
    step = ls.train_step(
        model,
        loss=loss,
        **recipe(model, arguments, per_epoch * arguments.epochs),
        seed=arguments.seed,  # for dropout
    )
    exe = ls.compile(step, world=world)
    evaluation = ls.compile(ls.evaluation(model, loss), world=world)
    run = Run(exe, world, arguments, {"bytes": len(text), "length": arguments.length})

    for epoch, first in run.epochs(per_epoch):
        windows = windows_of_epoch(text, arguments.length, arguments.seed, epoch)
        batches = ls.data.batches(
            windows, size=arguments.batch, world=world, seed=arguments.seed + epoch, start=first
        )  # this rank's share of each batch
        for tokens, label in run.progress(epoch, first, per_epoch, batches):
            run.add(exe(tokens=tokens, label=label)["loss"])
        evaluation.state.assign(exe.state)
        held_out = ls.data.batches(Windows(validation, arguments.length), size=arguments.batch, world=world, last="pad")
        run.evaluated(epoch, perplexity=float(np.exp(evaluation.evaluate(held_out)["loss"])))
    run.finish()
    return run, exe, network


def main() -> None:
    arguments = parse_arguments()
    world = ls.Communicator.from_environment()
    run, exe, network = train(world, arguments)
    ls.save_onnx(exe, arguments.out / "gpt-trained.onnx")
    if world.rank == 0:
        run.wrote("gpt-trained.onnx", "the trained model, also for sample.py")
        sample = Sampler(network, exe.state).sample(arguments.prompt, arguments.sample, seed=arguments.seed)
        run.wrote("sample.txt", "a sample of the model").write_text(sample)
        print(sample)


if __name__ == "__main__":
    start(main)
