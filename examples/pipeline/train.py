"""Trains an LSTM whose layers are on several ranks: mpirun -np 4 .venv/bin/python examples/pipeline/train.py

The ranks are the stages of a pipeline. Each has some of the layers, with their optimizer states, and the micro-batches
of a step pass through them one after the other. The main part is the function `train`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from model import lstm

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path += [str(EXAMPLES), str(EXAMPLES / "language")]
from sample import Sampler
from text import Windows, read, windows_of_epoch
from training_run import Run, at_least, batches_in, parse, parser, start

import lockstep as ls


def parse_arguments() -> argparse.Namespace:
    options = parser(
        "Trains a language model whose layers are spread over the ranks that mpirun starts.",
        epochs=12, batch=32, out="build/pipeline",
    )  # fmt: skip
    add = options.add_argument
    text = EXAMPLES / "language/sonnets.txt"
    add(
        "--stages",
        type=at_least(1),
        help="stages of a pipeline (default: one per rank); several pipelines split the batch",
    )
    add(
        "--micro-batches",
        type=at_least(1),
        default=8,
        help="micro-batches of a step, which pass through the stages in turn",
    )
    add("--text", type=Path, default=text, metavar="FILE", help="the text to learn")
    add("--layers", type=at_least(1), default=4)
    add("--width", type=at_least(1), default=128, help="width of each layer")
    add("--length", type=at_least(2), default=64, help="number of previous bytes that the model sees")
    add("--dropout", type=float, default=0.1)
    add("--lr", type=float, default=0.004, help="learning rate, reached after a warm-up; falls to a tenth")
    add("--clip", type=float, default=1.0, help="maximum global norm of the gradients")
    add("--prompt", default="\n\nShall I ", help="beginning of the sample at the end")
    add("--sample", type=at_least(0), default=300, metavar="BYTES", help="length of the sample")
    return parse(options)


def mesh_of(world: ls.Communicator, stages: int | None) -> dict[str, int]:
    """Returns the mesh: neighbouring ranks are stages of one pipeline; with fewer stages than ranks, pipelines split
    the batch."""
    stages = stages or world.size
    if world.size % stages != 0:
        raise ls.Error(f"argument --stages: {world.size} ranks do not make pipelines of {stages} stages")
    return {"data": world.size // stages, "stage": stages}


def step_of(model: ls.Graph, arguments: argparse.Namespace, optimizer: ls.optim.Optimizer, **options: Any) -> ls.Graph:
    loss = ls.loss.softmax_cross_entropy(logits="logits", target="label")  # per byte
    return ls.train_step(model, loss, optimizer, accumulate=arguments.micro_batches, **options)


def show_states(run: Run, exe: ls.Executable, world: ls.Communicator) -> None:
    """Prints for each rank its bytes of states and its weights."""
    own = {"weights": [name for name in exe.state if "/" not in name], "bytes": exe.memory["states"]}
    for rank, line in enumerate(world.gather_bytes(json.dumps(own).encode())):
        told = json.loads(line)
        run.print(f"rank {rank:<2}      {told['bytes']:,} bytes of states: {', '.join(told['weights'])}")


def held_out_loss(evaluation: ls.Executable, exe: ls.Executable, batches: ls.data.Batches) -> float:
    """Returns the mean of -log p per byte. Each rank evaluates the layers that it trains."""
    evaluation.state.update({name: exe.state[name] for name in exe.state if name in evaluation.state})
    return float(np.mean([evaluation(tokens=tokens, label=label)["loss"] for tokens, label in batches]))


def train(world: ls.Communicator, arguments: argparse.Namespace) -> tuple[Run, ls.Executable, Any]:
    """Returns the run, the trained executable, and the network that it trained."""
    text, validation = read(arguments.text, arguments.length)
    per_epoch = batches_in(len(Windows(text, arguments.length)), arguments)
    sizes = {name: getattr(arguments, name) for name in ("layers", "width", "length", "dropout", "seed")}
    network = arguments.model or lstm(**sizes)
    model = ls.load_onnx(network, dims={"batch": arguments.batch})  # the one-rank program over the global batch
    steps = per_epoch * arguments.epochs
    warmup = max(1, steps // 20)
    rate = ls.schedule.cosine(arguments.lr, max(1, steps - warmup), minimum=arguments.lr / 10).after_warmup(warmup)
    clip = ls.clip.global_norm(arguments.clip)
    step = step_of(model, arguments, ls.optim.Adam(rate), clip=clip, seed=arguments.seed)

    mesh = mesh_of(world, arguments.stages)
    exe = ls.compile(step, world=world, mesh=mesh)  # cut into stages by cost
    # Only training steps can be cut into stages, so the evaluation is one that changes nothing.
    evaluation = ls.compile(step_of(model, arguments, ls.optim.SGD(0.0), dropout="off"), world=world, mesh=mesh)
    run = Run(exe, world, arguments, {"bytes": len(text), "length": arguments.length})
    show_states(run, exe, world)

    for epoch, first in run.epochs(per_epoch):
        windows = windows_of_epoch(text, arguments.length, arguments.seed, epoch)
        shared = {"size": arguments.batch, "world": world, "mesh": mesh}  # all stages of a pipeline get its rows
        batches = ls.data.batches(windows, **shared, seed=arguments.seed + epoch, start=first)
        for tokens, label in run.progress(epoch, first, per_epoch, batches):
            run.add(exe(tokens=tokens, label=label)["loss"])
        held_out = ls.data.batches(Windows(validation, arguments.length), **shared)
        run.evaluated(epoch, perplexity=float(np.exp(held_out_loss(evaluation, exe, held_out))))
    run.finish()
    return run, exe, network


def main() -> None:
    arguments = parse_arguments()
    world = ls.Communicator.from_environment()
    run, exe, network = train(world, arguments)
    weights = arguments.out / "trained.safetensors"
    exe.save(weights)  # all ranks call this, with their layers
    if world.rank == 0:
        run.wrote(weights.name, "the states of all ranks")
        trained = ls.load_weights(ls.load_onnx(network, dims={"batch": 1}), weights, strict=False)
        path = run.wrote("lstm-trained.onnx", "the model")
        ls.save_onnx(ls.compile(trained), path)
        sample = Sampler(path).sample(arguments.prompt, arguments.sample, seed=arguments.seed)
        run.wrote("sample.txt", "a sample of the model").write_text(sample)
        print(sample)


if __name__ == "__main__":
    start(main)
