"""The compiled part of the package lockstep."""

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence
)
import os
from typing import Annotated, Any, NoReturn, overload

import numpy
from numpy.typing import NDArray

import lockstep
import lockstep._base.values
import lockstep._compile.settings
import lockstep._compile.shares
import lockstep._graph.explain
import lockstep._reports.report
import lockstep._reports.roofline
import lockstep.forecast
import lockstep.kv


class Communicator:
    """
    A rank's communicator with the other ranks of its world. Made by mpi(), single() or
    in_process(), and passed to compile() and data.batches(). Only one thread may use
    it at a time.
    """

    @staticmethod
    def mpi(timeout: float = 600.0, between_hosts: str = 'tcp', order: str = 'any', routes: str = 'measured') -> Communicator:
        """
        The communicator of the ranks that `mpirun` started; one rank without mpirun. Initialises MPI if
        necessary. In a job with parameter servers, these are the workers. LOCKSTEP_WORKERS and LOCKSTEP_SERVERS
        in the environment are the numbers of workers and servers.

        If an exception ends this process, the other ranks fail with an Error that names this rank, instead of
        waiting.

        Args:
          timeout: the longest time, in seconds, that a call waits for a rank that is alive and does not arrive.
          between_hosts: the transport of messages between hosts. "tcp": own connections through the network
            interfaces whose names begin as in LOCKSTEP_INTERFACE ("eth0", "ib,eth"), or through all. "mpi":
            MPI, which may know faster networks of a cluster. Equal on all ranks.
          order: the order of additions in a reduction. "rank": the order of ranks, so that every distribution
            of ranks among hosts gives the same bits. "any": faster. Ranks of a host may be added first, and
            many hosts in the order of a ring or a tree. The bits are still the same on all ranks, and in all runs
            with the same distribution of ranks and the same routes. Equal on all ranks.
          routes: the basis for choosing the routes between more than two hosts. "measured": measurements of the
            network. They take at most a second when these hosts first have a communicator, and are stored in
            ~/.cache/lockstep/networks of rank 0. "default": a network of 10 Gb/s, whatever the real one.
            `lockstep doctor` shows the routes. Equal on all ranks.
        """

    @staticmethod
    def from_environment(timeout: float = 600.0, order: str = 'any', routes: str = 'measured') -> Communicator:
        """
        The communicator of the ranks of this job, with or without MPI. Ranks that `lockstep launch`, `torchrun`,
        accelerate or Kubernetes' PyTorchJob started meet at rank 0, by RANK, WORLD_SIZE, MASTER_ADDR and
        MASTER_PORT in the environment, or by the file LOCKSTEP_RENDEZVOUS_FILE. Tasks of `srun` meet by Slurm's
        variables. Otherwise it is `mpi()`: the ranks of `mpirun`, or one rank.

        Where torchrun's agent uses MASTER_PORT itself, ranks meet at the next port. Ranks may come in any order.
        Those that do not come within the timeout are named by all others. With a secret in LOCKSTEP_SECRET, or in
        the file LOCKSTEP_SECRET_FILE, ranks prove that they belong together. Parameter servers need `mpirun`.

        Example:
          >>> world = lockstep.Communicator.from_environment()  # torchrun --nproc-per-node 2 train.py

        Args:
          timeout, order, routes: as of `mpi()`.
        """

    @staticmethod
    def single() -> Communicator:
        """A world of one rank, without communication."""

    @staticmethod
    def in_process(n: int, timeout: float = 600.0) -> list[Communicator]:
        """
        Returns n communicators of one world, one for each of n threads of this process.

        Example:
          >>> worlds = lockstep.Communicator.in_process(4)
          >>> threads = [threading.Thread(target=train, args=(world,)) for world in worlds]
        """

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def transport(self) -> str:
        """The transport: "in_process", "shared_memory", "mpi", "rendezvous"."""

    @property
    def ranks_on_this_host(self) -> int:
        """The number of ranks on this rank's host, including this one."""

    def host(self, rank: int) -> str:
        """The name of the host on which a rank runs."""

    def __repr__(self) -> str: ...

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def gather_bytes(self, bytes: bytes, label: str = 'gather_bytes') -> list[bytes]:
        """
        Returns the bytes of all ranks, by rank, on every rank. Collective. Messages about a rank that does not
        arrive or makes another call contain the label, which is equal on all ranks.
        """

    def abort(self, reason: str) -> None:
        """
        Makes calls in which other ranks wait for this one fail, with an Error that names this rank and the
        reason. An exception that ends a process under mpirun does this automatically.
        """

    def all_reduce(self, array: Any, kind: str = 'sum') -> numpy.ndarray:
        """
        Reduces the arrays of all ranks element by element: their sum, or another reduction (`kind`). Returns a
        new array of the same shape and dtype on every rank. Collective, with equal shapes, dtypes and kinds.

            loss = float(world.all_reduce(loss, "mean"))

        Args:
          array: a NumPy array of booleans, integers or real floats (bfloat16 of ml_dtypes), or a value that NumPy
            converts: a number, which becomes f64, i64 or bool, a list, or a CPU tensor of torch. Gradients do not
            pass.
          kind: "sum", "mean", "min", "max" or "prod". Integers are added modulo 2^bits, and their mean
            is truncated. For booleans, "sum" and "max" are true if any is true, the others if all are true.

        Raises:
          Error: the value is not such an array; two ranks make different calls or have different shapes; or a
            rank has died or does not arrive. The message names the ranks.
        """

    def broadcast(self, array: Any, root: int = 0) -> numpy.ndarray:
        """
        Returns rank root's array as a new array on every rank. Collective, with equal roots, shapes and dtypes.
        Only the root's array is read. Arrays and errors are as for `all_reduce`.
        """

    def all_gather(self, array: Any) -> numpy.ndarray:
        """
        Returns the arrays of all ranks, by rank, as a new array [size, *shape] on every rank. Collective, with
        equal shapes and dtypes. Arrays and errors are as for `all_reduce`.
        """

