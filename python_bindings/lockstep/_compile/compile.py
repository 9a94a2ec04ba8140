"""From a graph to what a rank runs."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from typing import TYPE_CHECKING, Any

from .. import _lockstep
from .._base import checks, job
from .._base.errors import Error
from .._base.log import warn_once
from .._graph.mistakes import warn_of_draws
from .._lockstep import Communicator, Executable, Graph
from . import buckets as _buckets
from .placements import Placement, choices
from .plan import Plan
from .strategy import client_of, servers_of

if TYPE_CHECKING:
    from .._reports.report import Report


def compile(
    graph: Graph,
    backend: str = "cpu",
    world: Communicator | None = None,
    *,
    mesh: Mapping[str, int] | None = None,
    split: Mapping[str, Mapping[str, int]] | None = None,
    placements: Mapping[str, Placement] | None = None,
    shard_optimizer: bool = False,
    shared_weights: bool = False,
    threads: int | None = None,
    strategy: str = "all_reduce",
    asynchronous: bool = False,
    max_staleness: int | None = None,
    bigarray_bound: int | None = None,
    bucket_bytes: int | None = None,
    buckets: Report | None = None,
    wire: str | None = None,
    factors: bool | float | None = None,
    optimize: bool = True,
    replicated: bool = False,
    check_every: int = 512,
    isa: str = "",
    tf32: bool = False,
    tune: bool = False,
    memory_limit: int | None = None,
    profile: bool = False,
) -> Executable:
    """Compiles a graph for this rank, and loads it; the distribute pass runs in here. All ranks of `world` call it.

    The ranks compare what they compiled: different models, values or options are an error that shows the first difference (but for a
    limit of memory, which changes no bit), and so are builds, libraries, processors and numbers of threads, whose kernels may compute different bits. Later calls compare
    more: that all ranks call the same program and have assigned the same states, and, in the first call and every
    `check_every`-th, that inputs and states which should be equal are. Only what neither communicates nor updates states that
    ranks have in common, such as a model that predicts, each rank may call as often as it likes.

    With `LOCKSTEP_DUMP=directory` in the environment the graph after each pass that changed it is written to a new folder there,
    `<graph>` or, of several ranks, `<graph>.rank<r>`; a compilation that fails also leaves the graph on which it failed, which
    `lockstep-opt` reads, and the Error says where.

    Args:
      graph: a model (for inference) or a training step; the one-rank program over the global batch.
      backend: "cpu", or "cuda" for NVIDIA's GPUs, one for each rank of a host as far as there are; `lockstep doctor` says whether
        they and their libraries are found. That backend has not run on hardware yet: docs/gpu.md.
      world: the ranks; None is one. A step that trains is an error then in a job of several, as `mpirun`, `srun` and `torchrun` start them.
      mesh: the ranks as a grid with named axes, the last one fastest: of `{"data": 2, "model": 2}` ranks 0 and 1 differ along
        "model", ranks 0 and 2 along "data"; {"data": world.size} if None. Along an axis "stage" ranks are the stages of a pipeline: a
        training step is cut into parts that cost about the same, and each rank has one, with its weights; the micro-batches of
        `train_step(accumulate=…)` follow each other through them (docs/pipeline.md).
      split: states and inputs that the ranks share along an axis, each with the dimension that is split: with
        `{"fc1.weight": {"model": 0}, "fc2.weight": {"model": 1}}` a rank holds a part of each. What the optimizer keeps for a
        state goes with it. Inputs are split along "data" already, as `load_onnx` says.
      placements: the same for names and patterns, of which the first that matches a state or input counts: `{"fc1.*": split(0, "model"),
        "fc*": replicated()}`, with `lockstep.split` and `lockstep.replicated`. What `split` names goes before. Patterns say nothing of what the
        optimizer keeps. Or a `Plan`, which `lockstep.plan` searches: its mesh is then that of the program (docs/model_parallelism.md).
      shard_optimizer: True lets the ranks along "data" share what optimizers keep for weights, momenta and averages, as the first stage
        of ZeRO does: gradients are reduced to slices, each rank updates the slice that it has the momentum of, and the slices of
        new weights are gathered. As many bytes travel as without; the results have the same bits, but where norms of gradients are sums over
        slices, and where batch normalisation by the statistics of all ranks adds up the ranks' means, as their sum is in slices. What no dimension of can be shared evenly stays whole. `exe.state` shows the slices of this rank, checkpoints have all.
      shared_weights: True lets the ranks along "data", processes or threads of one host, keep one copy of the weights in memory that they
        share. It includes `shard_optimizer`: each rank updates its slices of the weights in place, behind the last use of the old ones on any
        rank, and no new weights travel. So n ranks with Adam hold the gradients n times, and weights and moments once. The results have the
        bits of `shard_optimizer`, and `exe.memory` counts this rank's share. Frozen weights, and those of an evaluation, are shared too; what ranks cannot share evenly along the outermost
        dimension, or all update alike (batch statistics, plain SGD), each has for itself. Assigning a shared state waits for the
        other ranks, which assign the same value. Not for ranks on several hosts, nor on GPUs.
      threads: of this rank, equal on all; OMP_NUM_THREADS if that is set, else the cores of this process divided by the ranks
        of the host that has most.
      strategy: who updates what is trained. "all_reduce": each rank, by the sum of all gradients. "parameter_server": the servers of the
        job (`lockstep launch -n N -s S`): a rank pushes each gradient as soon as it is computed, the servers run the optimizer, and
        the new weights come back at the end of the call (docs/parameter_servers.md). Servers keep what the optimizer keeps, so that
        no rank has it; `exe.state`, `save` and `load` are as always. Of "cpu", with an optimizer whose update needs nothing but its gradient,
        its states and settings: f16 with its scaled loss and `uneven` are for "all_reduce", and so are clipping and `accumulate` where
        updates are synchronous. `wire`, `buckets`, `bucket_bytes` and `factors` are of all-reduces.
      asynchronous: of "parameter_server". False: an update waits for the gradients of all ranks, and the bits are those of
        "all_reduce" in rank order. True: each gradient is an update at once, and nobody waits: a rank's step is a program of its own, whose
        batch, loss and number of calls are its own, too. What is assigned, saved and loaded is still of all ranks together; rank 0's
        values and settings count.
      max_staleness: of asynchronous servers: how many updates a rank may be ahead of the slowest one before it waits; None is any
        number. Before ranks meet, as in `exe.save`, their numbers of calls must not differ by more. `exe.staleness()` says how late
        gradients were.
      bigarray_bound: of "parameter_server": weights of more elements are cut evenly over all servers, a million if None; others lie on
        one each. Those of optimizers that update a weight as a whole (LAMB, Muon) are never cut.
      bucket_bytes: gradients are reduced together in buckets of about this size; 4 MiB if None.
      buckets: `exe.report()` of an executable of the same step that ran on these ranks: the buckets are then those with which the step
        ends first, by when each gradient was computed, what its update takes, and what collectives of so many bytes take here, which
        is measured now, for about a second. Each rank gives its own report; the latest times of all count, so that all have the same
        buckets. The step may have had another `wire` then, but for "int8", as which gradients have no times. No bit changes, but on more than two hosts, where buckets of other sizes may take routes that add in another order
        (`order="rank"` keeps one). What times do not decide goes by `bucket_bytes`: gathers of new weights, and all along an
        axis whose ranks share memory, where nothing travels behind kernels. Of "cpu" alone.
      wire: "bf16": f32 gradients travel between ranks in half the bytes, rounded to 8 bits of significand; they are added in f32,
        and the sum is rounded so, too. "int8": in a quarter of the bytes, as integers from -127 to 127 with a scale for each 256
        of them; what rounding takes from them is kept, f32 as large as the gradients on each rank, and added in the next step
        (docs/wire.md). Of a step of `train_step`; its loss, statistics and norms travel as they are. Not with
        `shard_optimizer` or `shared_weights`, whose ranks get slices of gradients. None: all do.
      factors: what ranks send of the gradient of a layer's weights, which is a product: of a batch of few rows and of a wide layer the
        factors are much less than the product. A number lets ranks gather the factors of all rows, and each compute the whole
        product, where so many operations for each byte that this saves are more than the product takes; the gradient of an
        embedding is then computed from the rows that were looked up. The sum over the batch is in the order of one rank, and so of other bits than
        one of ranks' sums. True counts bytes alone, False reduces every gradient. None is 100 where ranks along "data" are on
        several hosts, and False where all are on one, or the communicator has `order="rank"`. Gradients in micro-batches are
        reduced, and those that `shard_optimizer` reduces to slices. With `wire` a gradient counts as it travels.
      optimize: False keeps only the passes that are needed to run: no buckets, and no `factors`.
      replicated: True says that every rank is meant to get the same inputs. Without it a graph of whose inputs and states none
        is split over several ranks is an error: each would compute the same, and none would learn from another. Without a `world` it says
        that each rank of a job is to train a model of its own.
      check_every: so many calls apart, ranks compare the contents of replicated inputs and states; 0 is never.
      isa: what kernels may use of the processor: "sse41", "avx2" or "avx512"; all that it has if empty. For ranks on different
        processors. It holds for the whole process, so give it to the first `compile`. For "cuda" the GPU that code is made for
        ("h200", "sm_90"); the first of this machine if empty. One has to be there in any case, as the program is loaded:
        `lockstep-run --dry` prints the steps for a GPU that is not.
      tf32: True lets GPUs multiply f32 matrices with the significands of TF32: 10 bits, and many times as fast.
      tune: True lets rank 0's GPU time cuBLASLt's algorithms for each product of matrices, in which all ranks then take the
        fastest; other algorithms round differently. A file below ~/.cache/lockstep keeps the choices, so that later programs
        on the machine compute the same bits. False takes the library's first choice, which needs no such memory.
      memory_limit: bytes that this rank may hold between and during calls, as `exe.memory` counts them: states, constants,
        buckets of collectives and the arena, but not inputs and results, which are the caller's. Where a step would take more,
        values are computed again instead of kept, the cheapest for their bytes first; results have the same bits. `exe.recomputed` and
        `exe.steps` say what that costs. A limit that cannot be kept is an error that names the smallest that was found.
      profile: True runs a GPU's steps one by one and waits for each, so that `exe.profile` has the time of each, its launch
        and the wait included; a call takes longer. On a CPU steps run so anyway. Equal on all ranks.

    Returns:
      An executable; call it with the inputs by name, or `start` a call and look at its results later.

    Raises:
      Error: naming the op with its source in the model, the option, or the ranks that disagree.
    """
    alone = world is None
    world = Communicator.single() if world is None else world
    checks.instance("world", world, Communicator, "a lockstep.Communicator")
    try:
        checks.graph("the graph", graph)
        if alone and graph.trained and not replicated:
            job.check_is_one("compile", "world=ls.Communicator.mpi()")
        checks.text("backend", backend)
        options = _lockstep._CompileOptions()
        options.placements = choices(split, placements)
        options.shared_weights = checks.flag("shared_weights", shared_weights)
        options.shard_optimizer = checks.flag("shard_optimizer", shard_optimizer) or options.shared_weights
        if options.shared_weights:
            check_on_one_host(world)
        options.threads = default_threads(world) if threads is None else checks.integer("compile: threads", threads, 1)
        options.bucket_bytes = (
            None if bucket_bytes is None else checks.integer("compile: bucket_bytes", bucket_bytes, 1)
        )
        options.wire = checks.choice("compile: wire", wire, (None, "bf16", "int8")) or ""
        if factors is not None or getattr(world, "_in_rank_order", False):
            options.factors(_operations_per_byte(factors))
        options.optimize = checks.flag("optimize", optimize)
        options.replicated = checks.flag("replicated", replicated)
        if isinstance(placements, Plan) and placements.unused:
            options.replicated |= _is_meant(graph, placements, world)
        options.isa = checks.text("isa", isa)
        options.tf32, options.tune = checks.flag("tf32", tf32), checks.flag("tune", tune)
        if memory_limit is not None:
            options.memory_limit = checks.integer("compile: memory_limit", memory_limit, 1)
        options.run(checks.integer("compile: check_every", check_every), checks.flag("profile", profile))
        if buckets is not None:
            options.buckets()
        servers = servers_of(strategy, asynchronous, max_staleness, bigarray_bound)
        if servers is not None:
            options.servers(*servers)
        # A program of each rank's own has no mesh but what the user says, which is then refused.
        has_mesh = mesh is not None or isinstance(placements, Plan)
        axes = _axes(world, mesh, placements) if has_mesh or servers is None or servers[0] else []
        options.mesh = axes
        options.resolve(graph, backend, world)
        if servers is not None:
            options.client(client_of(world))
        dump = os.environ.get("LOCKSTEP_DUMP", "")
        dump = checks.path(dump) if dump else ""
        times = None if buckets is None else _buckets.times_of(buckets, world.size)
    except BaseException as error:
        told = str(error) if isinstance(error, Error) else f"compile: {type(error).__name__}: {error}"
        with suppress(Error):  # the other ranks hear of it; this one has it
            _lockstep._agree_on_arguments(world, told.encode(errors="backslashreplace").decode())
        raise
    _lockstep._agree_on_arguments(world, "")
    if buckets is not None:
        options.measured(_buckets.measured(world, axes, buckets.program, times))
    executable = _lockstep._compile(graph, backend, world, options, dump)
    for dtype in _lockstep._slow_dtypes(graph, backend, isa):
        warn_once(
            f"{dtype}: products are computed in f32 where this processor, or its library, is not quicker in {dtype}"
        )
    if world.rank == 0:
        warn_of_draws(graph)
    executable._schedules.update(getattr(graph, "_schedules", {}))
    executable._wrong_labels.update(getattr(graph, "_wrong_labels", {}))
    return executable


def _axes(world: Communicator, mesh: Any, placements: Any) -> list[tuple[str, int]]:
    """The mesh of compile: that which is given, that of the plan, or all ranks along "data"."""
    if not isinstance(placements, Plan):
        axes = checks.extents("mesh", {"data": world.size} if mesh is None else mesh)
        # What a batch is, is said along "data": a pipeline alone has that axis too, of one rank.
        return list(({"data": 1} | axes if "stage" in axes and "data" not in axes else axes).items())
    if mesh is not None and list(checks.extents("mesh", mesh).items()) != list(placements.mesh.items()):
        raise Error(f"compile: mesh is {mesh}, and placements a plan for {placements.mesh}")
    return list(placements.mesh.items())


def _is_meant(graph: Graph, plan: Plan, world: Communicator) -> bool:
    """Whether ranks that compute the same do so by the plan alone, which says that they share nothing; then they are warned."""
    if plan.mesh.get("data", 1) > 1 and not any("data" in each.placements for each in (*graph.inputs, *graph.states)):
        return False
    if world.rank == 0:
        warn_once(f"the plan splits no state along {', '.join(plan.unused)}: the ranks along it all compute the same")
    return True


def _operations_per_byte(factors: Any) -> float:
    """What `factors` of compile says."""
    if factors is None or type(factors).__name__ in ("bool", "bool_"):
        return math.inf if factors else 0.0
    if not isinstance(factors, Real) or not factors > 0:
        raise Error(f"compile: factors is {factors!r}, expected True, False, or operations for a byte, more than 0")
    return float(factors)


def check_on_one_host(world: Communicator) -> None:
    """Of ranks that are to have weights in common."""
    other = next((rank for rank in range(world.size) if world.host(rank) != world.host(0)), None)
    if other is not None:
        raise Error(
            f"compile: shared_weights is of ranks on one host, and rank 0 is on {world.host(0)}, rank {other} on "
            f"{world.host(other)}; shard_optimizer=True shares what the optimizer keeps, on any hosts"
        )


def default_threads(world: Communicator) -> int:
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if not setting:
        ranks = Counter(world.host(rank) for rank in range(world.size))
        return max(1, len(os.sched_getaffinity(0)) // max(ranks.values()))  # equal on all hosts, as it must be
    outermost = setting.split(",")[0]  # OpenMP allows a list, for nested parallel regions
    if not outermost.strip().isdecimal() or int(outermost) < 1:
        raise Error(f"the environment's OMP_NUM_THREADS is {setting!r}, expected a number of at least 1")
    return int(outermost)
