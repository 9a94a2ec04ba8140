"""Lockstep: a graph compiler for data-parallel training.

    import lockstep as ls

    world = ls.Communicator.from_environment()
    model = ls.load_onnx("lenet.onnx", dims={"batch": 128})  # the one-rank program, over the global batch
    step = ls.train_step(model, loss=ls.loss.softmax_cross_entropy("logits", "label"), optimizer=ls.optim.SGD(0.05))
    exe = ls.compile(step, backend="cpu", world=world)
    for image, label in ls.data.batches(images, labels, size=128, world=world, seed=0):
        loss = exe(image=image, label=label)["loss"]
    ls.save_onnx(exe, "trained.onnx")

An `Error` says which file, value, option or rank is wrong. A call that does not fit the signature, such as one with an
unknown keyword or a missing argument, raises a `TypeError`, as any Python function does.

The names, by what they are for:

    Graphs         Graph, ValueInfo, graph, load_onnx, from_torch, parse, load_graph, interpret, gradients, evaluation
    Training       train_step, loss, optim, exchange, schedule, clip, average, Trainer, metrics
    Distribution   Communicator, Strategy, Placement, split, replicated, Plan, plan, distribute, verify, verify_hlo, kv
    Execution      compile, pass_, Executable, find_nan
    Data           data
    Results        Checkpoints, save_onnx, to_torch, save_weights, load_weights
    Also           Error, __version__

The modules lockstep.elastic, lockstep.forecast, lockstep.horovod, lockstep.onnx_backend and
lockstep.torch_distributed are imported by themselves.
"""

from __future__ import annotations

from ._base import isolated  # noqa: F401  isort: skip  (must precede every other import of _lockstep)
from . import average, clip, data, graph, kv, loss, metrics, optim, schedule
from ._base import copies, cuda_folders, names  # noqa: F401  (cuda_folders tells _lockstep where the libraries are)
from ._base.errors import Error
from ._base.values import State, ValueInfo
from ._checkpoint.folder import Checkpoints
from ._compile.compile import compile
from ._compile.numerics import find_nan
from ._compile.placements import Placement, replicated, split
from ._compile.plan import Plan, plan
from ._compile.strategy import Strategy
from ._compile.verify import verify
from ._graph.evaluation import evaluation
from ._graph.graph_file import load_graph
from ._graph.graphs import distribute, gradients, interpret, load_onnx, parse, save_onnx
from ._graph.train_step import train_step
from ._graph.weights import load_weights, save_weights
from ._hlo.verify import verify_hlo
from ._lockstep import Communicator, Executable, Graph
from ._torch.torch_modules import from_torch, to_torch
from ._trainer.trainer import Trainer
from ._version import VERSION as __version__
from .exchanges.namespace import exchange
from .graph._pass import pass_

__all__ = [
    "Checkpoints", "Communicator", "Error", "Executable", "Graph", "Placement", "Plan", "Strategy", "Trainer", "ValueInfo",
    "__version__", "average", "clip", "compile", "data", "distribute", "evaluation", "exchange", "find_nan", "from_torch", "gradients", "graph", "interpret", "kv", "load_graph", "load_onnx", "load_weights",
    "loss", "metrics", "optim", "parse", "pass_", "plan", "replicated", "save_onnx", "save_weights", "schedule", "split", "to_torch",
    "train_step", "verify", "verify_hlo",
]  # fmt: skip

_WEIGHTS = "save its values: checkpoints are lockstep.Checkpoints, and save_onnx and save_weights write weights"
copies.refuse(Communicator, "lockstep.Communicator", "each process makes its own: Communicator.from_environment()")
copies.refuse(Executable, "lockstep.Executable", f"pickle its graph and compile that again, or {_WEIGHTS}")
copies.refuse(State, "state of a lockstep.Executable", "dict(exe.state) has its arrays")
copies.refuse(Trainer, "lockstep.Trainer", f"make another, or {_WEIGHTS}")

names.guard(
    globals(),
    {
        **{
            names.plain(name): f"{part.__name__.removeprefix('lockstep.')}.{name}"
            for part in (data, kv, loss, metrics, optim)
            for name in part.__all__
        },
        "dataloader": "data.batches",
        "fromonnx": "load_onnx",
        "init": "Communicator.from_environment()",
        "jit": "compile",
        "kvstore": "kv.create",
        "load": "load_onnx",
        "losses": "loss",
        "lrscheduler": "schedule",
        "optimizer": "optim",
        "optimizers": "optim",
        "rank": "Communicator.from_environment().rank",
        "save": "save_onnx",
        "size": "Communicator.from_environment().size",
    },
)