class _Flights:
    """The arrays of a communicator's collectives in flight."""

def _allocate(world: Communicator, bytes: int, label: str) -> Any:
    """
    uint8[bytes] of registered memory, zero at first. Collective. Each rank has its own size.
    """

def _split(world: Communicator, color: int, label: str) -> Communicator:
    """
    Returns a communicator of the ranks that pass the same color, at least 0. Collective.
    """

def _start_all_reduce(world: Communicator, input: Any, output: Any, dtype: str, kind: str, label: str) -> int:
    """
    Starts an all-reduce, and returns its ticket for _wait. The arrays are in row-major order, with equal numbers
    of elements. `input` may be `output`. Nobody else may use them between start and wait.

    Args:
      dtype: "f32", "bf16", ...: of the elements, which may differ from the array's dtype; only its bytes
        count.
      kind: "sum", "mean", "min", "max", "prod".
      label: of the call in messages; equal on all ranks.
    """

def _start_broadcast(world: Communicator, input: Any, output: Any, dtype: str, root: int, label: str) -> int:
    """Starts a broadcast. Only rank root's input is read."""

def _start_gather(world: Communicator, input: Any, output: Any, dtype: str, root: int, label: str) -> int:
    """
    Starts a gather. The output, which is zero on the other ranks than root, has world.size times the input's
    elements.
    """

def _start_scatter(world: Communicator, input: Any, output: Any, dtype: str, root: int, label: str) -> int:
    """
    Starts a scatter. Part r of root's input goes to rank r. The inputs, of which only root's is read, have
    world.size times the output's elements.
    """

def _start_all_gather(world: Communicator, input: Any, output: Any, dtype: str, label: str) -> int:
    """
    Starts an all-gather. The output has world.size times the input's elements.
    """

def _start_all_to_all(world: Communicator, input: Any, output: Any, dtype: str, label: str) -> int:
    """
    Starts an all-to-all. Part r of the input goes to rank r, as part world.rank.
    """

def _start_reduce_scatter(world: Communicator, input: Any, output: Any, dtype: str, kind: str, label: str) -> int:
    """
    Starts a reduce-scatter. The input has world.size times the output's elements.
    """

def _wait(world: object, ticket: int) -> None:
    """
    Waits until the collective is complete. Call once for each ticket, in any order.
    """

def _meet(rank: int, size: int, gather: Any, timeout: float, transport: str) -> Communicator:
    """
    Returns the communicator of ranks that a function introduces: gather(bytes) returns a list of the bytes
    of all ranks, by rank. Collective.
    """

def _set_timeout(world: Communicator, timeout: float) -> None:
    """
    Replaces the timeout, in seconds, of a communicator of `_meet` for waits from now on. Any thread.
    """

def _check_peers(world: Communicator) -> None:
    """
    Raises the Error with which the world has failed, if it has. Any thread, at any time.
    """

class _Messages:
    """
    Messages between two ranks, besides the collectives. Any thread may call.
    """

    def __init__(self, world: Communicator) -> None:
        """Collective over the ranks of `world`."""

    def send(self, to: int, tag: int, array: Any) -> int:
        """Starts to send a copy of an array's bytes, and returns a ticket."""

    def receive(self, source: int, tag: int, array: Any) -> int:
        """
        Starts to receive a message of the array's size from rank `source`, or from any rank (-1), and returns a
        ticket.
        """

    def wait(self, ticket: int, limit: float) -> int | None:
        """
        Returns the other rank of a message that is complete, or None after `limit` seconds. Raises an Error if
        the other rank has left, or sent another number of bytes.
        """

def _optimizers() -> list[dict[str, Any]]: ...

def _losses() -> list[dict[str, Any]]: ...

def _check_optimizer(name: str, options: Mapping[str, bool | int | float | str | Sequence[float]], varying: Sequence[str]) -> None: ...

def _check_loss(loss: tuple[str, Sequence[str], Sequence[str], Mapping[str, bool | int | float | str | Sequence[float]], float]) -> None: ...

