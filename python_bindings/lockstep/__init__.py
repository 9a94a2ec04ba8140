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

import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from . import data, loss, optim
from ._lockstep import (
    Communicator,
    Error,
    Executable,
    Graph,
    _compile,
    _distribute,
    _interpret,
    _load_onnx,
    _train_step,
    gradients,
    parse,
)
from ._values import ValueInfo
from .loss import Loss

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
    return _load_onnx(os.fspath(path), dict(_extents("dims", dims or {})))


def train_step(
    model: Graph,
    loss: Loss,
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

    Raises:
      Error: naming the result, state or option that is wrong, or the op that has no gradient.
    """
    if not isinstance(loss, Loss):
        raise Error(f"loss is {loss!r}, expected one of lockstep.loss, such as lockstep.loss.softmax_cross_entropy()")
    if isinstance(trained, str):
        raise Error(f"trained is the text {trained!r}, expected a list of names")
    if batch_statistics not in ("global", "rank"):
        raise Error(f'batch_statistics is {batch_statistics!r}, expected "global" or "rank"')
    kind, options = _optimizer_options(optimizer)
    return _train_step(
        model, (loss.kind, loss.prediction, loss.target), kind, options, list(trained), keep_results, batch_statistics
    )


def _optimizer_options(optimizer: optim.SGD | optim.Adam | optim.AdamW) -> tuple[str, dict[str, float]]:
    for kind in (optim.SGD, optim.Adam, optim.AdamW):
        if isinstance(optimizer, kind):
            break
    else:
        raise Error(f"unknown optimizer {optimizer!r}; lockstep.optim has SGD, Adam and AdamW")
    options = {}
    for field in fields(kind):
        value = getattr(optimizer, field.name)
        try:
            options[field.name] = float(value)
        except (TypeError, ValueError):
            raise Error(f"optimizer: {field.name} is {value!r}, expected a number") from None
    return kind.__name__, options


def _extents(what: str, extents: Mapping[str, int]) -> list[tuple[str, int]]:
    """The items of a mapping from names to whole numbers."""
    try:
        return [(str(name), operator.index(extent)) for name, extent in extents.items()]
    except (AttributeError, TypeError):
        raise Error(f"{what} is {extents!r}, expected names with whole numbers") from None


def compile(
    graph: Graph,
    backend: str = "cpu",
    world: Communicator | None = None,
    *,
    mesh: Mapping[str, int] | None = None,
    threads: int | None = None,
    bucket_bytes: int | None = None,
    optimize: bool = True,
    check_every: int = 512,
    isa: str = "",
) -> Executable:
    """Compiles a graph for this rank, and loads it; the distribute pass runs in here. All ranks of `world` call it.

    The ranks compare what they compiled: different models, values or options are an error that shows the first difference, and
    so are builds, libraries and processors whose kernels may compute different bits. Later calls compare more, with the
    collectives that they do anyway: that all ranks call the same program, and have assigned states equally often, and, in the
    first call and every `check_every`-th, that inputs and states which should be equal are.

    With `LOCKSTEP_DUMP=directory` in the environment the graph after each pass that changed it is written to a new folder there,
    `<graph>` or, of several ranks, `<graph>.rank<r>`; a compilation that fails also leaves the graph on which it failed, which
    `lockstep-opt` reads, and the Error says where.

    Args:
      graph: a model (for inference) or a training step; the one-rank program over the global batch.
      backend: "cpu".
      world: the ranks; None is one.
      mesh: the ranks as a grid with named axes; {"data": world.size} if None.
      threads: of this rank; OMP_NUM_THREADS if that is set, else the cores of this process divided by the ranks on this host.
      bucket_bytes: gradients are reduced together in buckets of about this size; 4 MiB if None.
      optimize: False keeps only the passes that are needed to run.
      check_every: so many calls apart, ranks compare the contents of replicated inputs and states; 0 is never.
      isa: what kernels may use of the processor: "sse41", "avx2" or "avx512"; all that it has if empty. For ranks on different
        processors. It holds for the whole process, so give it to the first `compile`.

    Returns:
      An executable; call it with the inputs by name.

    Raises:
      Error: naming the op with its source in the model, the option, or the ranks that disagree.
    """
    world = world if world is not None else Communicator.single()
    if not isinstance(world, Communicator):
        raise Error(f"world is {world!r}, expected a lockstep.Communicator")
    if threads is None:
        threads = _default_threads(world)
    dump = os.environ.get("LOCKSTEP_DUMP", "")
    axes = _extents("mesh", mesh if mesh is not None else {"data": world.size})
    return _compile(graph, backend, world, axes, threads, bucket_bytes, optimize, check_every, isa, dump)


def _default_threads(world: Communicator) -> int:
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if not setting:
        return max(1, len(os.sched_getaffinity(0)) // world.ranks_on_this_host)
    outermost = setting.split(",")[0]  # OpenMP allows a list, for nested parallel regions
    if not outermost.strip().isdecimal():
        raise Error(f"the environment's OMP_NUM_THREADS is {setting!r}, expected a number")
    return int(outermost)


def distribute(graph: Graph, mesh: Mapping[str, int]) -> Graph:
    """The program placed on a mesh, such as `distribute(step, {"data": 4})`; `compile` does this by itself.

    Shapes are still those of the whole. What comes out says of each value where it is, and holds the collectives; it can be
    printed, changed as text, and compiled.
    """
    return _distribute(graph, _extents("mesh", mesh))


def interpret(graph: Graph, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, np.ndarray]]:
    """Runs a graph by the ops' reference meanings, slowly: one dict of inputs for each rank of its mesh.

    Args:
      graph: any graph; one without a mesh has one rank, of another each rank runs its part.
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
