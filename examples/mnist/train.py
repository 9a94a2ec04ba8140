"""Trains LeNet on Fashion-MNIST: mpirun -np 2 .venv/bin/python examples/mnist/train.py

The main part is the function `train`: an import, a call that makes the training step, one that compiles it, and a loop.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import lockstep as ls

HERE = Path(__file__).parent
LOSS = ls.loss.softmax_cross_entropy(logits="logits", target="label")
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"  # Debian's package dataset-fashion-mnist


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains an image classifier on data in MNIST's format, on as many ranks as mpirun starts.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--model", default=HERE / "lenet.onnx", help="ONNX model with input `image` and result `logits`"
    )
    parser.add_argument(
        "--data", default=FASHION_MNIST, metavar="DIR", help="folder with the four files of MNIST's format"
    )
    parser.add_argument("--epochs", type=int, default=4, help="passes over the training set")
    parser.add_argument(
        "--batch",
        type=int,
        default=128,
        help="global batch: the ranks split it, so results do not depend on their number",
    )
    parser.add_argument("--lr", type=float, help="learning rate (default: 0.05 for sgd, 0.001 for adam and adamw)")
    parser.add_argument("--optimizer", choices=["sgd", "adam", "adamw"], default="sgd", help="sgd has momentum 0.9")
    parser.add_argument(
        "--out", type=Path, default=Path("build/train"), metavar="DIR", help="where results are written"
    )
    parser.add_argument(
        "--checkpoints",
        type=Path,
        metavar="DIR",
        help="folder for checkpoints of the run; the last three are kept",
    )
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="STEPS", help="steps between checkpoints")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue from the last checkpoint, with its settings (--lr), on any number of ranks",
    )
    parser.add_argument("--print-graph", action="store_true", help="print the compiled graph and its steps")
    arguments = parser.parse_args()
    for option in ("epochs", "batch", "checkpoint_every"):
        if getattr(arguments, option) < 1:
            parser.error(f"argument --{option.replace('_', '-')}: {getattr(arguments, option)} is not at least 1")
    if arguments.resume and arguments.checkpoints is None:
        parser.error("argument --resume: needs --checkpoints")
    return arguments


def optimizer_of(name: str, learning_rate: float | None) -> ls.optim.Optimizer:
    if name == "sgd":
        return ls.optim.SGD(0.05 if learning_rate is None else learning_rate, momentum=0.9)
    adam = ls.optim.Adam if name == "adam" else ls.optim.AdamW
    return adam(0.001 if learning_rate is None else learning_rate)


def print_header(
    world: ls.Communicator, model: ls.Graph, exe: ls.Executable, arguments: argparse.Namespace, samples: int
) -> None:
    parameters = sum(int(np.prod(state.shape)) for state in model.states)
    print(f"ranks        {world.size} ({world.transport}), {exe.threads} thread{'s' if exe.threads > 1 else ''} each")
    print(f"model        {arguments.model}: {parameters:,} parameters in {len(model.states)} tensors")
    print(
        f"data         {arguments.data}: {samples:,} images; global batch {arguments.batch}, {arguments.batch // world.size} a rank"
    )
    print(f"optimizer    {arguments.optimizer}, {arguments.epochs} epochs")
    print(f"collectives  {len(exe.collectives)} a step" + "".join(f"\n             {line}" for line in exe.collectives))
    if arguments.print_graph:
        print(f"\n{exe.graph}\n{exe.steps}")
    sys.stdout.flush()


def evaluate(
    model_path: str | Path, exe: ls.Executable, images: np.ndarray, labels: np.ndarray, world: ls.Communicator
) -> dict[str, float]:
    """Returns the loss and the accuracy of the trained model over the test set. Each rank evaluates its share of each
    batch."""
    size = 250 * world.size
    model = ls.load_onnx(model_path, dims={"batch": size})
    evaluation = ls.compile(ls.evaluation(model, LOSS), backend="cpu", world=world)
    evaluation.state.assign(exe.state)
    return evaluation.evaluate(ls.data.batches(images, labels, size=size, world=world, last="pad"))


def resume(
    exe: ls.Executable, checkpoints: ls.Checkpoints | None, data: dict[str, int], arguments: argparse.Namespace
) -> None:
    """Continues from the last checkpoint if requested; exe.step is then the number of steps already done."""
    if checkpoints is None:
        return
    if not arguments.resume:
        if checkpoints.latest() is not None:
            raise ls.Error(f"{checkpoints.latest()} is of an earlier run: --resume continues it")
        return
    checkpoints.restore(exe, expected=data)


def train(world: ls.Communicator, arguments: argparse.Namespace) -> tuple[ls.Executable, int, list[float], float]:
    """Returns the trained executable, the number of steps from a checkpoint, the losses of the other steps, and their
    seconds."""
    images, labels = ls.data.mnist(arguments.data)
    model = ls.load_onnx(arguments.model, dims={"batch": arguments.batch})  # the one-rank program over the global batch
    step = ls.train_step(
        model,
        loss=LOSS,
        optimizer=optimizer_of(arguments.optimizer, arguments.lr),
    )
    exe = ls.compile(step, backend="cpu", world=world)  # this call runs the distribute pass
    if world.rank == 0:
        print_header(world, model, exe, arguments, len(images))

    # The number of a step determines its batch, so a continued run gets the same batches as an uninterrupted one.
    data = {"samples": len(images), "batch": arguments.batch}
    checkpoints = ls.Checkpoints(arguments.checkpoints) if arguments.checkpoints else None
    resume(exe, checkpoints, data, arguments)
    first = exe.step
    if world.rank == 0 and first > 0:
        print(f"continues after step {first}", flush=True)
    first_epoch, first_batch = divmod(first, len(images) // arguments.batch)

    losses = []
    begin = time.perf_counter()
    for epoch in range(first_epoch, arguments.epochs):
        start = first_batch if epoch == first_epoch else 0
        batches = ls.data.batches(
            images, labels, size=arguments.batch, world=world, seed=epoch, start=start
        )  # this rank's share of each batch
        progress = tqdm(
            batches,
            desc=f"epoch {epoch + 1}/{arguments.epochs}",
            unit=" images",
            unit_scale=arguments.batch,
            initial=start,
            total=start + len(batches),
            disable=world.rank != 0,
        )
        for image, label in progress:
            losses.append(float(exe(image=image, label=label)["loss"]))
            if len(losses) % 20 == 0:
                progress.set_postfix(loss=f"{np.mean(losses[-20:]):.4f}", refresh=False)
            if checkpoints is not None and exe.step % arguments.checkpoint_every == 0:
                checkpoints.save(exe, metadata=data, background=True)
    seconds = time.perf_counter() - begin
    if checkpoints is not None:
        checkpoints.save(exe, metadata=data)
    return exe, first, losses, seconds


def write_results(exe: ls.Executable, first: int, losses: list[float], out: Path) -> list[tuple[Path, str]]:
    import matplotlib

    matplotlib.use("Agg")  # needs no screen
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    steps = first + np.arange(len(losses))
    axes.plot(steps, losses, color="0.8", linewidth=0.8, label="each step")
    window = max(1, min(50, len(losses) // 10))
    if losses:
        smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
        axes.plot(steps[window - 1 :], smooth, label=f"mean of {window} steps")
    axes.set(xlabel="step", ylabel="training loss (mean over the global batch)", ylim=(0, None))
    axes.legend()
    figure.savefig(out / "loss.png", dpi=120)
    (out / "graph.ir").write_text(str(exe.graph))
    (out / "steps.txt").write_text(exe.steps)
    return [
        (out / "lenet-trained.onnx", "the trained model"),
        (out / "loss.png", "the loss of each step"),
        (out / "graph.ir", "the graph that each rank runs"),
        (out / "steps.txt", "its steps"),
    ]


def main() -> None:
    arguments = parse_arguments()
    logging.basicConfig(format="%(message)s")
    world = ls.Communicator.from_environment()
    if world.rank == 0:
        arguments.out.mkdir(parents=True, exist_ok=True)

    exe, first, losses, seconds = train(world, arguments)
    exe.check_replicas()  # fails unless all ranks have the same bits
    tested = evaluate(arguments.model, exe, *ls.data.mnist(arguments.data, train=False), world)
    ls.save_onnx(exe, arguments.out / "lenet-trained.onnx")
    if world.rank == 0:
        written = write_results(exe, first, losses, arguments.out)
        print(f"test loss {tested['loss']:.4f}")
        print(f"test accuracy {tested['accuracy']:.4f}")
        print(f"trained in {seconds:.1f} s, {len(losses) * arguments.batch / seconds:,.0f} images/s")
        for path, what in written:
            print(f"wrote {path}: {what}")


if __name__ == "__main__":
    try:
        main()
    except (ls.Error, OSError) as error:
        # The hook that mpi() has set informs the other ranks. Users need the message, not the traceback.
        sys.tracebacklimit = 0
        raise error from None