class Graph:
    """
    A program: typed inputs, states (what training changes) and results. str() is its text form.
    """

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> list[lockstep._base.values.ValueInfo]:
        """The data inputs, which each call passes."""

    @property
    def states(self) -> list[lockstep._base.values.ValueInfo]:
        """The trained variables, statistics and optimizer states."""

    @property
    def settings(self) -> dict[str, float]:
        """
        The numbers that may change between calls, such as optimizer/learning_rate, with their initial values.
        """

    @property
    def results(self) -> list[lockstep._base.values.ValueInfo]:
        """The results of a call."""

    @property
    def trained(self) -> list[str]:
        """
        The names of the states that an optimizer updates. A model that is not a training step has none.
        """

    @property
    def constants(self) -> list[str]:
        """
        The names of the float initializers that the graph uses as constants. `trained` of train_step() can name them.
        """

    @property
    def fixed_inputs(self) -> list[str]:
        """
        The inputs of the file whose values, given to load_onnx(), went into the graph.
        """

    @property
    def notes(self) -> list[str]:
        """Sentences about what the import changed."""

    @property
    def _metadata(self) -> dict[str, str]: ...

    @property
    def _is_uneven(self) -> bool: ...

    @property
    def _supposed_parameters(self) -> list[str]: ...

    def _facts(self) -> str: ...

    def _nodes(self) -> list[dict[str, Any]]: ...

    def summary(self, depth: int | None = None) -> str:
        """
        A line for each input, state, setting and result of the graph, with counts, and a table of its layers.

        A layer is the nodes whose sources have the same module of the model: block/conv of onnx:/block/conv/Conv,
        and of python:block/conv/model.py:12, of a scope of lockstep.graph; without a scope, model.py:12. In files
        of PyTorch's exporter, encoder.0.linear1 of torch:encoder.0.linear1/node_MatMul_91, or relu_3() of a
        function outside the model's modules. For each layer, the table shows the type of the last result, the
        parameters that it uses first, the operations in the forward computation and for gradients, and the bytes
        of all results of its nodes, which are not the memory that a compiled program needs. An addition, a
        comparison or a function such as exp of one element is one operation. A product that is added to a sum is
        two, so a multiply-accumulate is two. A reduction has one for each element that it reads, and moving
        elements none. Normalisations and softmax that are one node have one for each element. For a step of
        micro-batches, types and bytes are those of one micro-batch, and operations those of all.

        Args:
          depth: the number of parts of a layer's name, between slashes, and between dots in a module's name.
            Layers with equal parts are merged. None is all parts.
        """

    def save_svg(self, path: str | os.PathLike[str], depth: int | None = None) -> None:
        """
        Draws the graph into a file, with a box for each layer of summary(). Requires Graphviz' program dot. A
        drawing of a step also has the optimizer and, if the graph has been distributed, the collectives, one for
        each layer. Dashed lines are gradients.
        """

    def explain(self, ranks: int | None = None, *, rank: int = 0, depth: int | None = None, machine: lockstep.forecast.Machine | None = None, backend: str = 'cpu', **options: Any) -> lockstep._graph.explain.Explanation:
        """
        Explains the program that `compile` makes of this graph for one of n ranks, which need not exist: what is
        communicated for each layer, in how many bytes, when it is ready and when it is needed; and what each pass of the
        compiler changed. It prints as tables, shows itself in a notebook, and has all numbers as attributes.

        Positions are the numbers of steps of a call, as in `Executable.steps`. Times are estimates: of each kernel by
        `machine`, one after the other and without communication. `factors` has the default of ranks on one host.

        Args:
          ranks: the number of ranks. The default is the product of the sizes of `mesh`, or 2 without it.
          rank: the rank whose program is explained. Only stages of a pipeline have different ones.
          depth: the number of parts of a layer's name, as for summary().
          machine: the speed of a rank's kernels, and of the links between hosts: a `lockstep.forecast.Machine`. If None, the
            numbers of a usual processor, and of a network of 10 Gb/s.
          backend: "cpu" or "cuda". "cuda" needs a GPU and its driver.
          options: those of a `Strategy`, such as `mesh`, `split`, `shard_optimizer` and `wire`; or a `strategy`.

        Raises:
          Error: as `compile`; names the option, or the op with its source in the model.

        Example:
          >>> print(step.explain(4))
          >>> sum(each.bytes for each in step.explain(mesh={"data": 4}, wire="bf16").communications)
        """

    def save_html(self, path: str | os.PathLike[str], ranks: int | None = None, *, other: Graph | lockstep._graph.explain.Explanation | None = None, **options: Any) -> None:
        """
        Writes explain() as a page that needs nothing but a browser: the graph by layer, a timeline of the
        communication, and what each pass changed, with its text before and after. The page has the drawing of save_svg() if
        there is Graphviz' program dot. Equal graphs and options make equal pages. With several ranks, call it on one.

        Args:
          path: of the file, which appears complete or not at all.
          ranks: as for explain().
          other: another graph, which is explained with the same options, or an Explanation, such as that of this graph with
            other options. The page then shows both side by side, and marks differences.
          options: the other arguments of explain().

        Example:
          >>> step.save_html("step.html", 4, other=step.explain(4, wire="bf16"))
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Writes the graph to a file for load_graph(): its text, the initial values of its states, its schedules, and
        the model from which it was imported, so that the loaded graph has with_dims() and can be saved as ONNX.

        The file appears complete or not at all. The calling process writes. With several ranks, call it on one.

        Raises:
          Error: the file cannot be written; or a setting follows a function that is not of lockstep.schedule or
            lockstep.average, which a file cannot represent. pickle can, if it finds the function by its name.

        Example:
          >>> step.save("step.graph")
          >>> exe = lockstep.compile(lockstep.load_graph("step.graph"), world=world)
        """

    def __reduce__(self) -> tuple[Any, ...]: ...

    def with_dims(self, *one: Mapping[str, int], **dims: int) -> Graph:
        """
        Returns the model with other extents of its symbolic dimensions, such as a batch of one sample:
        model.with_dims(batch=1).

        Requires a model from `load_onnx` or `from_torch`, or from `load_weights` of such a model. Nothing is read or
        exported again. The states of the new graph have the same names, shapes and values, and it computes the same
        results for the same rows.

        Args:
          dims: extents by name, as for `load_onnx`; or instead one dict, whose names may be positions: {"x:0": 1}.
            Other dimensions keep their extents.

        Raises:
          Error: there is no dimension of that name, the model cannot have that extent, or the graph is not such a
            model but, for example, a training step or a parsed text.

        Example:
          >>> one = lockstep.compile(model.with_dims(batch=1))
          >>> one.state.assign(exe.state)
          >>> one(image=image[None])["logits"]
        """

    def initial_value(self, state: str) -> numpy.ndarray:
        """The initial value of a state; zeros unless the model has one."""

    def __str__(self) -> str: ...

    def short(self) -> str:
        """
        Returns the graph in a form for people: a line for each node, with a fusion as the list of its ops, and
        without sources. str() is the exact text, which parse() reads.
        """

    def diff(self, other: Graph) -> str:
        """
        Returns a unified diff from the text of this graph to that of `other`. Numbered values that correspond
        have the same number. Empty if the graphs are equal.
        """

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The display of IPython: short()."""

    def _repr_svg_(self) -> str | None:
        """
        The display of notebooks: the drawing of save_svg(). None for a graph of more than 100 layers, and without
        Graphviz; notebooks then show short().
        """

    def __repr__(self) -> str: ...

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises a TypeError that says how to run a graph."""

