"""Lockstep: a graph compiler for data-parallel training.

    import lockstep as ls

    world = ls.Communicator.mpi()
    model = ls.load_onnx("lenet.onnx", dims={"batch": 128})  # the one-rank program, over the global batch
    step = ls.train_step(model, loss=ls.loss.softmax_cross_entropy("logits", "label"), optimizer=ls.optim.SGD(0.05))
    exe = ls.compile(step, backend="cpu", world=world)
    for image, label in ls.data.batches(images, labels, size=128, world=world, seed=0):
        loss = exe(image=image, label=label)["loss"]
    ls.save_onnx(exe, "trained.onnx")

Every error is an `Error`, whose message names the file, op, input, option or rank.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from . import data, loss, optim
from ._lockstep import Communicator, Error, Executable, Graph, gradients, parse
from ._lockstep import _compile, _distribute, _interpret, _load_onnx, _train_step
from ._values import State, ValueInfo

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Communicator", "Error", "Executable", "Graph", "ValueInfo",
    "compile", "data", "distribute", "gradients", "interpret", "load_onnx", "loss", "optim", "parse", "save_onnx", "train_step",
]  # fmt: skip


def load_onnx(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> Graph:
    """Reads an ONNX model as the one-rank program over the global batch.

    Args:
      path: of the file.
      dims: the extents of its symbolic dimensions, by name. They are global: `{"batch": 128}` is 128 in all; who wants 64
        on each rank writes `64 * world.size`.

    Returns:
      A graph: the model's initializers are its states, under their names.

    Raises:
      Error: naming the file, and in it the node, input or dimension.
    """
    return _load_onnx(os.fspath(path), dict(dims or {}))


def train_step(
    model: Graph,
    loss: loss.Loss,
    optimizer: optim.SGD | optim.Adam | optim.AdamW,
    *,
    trained: Sequence[str] = (),
    keep_results: bool = False,
    batch_statistics: str = "global",
) -> Graph:
    """Makes the training step of a model: loss, gradients, and the optimizer's update of each trained state.

    Batch normalisation is in training mode whatever the file says, and its running statistics become states that the step
    updates.

    Args:
      model: with the states to train.
      loss: of `lockstep.loss`; the mean over the global batch.
      optimizer: of `lockstep.optim`.
      trained: names of the states to train; all float states that the loss depends on if empty.
      keep_results: keep the model's own results beside `loss`.
      batch_statistics: of batch normalisation: "global" are those of the global batch, so that n ranks compute what one
        would; "rank" are those of each rank's share, which saves communication and changes with the number of ranks.

    Returns:
      A graph with the result `loss`, f32[].
    """
    kind = type(optimizer).__name__
    options = {name: float(value) for name, value in getattr(optimizer, "__dict__", {}).items()}
    return _train_step(model, (loss.kind, loss.prediction, loss.target), kind, options, list(trained), keep_results, batch_statistics)


def compile(  # noqa: A001: the word of the field
    graph: Graph,
    backend: str = "cpu",
    world: Communicator | None = None,
    *,
    mesh: Mapping[str, int] | None = None,
    threads: int | None = None,
    bucket_bytes: int = 4 << 20,
    optimize: bool = True,
) -> Executable:
    """Compiles a graph for this rank, and loads it; the distribute pass runs in here. All ranks of `world` call it.

    The ranks compare what they compiled: different models, values or options are an error that shows the first difference.

    Args:
      graph: a model (for inference) or a training step; the one-rank program over the global batch.
      backend: "cpu".
      world: the ranks; None is one.
      mesh: the ranks as a grid with named axes; {"data": world.size} if None.
      threads: of this rank; OMP_NUM_THREADS if that is set, else the cores of this process divided by the ranks on this host.
      bucket_bytes: gradients are reduced together in buckets of about this size.
      optimize: False keeps only the passes that are needed to run.

    Returns:
      An executable; call it with the inputs by name.

    Raises:
      Error: naming the op with its source in the model, the option, or the ranks that disagree.
    """
    world = world if world is not None else Communicator.single()
    if threads is None:
        cores = len(os.sched_getaffinity(0))
        threads = int(os.environ.get("OMP_NUM_THREADS") or 0) or max(1, cores // world.ranks_on_this_host)
    axes = list((mesh if mesh is not None else {"data": world.size}).items())
    return _compile(graph, backend, world, axes, threads, bucket_bytes, optimize)


def distribute(graph: Graph, mesh: Mapping[str, int]) -> Graph:
    """The program that each rank of a mesh runs, such as `distribute(step, {"data": 4})`. `compile` does this by itself."""
    return _distribute(graph, list(mesh.items()))


def interpret(graph: Graph, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, np.ndarray]]:
    """Runs a graph by the ops' reference meanings, slowly: one dict of inputs for each rank of its mesh.

    Args:
      graph: any graph; one without a mesh has one rank.
      inputs: for each rank the data inputs, and those states that do not have their initial value.

    Returns:
      For each rank the results, and the next values of the states under their names.
    """
    return _interpret(graph, [dict(rank) for rank in inputs])


def save_onnx(executable: Executable, path: str | os.PathLike[str]) -> None:
    """Writes the model that was imported, with the present values of its parameters. Rank 0 writes; the others return.

    The file appears complete or not at all.
    """
    if executable._world().rank == 0:
        executable._save_onnx(os.fspath(path))


def _mpi(timeout: float = 600.0) -> Communicator:
    """The ranks that `mpirun` started; one rank without it. Initialises MPI if nobody has.

    An exception that ends this process makes the other ranks fail with an Error that names this one, instead of waiting.

    Args:
      timeout: how many seconds a call waits for a rank that is alive and does not arrive.
    """
    world = Communicator._mpi(timeout)
    previous = sys.excepthook
    reference = weakref.ref(world)  # the hook lives as long as the process, the communicator as long as its user wants

    def abort_first(kind: type[BaseException], value: BaseException, traceback: Any) -> None:
        previous(kind, value, traceback)
        if (alive := reference()) is not None:
            alive.abort(f"{kind.__name__}: {value}")

    sys.excepthook = abort_first
    return world


Communicator.mpi = staticmethod(_mpi)
Executable.state = property(State, doc="The state on this rank by name: read it, assign it.")
