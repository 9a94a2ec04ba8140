"""The compiled part of the package lockstep."""

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence
)
import os
from typing import Annotated, Any, NoReturn

import numpy
from numpy.typing import NDArray

import lockstep._base.values
import lockstep._compile.settings
import lockstep._reports.report
import lockstep.kv


class Communicator:
    """
    One rank's end of a job: who it is, and how it talks to the others. Made by mpi(), single() or in_process();
    an argument of compile() and of data.batches(). One thread at a time uses a Communicator.
    """

    @staticmethod
    def mpi(timeout: float = 600.0, between_hosts: str = 'tcp', order: str = 'any', routes: str = 'measured') -> Communicator:
        """
        The ranks that `mpirun` started; one rank without it. Initialises MPI if nobody has. In a job with parameter servers these are
        the workers: the environment's LOCKSTEP_WORKERS and LOCKSTEP_SERVERS say how many ranks are what.

        An exception that ends this process makes the other ranks fail with an Error that names this one, instead of waiting.

        Args:
          timeout: how many seconds a call waits for a rank that is alive and does not arrive.
          between_hosts: what carries messages between hosts: "tcp", connections of our own, through the network interfaces
            that the environment's LOCKSTEP_INTERFACE names ("eth0", "ib,eth": begins of names), or all; or "mpi", which knows
            networks beside TCP where a cluster has them. Equal on all ranks.
          order: of the additions of a reduction. "rank" is that of the ranks, however they are spread over hosts, so that another
            placement gives the same bits. With "any" hosts of several ranks may add their own first, and many hosts as they stand in a
            ring or a tree, which is quicker; all ranks, and all runs with that placement and the same routes, still have the same bits.
            Equal on all ranks.
          routes: by what the routes between more than two hosts are chosen: "measured", what the network takes, which is measured when
            these hosts first have a communicator, in a second at most, and kept in ~/.cache/lockstep/networks of rank 0; or "default",
            a network of 10 Gb/s, whatever there is. `lockstep doctor` shows them. Equal on all ranks.
        """

    @staticmethod
    def single() -> Communicator:
        """A world of one rank: nothing is communicated."""

    @staticmethod
    def in_process(n: int, timeout: float = 600.0) -> list[Communicator]:
        """
        n communicators of one world, one for each of n threads of this process.

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
        """How ranks talk: "in_process", "shared_memory", "mpi"."""

    @property
    def ranks_on_this_host(self) -> int:
        """How many ranks run on this rank's host, itself included."""

    def host(self, rank: int) -> str:
        """The name of the host on which a rank runs."""

    def __repr__(self) -> str: ...

    def barrier(self) -> None:
        """Returns when all ranks have called it."""

    def gather_bytes(self, bytes: bytes, label: str = 'gather_bytes') -> list[bytes]:
        """
        Every rank's bytes, by rank, on every rank. Where ranks wait for one that does not come, or that calls something else, the
        message has the label, which is the same on all.
        """

    def abort(self, reason: str) -> None:
        """
        Makes what the other ranks wait in fail, with an Error that names this rank and the reason.
        An exception that ends a process under mpirun does this by itself.
        """

    def all_reduce(self, array: Any, kind: str = 'sum') -> numpy.ndarray:
        """
        The sum of all ranks' arrays, element by element, or what else `kind` says, on every rank: a new array of the same shape
        and dtype. All ranks call it, with one shape, dtype and kind.

            loss = float(world.all_reduce(loss, "mean"))

        Args:
          array: of NumPy, of booleans, integers or real floats (bfloat16 is that of ml_dtypes); or what NumPy makes one of: a number,
            which is f64, i64 or bool, a list, or a tensor of torch in the CPU's memory, whose gradient does not follow.
          kind: "sum", "mean", "min", "max" or "prod". Integers are added modulo 2^bits, and their mean is truncated; of
            booleans "sum" and "max" say whether any is True, the others whether all are.

        Raises:
          Error: of what is no such array; or naming two ranks that call something else or with other shapes, or a rank that has
            died or does not come.
        """

    def broadcast(self, array: Any, root: int = 0) -> numpy.ndarray:
        """
        Rank root's array on every rank, as a new one. All ranks call it, with one root and arrays of one shape and dtype, of which
        the root's alone is read. Arrays and errors are those of `all_reduce`.
        """

    def all_gather(self, array: Any) -> numpy.ndarray:
        """
        All ranks' arrays, by rank, on every rank: a new array [size, *shape]. All ranks call it, with one shape and dtype. Arrays
        and errors are those of `all_reduce`.
        """