def _parse(text: str) -> Graph: ...

def _load_onnx(path: str, bytes: bytes | None, dims: Mapping[str, int], split: Mapping[str, int] | None, values: Mapping[str, object], constants: Sequence[str], states: Sequence[str]) -> Graph: ...

def _onnx_operators() -> dict[str, list[tuple[str, int, int]]]: ...

def _with_values(model: Graph, values: Mapping[str, object]) -> Graph: ...

def _with_dims(model: Graph, dims: Mapping[str, int]) -> Graph: ...

def _evaluation(model: Graph, losses: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, bool | int | float | str | Sequence[float]], float]], metrics: Sequence[tuple[str, Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, bool | int | float | str | Sequence[float]], float]]]], keep_results: bool, uneven: bool) -> Graph: ...

def _train_step(model: Graph, losses: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, bool | int | float | str | Sequence[float]], float]], optimizers: Sequence[tuple[str, str, Mapping[str, bool | int | float | str | Sequence[float]], Sequence[str]]], clipping: tuple[str, float], average: bool, trained: Sequence[str], frozen: Sequence[str], keep_results: bool, accumulate: int, statistics: str, dropout: bool, seed: int, precision: str, uneven: bool, exchanges: Sequence[tuple[str, str, str, bool]]) -> Graph: ...

def _exchanges(graph: Graph) -> list[tuple[bool, str, str, str, str, str, list[int]]]: ...

def _with_bodies(graph: Graph, bodies: Mapping[str, Graph]) -> Graph: ...

def _gradients(graph: Graph, of: str, wrt: Sequence[str]) -> Graph: ...

def _distribute(graph: Graph, mesh: Sequence[tuple[str, int]], placements: Sequence[tuple[str, Mapping[str, int]]]) -> Graph: ...

def _interpret(graph: Graph, inputs: Sequence[Mapping[str, object]]) -> list[dict[str, numpy.ndarray]]: ...

def _graph_parts(graph: Graph) -> tuple[dict[str, Any], dict[str, tuple[str, list[int], numpy.ndarray]]]: ...

def _graph_of_parts(facts: dict[str, Any], tensors: Mapping[str, tuple[str, Sequence[int], numpy.ndarray]]) -> Graph: ...

def _ops() -> list[dict[str, Any]]: ...

class _GraphBuilder:
    """A graph under construction. Values are indices."""

    @overload
    def __init__(self, name: str, mesh: Sequence[tuple[str, int]]) -> None: ...

    @overload
    def __init__(self, graph: Graph) -> None: ...

    def input(self, name: str, dtype: str, shape: Sequence[int], split: Mapping[str, int]) -> int: ...

    def of_ranks(self, name: str, dtype: str, shape: Sequence[int], axis: str, terms: bool) -> int: ...

    def state(self, name: str, dtype: str, shape: Sequence[int], value: numpy.ndarray | None, split: Mapping[str, int]) -> int: ...

    def setting(self, name: str, value: float, least: float, most: float) -> int: ...

    def constant(self, array: numpy.ndarray, dtype: str, source: str) -> int: ...

    def op(self, name: str, operands: Sequence[int], attributes: dict[str, Any], refs: Mapping[str, int], source: str) -> list[int]: ...

    def gradients(self, loss: int, wrt: Sequence[int]) -> list[int | None]: ...

    def result(self, name: str, value: int) -> None: ...

    def next_state(self, name: str, value: int) -> None: ...

    def describe(self, value: int) -> tuple[str, str, list[int], dict[str, str]]: ...

    def named(self, name: str) -> int: ...

    def nodes(self) -> list[tuple[str, list[int], dict, str]]: ...

    def operands(self, value: int) -> list[int]: ...

    def insert_before(self, value: int | None) -> None: ...

    def replace(self, value: int, by: int) -> None: ...

    def remove_unused(self) -> None: ...

    def finish(self) -> Graph: ...

    @property
    def is_finished(self) -> bool: ...

    def __str__(self) -> str: ...

class Executable:
    """
    A compiled program on this rank, with its states. Call it with the inputs by name; it returns the results by
    name. All ranks call it together. Arrays have this rank's share, and are read without copies if they are in
    row-major order.

    A call that fails before the first step that writes a state, for example because an input has another shape,
    changes nothing. If it fails later, it may have updated only some states. Then every call raises an Error with
    the cause, until all states that the program updates have been assigned again. This applies to one rank. With
    several ranks, a call that fails on one rank fails on all ranks, and ends their communicator. Restart the job
    from a checkpoint.
    """

    def __call__(self, **inputs: Any) -> dict[str, numpy.ndarray]: ...

    def start(self, **inputs: Any) -> lockstep._base.values.StartedCall:
        """
        Begins a call, and returns its results by name. Reading a result waits for the call. On a GPU, the inputs
        of the next call are copied while this one computes. Inputs may be changed when this returns.

        At most two calls are in progress: a third waits for the first. An error of a call is raised by reading
        its results, or by the next use of the executable if that is earlier. The message then names the calls
        that may have failed. On a CPU the call has ended when this returns.
        """

    def joined(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, numpy.ndarray]]:
        """
        Calls the executable with each of this rank's batches, and then without rows until all ranks have no
        batches left. Yields the results of each call. Requires a step from `train_step(..., uneven=True)`. Ranks
        may have different numbers of batches, which need not be known. A call in which no rank has a row changes
        nothing, is not counted as a step, and yields no results. At the end it calls `balance`, if the step is one
        of `train_step(..., uneven="measured")`.

        Args:
          batches: the inputs of each call, by name.

        Example:
          >>> for result in exe.joined({"image": image, "label": label} for image, label in shard):
          ...     print(result["loss"], result["rows"])
        """

    def evaluate(self, batches: Iterable[Mapping[str, Any] | Sequence[Any]]) -> dict[str, float]:
        """
        Calls a program of `lockstep.evaluation` with each of this rank's batches. Returns the loss and the metrics
        over the samples of all ranks, as if they were one batch. Collective.

        Ranks may have different numbers of batches, or none, and a batch may have fewer rows than a rank's share.
        With uneven=False batches are full, and each rank has equally many.

        Args:
          batches: the inputs of each call: by name, or as a tuple in order: those of the model, those of the loss,
            and optionally `rows`.

        Returns:
          `loss` and each metric, NaN if nothing counts; and, unless uneven=False, `rows`, the number of rows.

        Raises:
          Error: a batch has other inputs, in which case the other ranks fail too; or the program is not an
            evaluation.

        Example:
          >>> evaluation.evaluate(lockstep.data.batches(images, labels, size=1000, world=world, last="pad"))
          {'loss': 0.2952, 'accuracy': 0.8931, 'rows': 10000}
        """

    def _find_nan(self, **inputs: Any) -> dict[str, Any] | None: ...

    def _world(self) -> Communicator: ...

    @property
    def _is_uneven(self) -> bool: ...

    def _check_assignable(self) -> None: ...

    def bind(self, *, states: Mapping[str, numpy.ndarray] | None = None, results: Mapping[str, numpy.ndarray] | None = None) -> None:
        """
        Uses arrays of the caller as the memory of states and results from now on, so that nothing is copied. A
        binding remains until the name is bound to another array.

        A bound state is the array: calls update it there, and the next call reads what is written there. Writing is
        an assignment, so with several ranks all of them write the same. Each call writes a bound result to its array,
        and returns that same array. To keep its contents, copy them before the next call.

        Args:
          states: NumPy arrays by name, in row-major order, with the state's type on this rank. Arrays of states that
            the program does not update may be read-only; then `state` cannot assign them either. Only on the CPU.
          results: NumPy arrays by name for results. A call raises an Error if such an array is read-only when the
            call begins.

        Raises:
          Error: an array has another type, or overlaps another array; a state is on a GPU, or ranks share it.

        Example:
          >>> weight, gradient = np.zeros((784, 10), np.float32), np.empty((784, 10), np.float32)
          >>> exe.bind(states={"weight": weight}, results={"grad/weight": gradient})
          >>> exe(x=x, y=y)["grad/weight"] is gradient
          True
        """

    @property
    def state(self) -> lockstep._base.values.State:
        """The states on this rank by name, for reading and assigning."""

    def _read_state(self, name: str) -> numpy.ndarray: ...

    def _read_state_into(self, name: str, array: numpy.ndarray) -> None: ...

    def _assign_state(self, name: str, value: object | None) -> None: ...

    def _state_names(self) -> list[str]: ...

    def _own_state_names(self) -> list[str]: ...

    def check_replicas(self) -> None:
        """
        Raises an Error if the bits of a state differ between its replicas. The Error names the first such state.
        Collective. Workers of asynchronous servers have no replicas.
        """

    def _save_onnx(self, path: str) -> None: ...

    def save(self, path: str | os.PathLike[str], *, step: int | None = None, metadata: Mapping[str, str | int | float] | None = None, background: bool = False) -> None:
        """
        Writes all states to a file, from which any number of ranks can continue. Collective, with equal arguments.

        Waits for calls in progress. Rank 0 writes, and its errors are raised on all ranks. The file appears complete
        or not at all, even if the process or the machine stops; until then an existing file remains. It is a
        safetensors file with the settings and with the states by name, as whole states even if ranks share them.

        Args:
          path: of the file.
          step: the number of the training step, which load() returns; exe.step if None.
          metadata: further values that load() returns, such as {"data_position": 1200}: names with texts, whole
            numbers, floats or bools.
          background: True returns when the states are copied, while a thread of rank 0 writes. The next save(),
            load() or saved() waits for the thread, and raises its error before doing anything else. The logger
            `lockstep` reports the error at once. A process that ends normally waits for the thread.

        Raises:
          Error: names the file and, if there are several ranks, the rank and its host.

        Example:
          >>> exe.save("training.safetensors", metadata={"epoch": 3})
          >>> exe.load("training.safetensors")
          {'step': 1200, 'epoch': 3}
        """

    def saved(self) -> None:
        """
        Waits until the last save(background=True) has been written. Raises its error, once. Collective.
        """

    def load(self, path: str | os.PathLike[str]) -> dict[str, str | int | float]:
        """
        Restores all states from a file of save(), which any number of ranks may have written. Collective; each rank
        reads the file.

        exe.step becomes that of the file, and so do settings, except those that follow a schedule. Settings that only
        the file or only the program has are ignored.

        Returns:
          The metadata given to save(), and `step`.

        Raises:
          Error: before anything is changed, if the file is damaged or differs between ranks, or if the program has
            other states, with the first difference, or a setting that does not allow the file's value.
        """

    def _saving(self) -> object: ...

    def _set_saving(self, saving: object | None) -> None: ...

    def _program(self) -> dict[str, str]: ...

    def _check_usable(self) -> None: ...

    def _doubt_states(self, why: str) -> None: ...

    def _whole_states(self) -> list[lockstep._base.values.ValueInfo]: ...

    def _read_whole(self, name: str) -> numpy.ndarray | None: ...

    def _assign_whole(self, name: str, bytes: numpy.ndarray) -> None: ...

    @property
    def shares(self) -> list[int]:
        """
        The rows of each batch that each rank along the axis "data" has, for a step of `train_step(..., uneven=True)`.
        Pass the executable to `lockstep.data.batches(..., shares=exe)`, which gives each rank its rows.
        """

    def balance(self, threshold: float = 0.05) -> bool:
        """
        Gives ranks shares of the batch by their speeds, for a step of `train_step(..., uneven="measured")`. Collective.

        The speed of a rank is its number of rows for the time of its kernels in the last calls, without the two slowest.
        All ranks find the same shares. If they make the slowest rank faster by more than `threshold`, the program is compiled
        again, which keeps states, settings and the number of the step, and for a moment needs the memory of both programs.
        Rank 0 logs a warning that names a rank that has become slow, with its host and the layer in which it did.
        `Trainer` and `joined` call this themselves.

        Args:
          threshold: at least 0. With 0.05, shares change if steps are expected to be faster by more than 5 %.

        Returns:
          True if the shares have changed, on all ranks alike. False also if too few calls have ended since the last change.

        Example:
          >>> for epoch in range(10):
          ...     for image, label in lockstep.data.batches(images, labels, size=128, world=world, shares=exe):
          ...         exe(image=image, label=label)
          ...     exe.balance()
        """

    def _share(self, shares: Sequence[int]) -> None: ...

    @property
    def _measured(self) -> lockstep._compile.shares.Measured | None: ...

    @_measured.setter
    def _measured(self, measured: lockstep._compile.shares.Measured | None, /) -> None: ...

    @property
    def step(self) -> int:
        """
        The number of calls so far, which is passed to schedules in the next call. A call that fails immediately
        is not counted. Assign it to resume training.
        """

    @step.setter
    def step(self, step: object | None) -> None: ...

    @property
    def settings(self) -> lockstep._compile.settings.Settings:
        """
        The numbers that may change between calls, by name, for reading and assigning.
        """

    def set(self, **values: float | Callable[[int], float]) -> None:
        """
        Sets settings from the next call on: exe.set(learning_rate=0.01). Nothing is recompiled. All ranks set the
        same values; otherwise the next call of a training step raises an Error that shows both values.

        A value is a number, or a function of `step`, such as one of lockstep.schedule, which is called before
        each call. The name is that in `settings` or its last part: learning_rate is optimizer/learning_rate.
        """

    def _set(self, name: str, value: float) -> None: ...

    def _check_setting(self, name: str, value: float) -> None: ...

    def _setting(self, name: str) -> float: ...

    def _setting_names(self) -> list[str]: ...

    @property
    def _schedules(self) -> dict[str, Callable[[int], float]]: ...

    @property
    def _wrong_labels(self) -> dict[str, tuple[list[int], str]]: ...

    @property
    def _exchanged(self) -> dict[str, dict[str, numpy.ndarray]]: ...

    @property
    def graph(self) -> Graph:
        """The local program of this rank, after all passes."""

    @property
    def steps(self) -> str:
        """The steps of a call, as text."""

    def summary(self, depth: int | None = None) -> str:
        """
        The number of steps of each kind in a call, and graph.summary(). A reference step is an op for which the
        backend has no kernel. It is slow.
        """

    @property
    def collectives(self) -> list[str]:
        """
        A line for each collective of a call, in order. Ranks compare these when they load.
        """

    @property
    def memory(self) -> dict[str, int]:
        """
        The bytes that this rank holds between and during calls: states, constants, the arena, in which everything else lies that
        a call computes, and the buckets of collectives. Inputs and results are the caller's.
        """

    @property
    def unregistered(self) -> dict[str, str]:
        """
        The buckets that NCCL has not registered, with the reason. Collectives copy them, which takes longer. Empty
        on CPUs.
        """

    @property
    def recomputed(self) -> dict[str, float]:
        """
        What a call computes again because of `memory_limit`: how many `kernels` run again, and the `operations` and the
        `bytes` read and written of those, each as a share of what the call computes without.
        """

    @property
    def strategy(self) -> lockstep.Strategy:
        """
        What it was compiled with: the options that all ranks have in common, and are not the default.
        """

    @property
    def passes(self) -> tuple[str, ...]:
        """
        The passes that made its program, in order, with those of compile(passes=…).
        """

    @property
    def _is_asynchronous(self) -> bool: ...

    def _staleness(self) -> dict[int, int]: ...

    def staleness(self) -> lockstep.kv.Staleness:
        """
        How late gradients were, of a program compiled with strategy="parameter_server": the updates by other workers between
        the pull that a gradient was made from and its push. It counts the updates of the whole job.
        """

    @property
    def threads(self) -> int:
        """The number of threads of this rank."""

    @property
    def counters(self) -> dict[str, float]:
        """
        Seconds of this thread since loading, in calls that were waited for and succeeded: total, in kernels, and
        in communication; and the number of calls, runs. On a GPU the times of kernels and communication are those
        of queuing them, unless compile(profile=True).
        """

    @property
    def profile(self) -> list[tuple[str, float]]:
        """
        The steps of a call in order, each with its seconds since loading, in calls that succeeded. On a GPU they
        are known only with compile(profile=True).
        """

    def _roofline(self, depth: int, measured: list[float] | None = None) -> dict[str, Any]: ...

    def roofline(self, depth: int = 2) -> lockstep._reports.roofline.Roofline:
        """
        The least time that the steps of a call take, by their operations and by the bytes that they read and write:
        on the GPU that it is compiled for, if its model is known, or on this processor, which is measured for about
        0.5 s. It prints as tables by kind of step and by layer, whose names have at most `depth` parts. After calls it
        also has the measured times, as in `profile`, and what is lost: the measured time less the least one. `report`
        has the same of the last calls. Communication is left out.

        Raises:
          Error: the model of the GPU is not known.
        """

    def __repr__(self) -> str: ...

    def _reduced_tensors(self) -> list[tuple[str, int, int, int, list[int]]]: ...

    def _record(self) -> dict[str, Any] | None: ...

    def report(self, calls: int | None = None, roofline: bool = False, depth: int = 2) -> lockstep._reports.report.Report:
        """
        A report of the time of the last calls on this rank: in kernels, in communication (exposed, or hidden
        behind kernels), and in waiting, by rank. In a program with parameter servers, pushes and pulls are
        exposed communication. The report then has the bytes sent to and received from servers and, if they are
        asynchronous, the staleness of gradients. It prints as a table. `compile(buckets=report)` uses it to
        choose buckets.

        Args:
          calls: the number of last calls; None is all recorded calls, a few hundred.
          roofline: also compare the steps with their least time, as `roofline` does. The time of the kernels is then
            that least time and what is lost beside it, by kind of step and by layer. The ceilings of a CPU are
            measured for about 0.5 s. On a GPU it needs compile(profile=True).
          depth: the number of parts that names of layers have at most.

        Raises:
          Error: no call has ended yet, or the times of steps or the ceilings of the GPU are not known.
        """

    def _explain(self) -> dict[str, Any]: ...

    def _given(self) -> Graph:
        """The one-rank program of which it was compiled."""

    def explain(self, depth: int | None = None) -> lockstep._graph.explain.Explanation:
        """
        The step as Graph.explain() of its program explains it, for this rank and its options, and with the times
        of the last calls in place of estimates, if there were calls. It is compiled again, which takes as long as
        compile(). Ranks may call it without each other.
        """