class _Flights:
    """The arrays of a communicator's collectives in flight."""

def _allocate(world: Communicator, bytes: int, label: str) -> Any:
    """
    uint8[bytes] of registered memory, zero at first. All ranks call it, each with its own size.
    """

def _split(world: Communicator, color: int, label: str) -> Communicator:
    """
    A communicator of the ranks that pass the same color, at least 0. All ranks call it.
    """

def _start_all_reduce(world: Communicator, input: Any, output: Any, dtype: str, kind: str, label: str) -> int:
    """
    Starts one, and returns its ticket for _wait. Arrays are in row-major order, of one number of elements; input may be output.
    Between start and wait nobody else may use them.

    Args:
      dtype: "f32", "bf16", ...: of the elements, whatever NumPy takes them for; their bytes count.
      kind: "sum", "mean", "min", "max", "prod".
      label: of the call in messages; equal on all ranks.
    """

def _start_broadcast(world: Communicator, input: Any, output: Any, dtype: str, root: int, label: str) -> int:
    """The same of a broadcast; only rank root's input is read."""

def _start_all_gather(world: Communicator, input: Any, output: Any, dtype: str, label: str) -> int:
    """
    The same of an all-gather: output has world.size times input's elements.
    """

def _start_all_to_all(world: Communicator, input: Any, output: Any, dtype: str, label: str) -> int:
    """
    The same of an all-to-all: part r of input goes to rank r, as part world.rank.
    """

def _start_reduce_scatter(world: Communicator, input: Any, output: Any, dtype: str, kind: str, label: str) -> int:
    """
    The same of a reduce-scatter: input has world.size times output's elements.
    """