class _Started:
    """A call in progress."""

    def wait(self) -> dict[str, numpy.ndarray]: ...

def _status(job: str) -> str: ...

def _ranks_of_jobs(job: str) -> list[dict[str, Any]]: ...

def _trace(folder: str) -> tuple[str, str, list[dict[str, Any]]]: ...

def _set_recording(world: Communicator, on: bool) -> None:
    """Switches recording on or off, to measure its cost."""

def _explain(graph: Graph, backend: str, ranks: int, rank: int, options: _CompileOptions) -> dict[str, Any]: ...

def _compile_options() -> list[dict[str, Any]]: ...

def _named_texts(text: str) -> list[tuple[str, str]]: ...

def _print_named_texts(texts: Sequence[tuple[str, str]]) -> str: ...

def _strategy(texts: Sequence[tuple[str, str]]) -> str: ...

class _CompileOptions:
    """The options of compile (backends/compile_and_load.h)."""

    def __init__(self) -> None: ...

    def set(self, texts: Sequence[tuple[str, str]]) -> None:
        """Sets options by their texts."""

    def resolve(self, graph: Graph, backend: str, world: Communicator) -> None:
        """
        Sets the options that depend on the ranks. Raises an Error for options that no rank can compile.
        """

    @property
    def mesh(self) -> list[tuple[str, int]]: ...

    @property
    def has_servers(self) -> bool: ...

    def measured(self, measured: tuple[Sequence[tuple[str, int, int, int]], Mapping[str, Sequence[tuple[int, int]]]] | None) -> None:
        """
        Sets the measured times from which buckets are chosen; None clears them.
        """

    def passes(self, passes: Sequence[tuple[str, str, bool, str, bool, Callable[[Graph], Graph | str]]]) -> None:
        """Sets the passes that run among those of the pipeline."""

    def client(self, client: _ServerClient) -> None:
        """Sets the connection of this worker to the servers."""