def _wait(world: object, ticket: int) -> None:
    """
    Returns when the collective is complete. For each ticket once, in any order.
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
        """The data inputs, given at each call."""

    @property
    def states(self) -> list[lockstep._base.values.ValueInfo]:
        """Trained variables, statistics and optimizer state."""

    @property
    def settings(self) -> dict[str, float]:
        """
        The numbers that may change between calls, such as optimizer/learning_rate, with the values that they have at first.
        """

    @property
    def results(self) -> list[lockstep._base.values.ValueInfo]:
        """What a call returns."""

    @property
    def trained(self) -> list[str]:
        """
        The names of the states that an optimizer updates; none in a model, which a training step is made of.
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
        """What the import changed, a sentence each."""

    @property
    def _metadata(self) -> dict[str, str]: ...

    @property
    def _supposed_parameters(self) -> list[str]: ...

    def _facts(self) -> str: ...

    def _nodes(self) -> list[dict[str, Any]]: ...

    def summary(self, depth: int | None = None) -> str:
        """
        What the graph takes, holds, trains and gives, a line each, with counts; and a table of its layers.

        A layer is what the nodes of one module of the model have in common in their sources: /block/conv of /block/conv/Conv; in
        files of PyTorch's exporter encoder.0.linear1 of torch:encoder.0.linear1/node_MatMul_91, or relu_3() of a function outside
        the model's modules. Of each: the type of its last result, the parameters that it is the first to use, operations forwards and for gradients, and the
        bytes of all results of its nodes, which is not the memory that a compiled program needs. An addition, a comparison or a
        function such as exp of one element is one operation, a product that is added to a sum two (so one multiply-accumulate is
        two); a reduction has one for each element that it reads, moving elements none. Normalisations and softmax that are one node
        count one for each element. Of a step of micro-batches types and bytes are those of one, operations those of all.

        Args:
          depth: how many parts of a layer's name count, between slashes, and between dots in a module's name; layers that have these in common are one. All if None.
        """

    def save_svg(self, path: str | os.PathLike[str], depth: int | None = None) -> None:
        """
        Draws the graph, a box for each layer as summary() has them, into a file. Needs Graphviz' program dot. Of a step also the
        optimizer and, where the graph has been distributed, the collectives, those of a layer as one; dashed lines are gradients.
        """

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Writes the graph to a file, which load_graph() reads: its text, the initial values of its states, its schedules, and the
        model that it was imported from, so that what was loaded has with_dims() and can be saved as ONNX.

        The file appears complete or not at all. The calling process writes; of several ranks one is enough.

        Raises:
          Error: if the file cannot be written; or if a setting follows a function that is none of lockstep.schedule or lockstep.average,
            which no file can hold. pickle can, if it finds the function by its name.

        Example:
          >>> step.save("step.graph")
          >>> exe = lockstep.compile(lockstep.load_graph("step.graph"), world=world)
        """

    def __reduce__(self) -> tuple[Any, ...]: ...

    def with_dims(self, *one: Mapping[str, int], **dims: int) -> Graph:
        """
        The same model with other extents of its symbolic dimensions, such as a batch of one sample: model.with_dims(batch=1).

        The model is the one that `load_onnx` or `from_torch` made, or `load_weights` of that. Nothing is read or exported again, and the states
        of the new graph have the names, shapes and values of those of this one, whose results it computes for the same rows.

        Args:
          dims: extents by name, as of `load_onnx`; or in place of them one dict, whose names may be places: {"x:0": 1}. Dimensions
            that are not named keep their extents.

        Raises:
          Error: if there is no dimension of that name, or the model cannot have that extent; or if the graph was made of a model, such as a training
            step, or of a text.

        Example:
          >>> one = lockstep.compile(model.with_dims(batch=1))
          >>> one.state.assign(exe.state)
          >>> one(image=image[None])["logits"]
        """

    def initial_value(self, state: str) -> numpy.ndarray:
        """The value with which a state starts; zeros unless the model gives one."""

    def __str__(self) -> str: ...

    def short(self) -> str:
        """
        The graph for people: a line for each node, in which a fusion is the list of its ops, and no sources. str() is the exact text, which parse() reads.
        """

    def diff(self, other: Graph) -> str:
        """
        What the text of `other` has and this one has not, and the reverse, as a unified diff; numbered values that correspond have one number. Empty if the graphs are equal.
        """

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows: short()."""

    def __repr__(self) -> str: ...

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Nothing: a TypeError that says what runs a graph."""

def _parse(text: str) -> Graph: ...

def _load_onnx(path: str, bytes: bytes | None, dims: Mapping[str, int], split: Mapping[str, int] | None, values: Mapping[str, object], constants: Sequence[str], states: Sequence[str]) -> Graph: ...

def _onnx_operators() -> list[tuple[str, int, int]]: ...

def _with_values(model: Graph, values: Mapping[str, object]) -> Graph: ...

def _with_dims(model: Graph, dims: Mapping[str, int]) -> Graph: ...

def _evaluation(model: Graph, losses: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, bool | int | float | str | Sequence[float]], float]], metrics: Sequence[tuple[str, Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, bool | int | float | str | Sequence[float]], float]]]], keep_results: bool, uneven: bool) -> Graph: ...

def _train_step(model: Graph, losses: Sequence[tuple[str, Sequence[str], Sequence[str], Mapping[str, bool | int | float | str | Sequence[float]], float]], optimizers: Sequence[tuple[str, str, Mapping[str, bool | int | float | str | Sequence[float]], Sequence[str]]], clipping: tuple[str, float], average: bool, trained: Sequence[str], frozen: Sequence[str], keep_results: bool, accumulate: int, statistics: str, dropout: bool, seed: int, precision: str, uneven: bool) -> Graph: ...

def _gradients(graph: Graph, of: str, wrt: Sequence[str]) -> Graph: ...

def _distribute(graph: Graph, mesh: Sequence[tuple[str, int]], placements: Sequence[tuple[str, Mapping[str, int]]]) -> Graph: ...

def _interpret(graph: Graph, inputs: Sequence[Mapping[str, object]]) -> list[dict[str, numpy.ndarray]]: ...

def _graph_parts(graph: Graph) -> tuple[dict[str, Any], dict[str, tuple[str, list[int], numpy.ndarray]]]: ...

def _graph_of_parts(facts: dict[str, Any], tensors: Mapping[str, tuple[str, Sequence[int], numpy.ndarray]]) -> Graph: ...

class Executable:
    """
    A compiled program on this rank, with its state. Called with the inputs by name, it returns the results by name.
    All ranks call it together. Arrays are this rank's share, and are read without copies if they are in row-major order.

    A call that fails before the first step which writes a state, such as for an input of another shape, changes nothing. One that fails later may have updated some states and not others: every call then raises an Error with the cause, until all states that the program updates have been assigned again. So it is on one rank. Of several ranks a call that fails on one, whatever for, fails on all, and ends their communicator: start the job anew, from a checkpoint.
    """

    def __call__(self, **inputs: Any) -> dict[str, numpy.ndarray]: ...

    def start(self, **inputs: Any) -> lockstep._base.values.StartedCall:
        """
        Begins a call, and returns its results by name: whoever looks at one waits for it. So on a GPU the next call's inputs are
        copied while this one computes. Inputs may be changed as soon as it returns.

        Two calls are under way at most: a third waits for the first. What a call meets is raised by what is returned here, and
        by the next use of the executable if that comes first, which then names the calls that it may have been. On a CPU the call
        has ended when this returns.
        """

    def joined(self, batches: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, numpy.ndarray]]:
        """
        Calls with each of this rank's batches, and without rows when they have run out, until all ranks' have; gives the results of
        each call. Of a step that `train_step(..., uneven=True)` made. Ranks may have different numbers of batches, and nobody counts
        them before. A call in which no rank has a row changes nothing, is no step, and has no result here.

        Args:
          batches: the inputs of each call, by name.

        Example:
          >>> for result in exe.joined({"image": image, "label": label} for image, label in shard):
          ...     print(result["loss"], result["rows"])
        """

    def evaluate(self, batches: Iterable[Mapping[str, Any] | Sequence[Any]]) -> dict[str, float]:
        """
        Calls a program of `lockstep.evaluation` with each of this rank's batches, and returns the loss and the metrics of all samples of
        all ranks, as if they had been one batch. All ranks call it.

        Ranks may have different numbers of batches, or none, and a batch fewer rows than a rank's share. With uneven=False batches are full,
        and equally many on each rank.

        Args:
          batches: the inputs of each call: by name, or as a tuple in order, the model's, the loss's, and perhaps `rows`.

        Returns:
          `loss` and each metric, NaN where nothing counts; and, but for uneven=False, `rows`, how many there were.

        Raises:
          Error: of a batch with other inputs, of which the other ranks hear; or if the program is no evaluation.

        Example:
          >>> evaluation.evaluate(lockstep.data.batches(images, labels, size=1000, world=world, last="pad"))
          {'loss': 0.2952, 'accuracy': 0.8931, 'rows': 10000}
        """

    def _world(self) -> Communicator: ...

    def _check_assignable(self) -> None: ...

    def bind(self, *, states: Mapping[str, numpy.ndarray] | None = None, results: Mapping[str, numpy.ndarray] | None = None) -> None:
        """
        Lets states and results lie in arrays of the caller's from now on, so that nothing is copied. What is bound stays so, until
        the name is bound to another array.

        A state then is the array: what calls make of it is there, and what is written there is what the next call reads. That is as
        an assignment; of several ranks all make the same one. A result is written there in each call, which returns the same array
        each time: who wants to keep what is in it copies that before the next call.

        Args:
          states: NumPy arrays by name, in row-major order and of the state's type on this rank. Those that the program does not
            update may be read-only: then they cannot be assigned by `state`, either. On the CPU alone.
          results: the same of results. Where such an array is read-only when a call begins, the call is an error.

        Raises:
          Error: for arrays of another type, or that lie in one another; a state on a GPU, or one that ranks share.

        Example:
          >>> weight, gradient = np.zeros((784, 10), np.float32), np.empty((784, 10), np.float32)
          >>> exe.bind(states={"weight": weight}, results={"grad/weight": gradient})
          >>> exe(x=x, y=y)["grad/weight"] is gradient
          True
        """

    @property
    def state(self) -> lockstep._base.values.State:
        """The state on this rank by name: read it, assign it."""

    def _read_state(self, name: str) -> numpy.ndarray: ...

    def _assign_state(self, name: str, value: object | None) -> None: ...

    def _state_names(self) -> list[str]: ...

    def _own_state_names(self) -> list[str]: ...

    def check_replicas(self) -> None:
        """
        Raises an Error that names the first state whose bits differ between ranks, if there is one. All ranks call it. Workers of asynchronous servers have no replicas.
        """

    def _save_onnx(self, path: str) -> None: ...

    def save(self, path: str | os.PathLike[str], *, step: int | None = None, metadata: Mapping[str, str | int | float] | None = None, background: bool = False) -> None:
        """
        Writes all states to a file, from which any number of ranks goes on. All ranks call it, with equal arguments.

        Calls that were started are waited for. Rank 0 writes, and what it meets is raised on all ranks. The file appears complete
        or not at all, whenever the process or the machine stops; one that was there before stays until then. It is a safetensors
        file: the states by name, each as a whole, also where ranks share it; and the settings.

        Args:
          path: of the file.
          step: the number of the training step, which load() gives back; exe.step if None.
          metadata: what else load() gives back, such as {"data_position": 1200}: names with text, whole numbers, floats or bools.
          background: True returns as soon as the states are copied, and a thread of rank 0 writes. The next save(), load() or
            saved() waits for it, and raises its error instead of doing anything else; a line of the logger `lockstep` tells of it at
            once. A process that ends normally writes first.

        Raises:
          Error: naming the file and, of several ranks, the rank and its host.

        Example:
          >>> exe.save("training.safetensors", metadata={"epoch": 3})
          >>> exe.load("training.safetensors")
          {'step': 1200, 'epoch': 3}
        """

    def saved(self) -> None:
        """
        Returns when the last save(background=True) has been written; raises its error, once. All ranks call it.
        """

    def load(self, path: str | os.PathLike[str]) -> dict[str, str | int | float]:
        """
        Takes all states from a file that save() wrote, on any number of ranks. All ranks call it, and each reads the file.

        exe.step becomes that of the file. So do settings, but for those that follow a schedule; what only one of the two has is left.

        Returns:
          The metadata that save() got, and `step`.

        Raises:
          Error: before anything is changed, if the file is damaged or not the same on all ranks, or if the program has other states,
            with the first difference, or a setting that cannot have the file's value.
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
    def step(self) -> int:
        """
        How many calls there were: the number that schedules are given for the next one. A call that fails at once is not counted.
        Assigned, when training goes on where it was left.
        """

    @step.setter
    def step(self, step: object | None) -> None: ...

    @property
    def settings(self) -> lockstep._compile.settings.Settings:
        """
        The numbers that may change between calls, by name, and their present values: read them, assign them.
        """

    def set(self, **values: float | Callable[[int], float]) -> None:
        """
        Gives settings new values from the next call on: exe.set(learning_rate=0.01). Nothing is compiled anew. All ranks set the
        same; where they did not, the next call of a training step raises an Error that shows both values.

        A value is a number; or a function of `step`, such as one of lockstep.schedule, which is called before each call. The name
        is that in `settings`, or its last part: learning_rate is optimizer/learning_rate.
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
    def graph(self) -> Graph:
        """The program of a rank, after all passes."""

    @property
    def steps(self) -> str:
        """The steps that a call runs, as text."""

    def summary(self, depth: int | None = None) -> str:
        """
        How many steps of which kind a call runs, and graph.summary(). A reference step is an op for which the backend has no kernel:
        it is slow.
        """

    @property
    def collectives(self) -> list[str]:
        """
        A line for each collective of a call, in order: what ranks compare when they load.
        """

    @property
    def memory(self) -> dict[str, int]:
        """
        The bytes that this rank holds between and during calls: states, constants, the arena, in which everything else lies that
        a call computes, and the buckets of collectives. Inputs and results are the caller's.
        """

    @property
    def recomputed(self) -> dict[str, float]:
        """
        What a call computes again because of `memory_limit`: how many `kernels` run again, and the `operations` and the
        `bytes` read and written of those, each as a share of what the call computes without.
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
        """Threads of this rank."""

    @property
    def counters(self) -> dict[str, float]:
        """
        Seconds of this thread since loading, in calls that were waited for and succeeded: total, in kernels, in communication;
        and their number, runs. On a GPU kernels and communication are the time that it takes to queue them, but with
        compile(profile=True).
        """

    @property
    def profile(self) -> list[tuple[str, float]]:
        """
        The steps of a call in order, each with its seconds since loading, in calls that succeeded. On a GPU they are known
        with compile(profile=True) alone.
        """

    def __repr__(self) -> str: ...

    def _reduced_tensors(self) -> list[tuple[str, int, int, int, list[int]]]: ...

    def _record(self) -> dict[str, Any] | None: ...

    def report(self, calls: int | None = None) -> lockstep._reports.report.Report:
        """
        Where the time of the last calls went, on this rank: in kernels, in communication that was exposed or hidden behind them, and in
        waiting, for which rank. Of a program whose weights parameter servers have, pushes and pulls are exposed communication; it
        says how many bytes went there and came from there, and, if asynchronous, how late gradients were. Printed, a table;
        `compile(buckets=report)` chooses buckets by it.

        Args:
          calls: how many of the last calls; None: as many as are recorded, a few hundred.
        """

class _Started:
    """A call that was started."""

    def wait(self) -> dict[str, numpy.ndarray]: ...

def _status(job: str) -> str: ...

def _trace(folder: str) -> tuple[str, str, list[dict[str, Any]]]: ...

def _set_recording(world: Communicator, on: bool) -> None:
    """For measuring what it costs."""

class _CompileOptions:
    """The options of compile (backends/compile_options.h)."""

    def __init__(self) -> None: ...

    @property
    def mesh(self) -> list[tuple[str, int]]: ...

    @mesh.setter
    def mesh(self, arg: Sequence[tuple[str, int]], /) -> None: ...

    @property
    def placements(self) -> list[tuple[str, dict[str, int]]]: ...

    @placements.setter
    def placements(self, arg: Sequence[tuple[str, Mapping[str, int]]], /) -> None: ...

    @property
    def shard_optimizer(self) -> bool: ...

    @shard_optimizer.setter
    def shard_optimizer(self, arg: bool, /) -> None: ...

    @property
    def shared_weights(self) -> bool: ...

    @shared_weights.setter
    def shared_weights(self, arg: bool, /) -> None: ...

    @property
    def wire(self) -> str: ...

    @wire.setter
    def wire(self, arg: str, /) -> None: ...

    @property
    def bucket_bytes(self) -> int | None: ...

    @bucket_bytes.setter
    def bucket_bytes(self, arg: int | None, /) -> None: ...

    @property
    def replicated(self) -> bool: ...

    @replicated.setter
    def replicated(self, arg: bool, /) -> None: ...

    @property
    def optimize(self) -> bool: ...

    @optimize.setter
    def optimize(self, arg: bool, /) -> None: ...

    @property
    def tf32(self) -> bool: ...

    @tf32.setter
    def tf32(self, arg: bool, /) -> None: ...

    @property
    def threads(self) -> int: ...

    @threads.setter
    def threads(self, arg: int, /) -> None: ...

    @property
    def isa(self) -> str: ...

    @isa.setter
    def isa(self, arg: str, /) -> None: ...

    @property
    def tune(self) -> bool: ...

    @tune.setter
    def tune(self, arg: bool, /) -> None: ...

    @property
    def memory_limit(self) -> int: ...

    @memory_limit.setter
    def memory_limit(self, arg: int, /) -> None: ...

    def factors(self, operations: float) -> None:
        """Operations for a byte, 0 for none; without a call the hosts decide."""

    def buckets(self) -> None:
        """Buckets go by a report."""

    def measured(self, measured: tuple[Sequence[tuple[str, int, int, int]], Mapping[str, Sequence[tuple[int, int]]]] | None) -> None:
        """
        The report, with what collectives take; None where it says nothing of these ranks.
        """

    def servers(self, synchronous: bool, max_staleness: int, bigarray_bound: int) -> None:
        """Parameter servers update what is trained."""

    def client(self, client: _ServerClient) -> None:
        """This worker's end of the servers."""

    def run(self, check_every: int, profile: bool) -> None:
        """How calls run."""

    def resolve(self, graph: Graph, backend: str, world: Communicator) -> None:
        """Fills in what depends on the ranks, and refuses what does not go."""

def _slow_dtypes(model: Graph, backend: str, isa: str) -> list[str]: ...

def _agree_on_arguments(world: Communicator, error: str) -> None: ...

def _compile(graph: Graph, backend: str, world: Communicator, options: _CompileOptions, dump: str) -> Executable: ...

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