def _slow_dtypes(model: Graph, backend: str, isa: str) -> list[str]: ...

def _agree_on_arguments(world: Communicator, error: str) -> None: ...

def _compile(graph: Graph, backend: str, world: Communicator, options: _CompileOptions, dump: str) -> Executable: ...

def _verify(graph: Graph, backend: str, ranks: int, options: _CompileOptions, shrink: bool) -> list[str]: ...

def _update_step(optimizer: tuple[str, str, Mapping[str, bool | int | float | str | Sequence[float]], Sequence[str]], dtype: str, shape: Sequence[int], rescale: float) -> Graph: ...

def _hash(array: numpy.ndarray) -> int: ...

def _serve(timeout: float) -> None: ...

def _servers() -> _ServerClient | None: ...

class _ServerClient:
    @property
    def rank(self) -> int: ...

    @property
    def workers(self) -> int: ...

    @property
    def servers(self) -> int: ...

    def init(self, key: str, dtype: str, shape: Sequence[int], value: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)], synchronous: bool, max_staleness: int, bigarray_bound: int) -> None: ...

    def type_of(self, key: str) -> tuple[str, list[int]]: ...

    def pieces(self, key: str) -> list[tuple[str, list[int]]]: ...

    def push(self, gradients: Sequence[tuple[str, Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu', writable=False)]]]) -> None: ...

    def pull(self, values: Sequence[tuple[str, Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu')]]]) -> None: ...

    def pull_rows(self, key: str, rows: Sequence[int], values: Annotated[NDArray[numpy.uint8], dict(order='C', device='cpu')]) -> None: ...

    def flush(self) -> None: ...

    def exchange(self, text: str) -> dict[int, str]: ...

    def set_update(self, key: str, texts: Sequence[str]) -> None: ...

    def set(self, setting: str, value: float) -> int: ...

    def states(self, key: str) -> dict[str, tuple[str, list[int]]]: ...

    def read_state(self, key: str, state: str) -> object: ...

    def write_state(self, key: str, state: str, value: object) -> None: ...

    def staleness(self) -> dict[int, int]: ...

def _plan(graph: Graph, mesh: Sequence[tuple[str, int]], placements: Sequence[tuple[str, Mapping[str, int]]], operations: float, bandwidth: float, links: Mapping[str, tuple[float, float]], memory_limit: int | None) -> dict[str, Any]: ...

def _set_cuda_folders(folders: Sequence[bytes]) -> None: ...

def _cpu_fingerprint() -> str: ...

def _mpi_version() -> str: ...

def _time_all_reduce(world: Communicator, bytes: int, calls: int) -> list[float]: ...

def _measure_costs(world: Communicator, mesh: Sequence[tuple[str, int]]) -> list[list[tuple[int, int]]]: ...

def _travel(name: str, bytes: int, hosts: int, ranks_a_host: int, latency: float = 2.5e-05, bandwidth: float = 1250000000.0) -> tuple[int, int]: ...

def _networks() -> list[dict[str, Any]]: ...

def _gpus() -> list[dict[str, Any]]: ...

def _cuda_libraries() -> list[dict[str, str]]: ...

_EXACT_BYTES: int = 32

def _exact_of_floats(values: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], dtype: str, result: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Writes numbers in float64 as exact ones: the simplest fraction that rounds to each in `dtype`.
    """

def _exact_of_integers(values: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], result: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Writes int64 as exact numbers."""

def _exact_random(seed: int, result: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Writes random numbers that follow from the seed."""

def _exact_elementwise(op: str, operands: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], result: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Writes the result of an elementwise op, which is a random function if exact arithmetic does not have it.
    """

def _exact_compare(x: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], y: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], result: Annotated[NDArray[numpy.int8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Writes -1 where x < y, 0 where they are equal, 1 where x > y, 2 where one is a NaN, 3 where both are.
    """

def _exact_to_integers(x: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], unknown: int, result: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """Writes the integer that each number is, or `unknown`."""

def _exact_multiply(a: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], b: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], batch: int, rows: int, inner: int, columns: int, result: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')]) -> None:
    """
    Writes the products of matrices: a[batch, rows, inner] b[batch, inner, columns].
    """
