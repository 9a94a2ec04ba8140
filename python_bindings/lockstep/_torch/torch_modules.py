"""Conversion from PyTorch modules and back. Imports torch only when called."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _lockstep
from .._base import checks
from .._base.arrays import bits_of_bfloat16
from .._base.errors import Error
from .._base.log import warn_once
from .._checkpoint.checkpoint import on_all_ranks
from .._graph.graph_file import as_bytes, of_bytes
from .._graph.graphs import load_onnx
from .._lockstep import Communicator, Executable, Graph
from .cache import cached, folder_of
from .check import Traced, check_after, checked_export
from .draws import watched_generators
from .errors import reason_of, with_place
from .metadata import write_metadata
from .notes import note_options
from .parts import check_parts, unwrapped
from .places import place_of
from .resize import resize_as_pytorch_does
from .results import check_names, name_results

if TYPE_CHECKING:
    import torch

# A protobuf message has at most 2 GiB. Beyond this size, parameters are passed in files.
_MAX_BYTES_IN_MEMORY = 1 << 30


def from_torch(
    module: torch.nn.Module,
    example_inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any],
    dims: Mapping[str, int] | None = None,
    *,
    split: Mapping[str, int] | None = None,
    dynamic_shapes: Any = None,
    output_names: Sequence[str] = (),
    own_gradients: str | None = None,
    world: Communicator | None = None,
    cache: str | os.PathLike[str] | bool = False,
) -> Graph:
    """Imports a PyTorch module, by `torch.onnx.export(dynamo=True)`, as the one-rank program over the global batch.

        model = ls.from_torch(module, torch.randn(2, 784), dims={"batch": 128}, output_names=["logits"])

    States have the names of the module's parameters and running statistics. A parameter with several names has the
    first one, and a parameter that `forward` does not use never changes. All other tensors are constants: parameters
    that require no gradient, other buffers, attributes, and tensors that `forward` makes. Inputs have the names of the
    parameters of `forward`. Nothing is folded or fused, so that batch normalisation can be trained.

    A feature that a file cannot represent is an error, so that a training step equals that of PyTorch: custom
    gradients, hooks, parameters that share elements, buffers that change in `forward`. A value without gradient, by
    `detach()`, `.data`, `no_grad()` or `padding_idx`, has no gradient here either. For a network whose weights the
    program sets itself, such as a moving average of another network, keep `requires_grad` and detach it in `forward`.
    Its parameters are then states: `exe.state[name] = value`.

    Args:
      module: in the mode, training or evaluation, in which its parts are to be imported. The modules of `torch.compile`,
        `DataParallel` and `DistributedDataParallel` are replaced by the module inside.
      example_inputs: the inputs of `forward`, by position or by name. All inputs that have rows need the same number of
        rows, and the graph does not depend on it. With one row or none, torch cannot export some modules, such as a
        batch normalisation in training mode.
      dims: as for `load_onnx`. A name, such as "batch", stands for dimension 0 of all example inputs that have one.
        `Graph.with_dims` changes the extents of the graph later, without another export. A module that branches on the
        number of rows, as by `len(x)` or `if x.shape[0] > 1`, is imported for one number only, which its example inputs
        must have.
      split: as for `load_onnx`.
      dynamic_shapes: as for `torch.export`, if other dimensions are symbolic. `dims` then gives their extents by name.
      output_names: names of the results, in order. By default the keys of a dict that `forward` returns, or the fields
        of a named tuple.
      own_gradients: "ignore" imports a module with an `autograd.Function`, hooks, or numbers read from values
        (`item()`), with the gradients of its operators. This is for inference. None refuses such a module.
      world: the ranks that call this together. Only rank 0 exports its module. The others receive the graph, with the
        weights of rank 0. An error of rank 0 is raised on all ranks, and so is an export that takes longer than the
        communicator's timeout. If None, each rank exports its own module.
      cache: a folder of graphs that were exported before, or True for ~/.cache/lockstep/torch. A module whose graph is
        there is not exported again, which would take seconds to minutes. Its weights have their current values. A graph
        is found by everything on which it depends: the attributes of the module and its parts, including hooks; the
        code of their classes and functions, and of functions that these call; the types of parameters and buffers, and
        the values of constants; the example inputs, without the values of tensors; the options; the versions of Python,
        torch, NumPy, ONNX and this package. Changes of other data that `forward` reads are not detected: lists, dicts,
        tensors and objects that are globals or attributes of classes, files, and the environment. Empty the folder
        after such a change.

    Raises:
      Error: torch cannot export the module. The message is the reason, and the `__context__` of the error has torch's
        full report. Also the errors of `load_onnx`. With `cache`, an attribute of the module is an object whose changes
        cannot be detected.
    """
    torch = _torch("from_torch")
    module = unwrapped(checks.instance("from_torch: the module", module, torch.nn.Module, "a torch.nn.Module"))
    extents = checks.extents("dims", {} if dims is None else dims)
    checks.choice("own_gradients", own_gradients, (None, "ignore"))
    given = _apart(_by_name(module, example_inputs))
    _check_places(given, extents)
    finds_batch = dynamic_shapes is None
    if finds_batch:
        dynamic_shapes = _batch_shapes(given, extents)
    names = checks.names("output_names", output_names)
    check_names(names)
    options = (extents, split, dynamic_shapes, names, own_gradients == "ignore", finds_batch)
    make = partial(_export, module, given, *options)
    folder = folder_of(cache)
    if folder is not None:
        make = partial(cached, folder, module, given, options, make)
    if world is None:
        return make()
    return _of_rank_0(checks.instance("from_torch: world", world, Communicator, "a lockstep.Communicator"), make)


def _of_rank_0(world: Communicator, make: Callable[[], Graph]) -> Graph:
    """Returns the result of `make` on rank 0 to all ranks, read from the same bytes, so that the graphs are equal."""
    call, made = "from_torch(world=...)", [b""]

    def on_rank_0() -> str:
        if world.rank == 0:
            made[0] = as_bytes(make())
        return str(len(made[0]))

    # Ranks that wait for 10 s report the text.
    content = np.empty(int(on_all_ranks(world, f"{call}: rank 0 exports the module", on_rank_0)[0]), np.uint8)
    if world.rank == 0:
        content[:] = np.frombuffer(made[0], np.uint8)
    _lockstep._wait(world, _lockstep._start_broadcast(world, content, content, "u8", 0, call))
    return of_bytes(content.tobytes(), {})


def _export(
    module: torch.nn.Module,
    given: Mapping[str, Any],
    extents: Mapping[str, int],
    split: Mapping[str, int] | None,
    dynamic_shapes: Any,
    names: list[str],
    ignores: bool,
    finds_batch: bool,
) -> Graph:
    """Exports with symbols for the batch; only for the example inputs' batch if the module branches on it."""
    import torch

    options = (split, names, ignores)
    try:
        return _export_once(module, given, extents, dynamic_shapes, finds_batch, *options)
    except _NotFree as not_free:
        conditions = not_free.args
    name, shown = type(module).__name__, ", ".join(conditions[:2])
    rows = {place: value.shape[0] for place, value in given.items() if isinstance(value, torch.Tensor) and value.dim()}
    batch = next((extent for symbol, extent in extents.items() if ":" not in symbol), 0)
    if not finds_batch or len(rows) != len(given) or set(rows.values()) != {batch}:
        way_out = f"give example inputs of {batch} rows, as in dims"
        if not finds_batch:
            way_out = "leave out dynamic_shapes, and give example inputs with the extents of the real inputs"
        raise Error(
            f"from_torch: {name} branches on the extents of its inputs ({shown}), and would be right only for those of the example "
            f"inputs; {way_out}"
        )
    places = {f"{place}:0": extent for place, extent in rows.items()}
    fixed = places | {place: extent for place, extent in extents.items() if ":" in place}
    return _export_once(module, given, fixed, None, False, *options)


class _NotFree(Exception):
    """The module branches on extents that should be free. The arguments are the conditions on them."""


def _run_exporter(
    module: torch.nn.Module, given: Mapping[str, Any], dynamic_shapes: Any, names: list[str], traced: Traced
) -> torch.onnx.ONNXProgram:
    import torch

    try:
        return torch.onnx.export(
            module,
            kwargs=given,
            dynamo=True,
            optimize=False,
            verbose=False,
            dynamic_shapes=dynamic_shapes,
            # Other values have no own names, or are not inputs.
            input_names=list(given) if all(isinstance(each, torch.Tensor) for each in given.values()) else None,
            output_names=names or None,
        )
    except torch.onnx.OnnxExporterError as error:
        if traced.refusals:
            raise traced.refusals[0] from None
        if dynamic_shapes is not None and traced.conditions:
            raise _NotFree(*traced.conditions) from None
        raise Error(f"torch cannot export {type(module).__name__}: {reason_of(error)}") from None


def _export_once(
    module: torch.nn.Module,
    given: Mapping[str, Any],
    extents: Mapping[str, int],
    dynamic_shapes: Any,
    finds_batch: bool,
    split: Mapping[str, int] | None,
    names: list[str],
    ignores: bool,
) -> Graph:
    """Exports the module. Raises _NotFree only if `dynamic_shapes` has symbols."""
    with _quiet(), checked_export(module, ignores) as traced, tempfile.TemporaryDirectory() as folder:
        check_parts(module, ignores)
        with watched_generators(module) as generators:
            program = _run_exporter(module, given, dynamic_shapes, names, traced)
        if dynamic_shapes is not None and traced.conditions:
            raise _NotFree(*traced.conditions)
        if program.exported_program is not None:
            check_after(module, program.exported_program, _statistics(module))
        if len(names) > len(program.model.graph.outputs):
            raise Error(
                f"output_names has {len(names)} names, {type(module).__name__} {len(program.model.graph.outputs)} results"
            )
        if finds_batch and (constant := _name_batch(program, extents)):
            raise _NotFree(*constant)
        second_names = _name_as_pytorch_does(program, module)
        _keep_unused(program, module)
        name_results(type(module).__name__, program, names)
        note_options(program)
        resize_as_pytorch_does(type(module).__name__, program, place_of)
        if dynamic_shapes is None:
            program.model.metadata_props["lockstep.extents"] = "as traced"
        initializers = program.model.graph.initializers.keys()
        notes = write_metadata(program, module, traced, generators, second_names, _statistics(module))
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        constants, states = sorted(initializers - trained - _statistics(module)), sorted(initializers & trained)
        if sum(value.nbytes for value in module.state_dict().values()) < _MAX_BYTES_IN_MEMORY:
            file: Any = program.model_proto
        else:
            file = Path(folder) / "module.onnx"
            program.save(file, external_data=True)
        try:
            graph = load_onnx(file, extents, split, constants=constants, states=states)
        except Error as error:
            raise Error(with_place(str(error), program)) from None
    for note in notes:
        warn_once(f"from_torch: {note}")
    return graph


def to_torch(executable: Executable, module: torch.nn.Module) -> None:
    """Writes the current values of the executable's states into the parameters and buffers with the same names.

    States that the module does not have, such as those of an optimizer, are skipped. Buffers that the program does not
    use, and parameters that require no gradient, are unchanged. `num_batches_tracked` is not changed.

    Raises:
      Error: names a parameter that has no state, or whose shape differs. The module is then unchanged.
    """
    torch = _torch("to_torch")
    checks.instance("to_torch: the executable", executable, Executable, "what compile() returns")
    module = unwrapped(checks.instance("to_torch: the module", module, torch.nn.Module, "a torch.nn.Module"))
    values = {}
    shared = {parameter.data_ptr() for name, parameter in _tensors(module) if name in executable.state}
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, tensor in _tensors(module):
        if name in executable.state:
            value = _as_tensor(executable.state[name], tensor.dtype)
            if value.shape != tensor.shape:
                raise Error(f"to_torch: {name} is {list(tensor.shape)}, the state {list(value.shape)}")
            values[name] = value
        elif name in parameters and tensor.requires_grad and tensor.data_ptr() not in shared:
            raise Error(
                f"to_torch: the executable has no state {name}, which is a parameter of {type(module).__name__}"
            )
    with torch.no_grad():
        for name, tensor in _tensors(module):
            if name in values:
                tensor.copy_(values[name])


def _as_tensor(state: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Returns a copy of a parameter's state in its dtype. bfloat16, which NumPy does not have, is copied as bits."""
    import torch

    bits = bits_of_bfloat16(state)
    if bits is None and dtype == torch.bfloat16 and state.dtype == np.uint16:  # its form without ml_dtypes
        bits = state
    return torch.tensor(state) if bits is None else torch.tensor(bits.view(np.int16)).view(torch.bfloat16)


def _torch(function: str) -> Any:
    try:
        import torch
    except ImportError as error:
        raise Error(f"{function} needs the package torch, which is not installed") from error
    return torch


def _tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _name_as_pytorch_does(program: torch.onnx.ONNXProgram, module: torch.nn.Module) -> dict[str, str]:
    """A tensor that the module has under several names gets the first, as in `named_parameters()`; the exporter takes another. Returns
    the first by each other name."""
    first: dict[int, str] = {}
    others: dict[str, str] = {}
    for name, tensor in _tensors(module):
        canonical = first.setdefault(id(tensor), name)
        if canonical != name:
            others[name] = canonical
        value = program.model.graph.initializers.get(name)
        if value is not None:
            value.name = canonical
    return others


def _keep_unused(program: torch.onnx.ONNXProgram, module: torch.nn.Module) -> None:
    """Adds the parameters that `forward` does not use to the program, in which they never change."""
    import onnx_ir as ir
    from onnx_ir.tensor_adapters import TorchTensor

    graph = program.model.graph
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.is_floating_point() and name not in graph.initializers:
            tensor = TorchTensor(parameter.detach(), name)
            value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
            graph.register_initializer(value)


def _statistics(module: torch.nn.Module) -> set[str]:
    """The names of running statistics and of their counts of batches, without those of frozen parts, which are in
    evaluation mode in a module that is not."""
    import torch

    norms = {
        name
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and (part.training or not module.training)
    }
    return {name for name, _ in module.named_buffers() if name.rpartition(".")[0] in norms}


def _by_name(module: torch.nn.Module, inputs: Any) -> dict[str, Any]:
    import torch

    if isinstance(inputs, Mapping):
        return {checks.text("the name of an example input", name): value for name, value in inputs.items()}
    if not isinstance(inputs, (torch.Tensor, Sequence)):
        raise Error(
            f"from_torch: example_inputs is {checks.shown(inputs)}, expected a tensor, or the inputs of forward, in order or by name"
        )
    values = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
    signature = inspect.signature(module.forward)
    try:
        return dict(signature.bind(*values).arguments)
    except TypeError as error:
        raise Error(
            f"from_torch: the example inputs do not fit {type(module).__name__}.forward{signature}: {error}"
        ) from error


def _apart(inputs: dict[str, Any]) -> dict[str, Any]:
    """Copies the tensors, because torch's exporter merges tensors that occur twice or that are parameters."""
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), inputs)


def _check_places(inputs: Mapping[str, Any], dims: Mapping[str, int]) -> None:
    """Checks that the example inputs have the extents that `dims` gives by position."""
    for place, extent in dims.items():
        name, _, dim = place.rpartition(":")
        shape = list(getattr(inputs.get(name), "shape", ()))
        if dim.isdecimal() and int(dim) < len(shape) and shape[int(dim)] != extent:
            raise Error(
                f"from_torch: dims has {place}: {extent}, and the example input {name} is {shape}; a module is exported for the extents of "
                "its example inputs, except symbols in dims, such as batch"
            )


def _batch_shapes(inputs: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Any] | None:
    import torch

    symbols = [name for name in dims if ":" not in name]
    if not symbols:
        return None
    if len(symbols) > 1:
        raise Error(
            f"from_torch: dims has the symbols {', '.join(symbols)}; for several symbols, dynamic_shapes says where they are"
        )
    batch = torch.export.Dim(symbols[0])
    rows: dict[int, str] = {}  # by number of rows, the first input with this number

    def shape_of(value: Any, place: str) -> Any:
        if isinstance(value, (list, tuple)):
            return [shape_of(part, place) for part in value]
        if isinstance(value, Mapping):
            return {name: shape_of(part, place) for name, part in value.items()}
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            return None
        rows.setdefault(value.shape[0], place)
        return {0: batch}

    shapes = {name: shape_of(value, name) for name, value in inputs.items()}
    if len(rows) > 1:
        found = ", ".join(f"{place} has {count}" for count, place in rows.items())
        raise Error(
            f"from_torch: dims has {symbols[0]}, the number of rows of all example inputs, and {found}; give them equally many, or say "
            "by dynamic_shapes where the symbol is"
        )
    return shapes


def _name_batch(program: torch.onnx.ONNXProgram, dims: Mapping[str, int]) -> list[str]:
    """Gives the batch its name in `dims`; the exporter invents one if it gets plain numbers. If the program is for one
    number of rows only, returns conditions such as "batch == 3"."""
    symbols = [name for name in dims if ":" not in name]
    if not symbols:
        return []
    graph = program.model.graph
    first = [value.shape[0] for value in graph.inputs if value.shape]
    found = {str(extent) for extent in first if not isinstance(extent, int)}
    if not found:
        return [f"{symbols[0]} == {extent}" for extent in dict.fromkeys(first)]
    if symbols[0] in found:
        return []
    values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
    for value in values:
        for i, extent in enumerate(value.shape or ()):
            if str(extent) in found:
                value.shape[i] = symbols[0]
    return []


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the exporter's messages about itself."""
    loggers = [
        logging.getLogger(f"torch.{name}")
        for name in ("onnx._internal.exporter._registration", "fx.experimental.symbolic_shapes")
    ]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # the exporter prints graphs to stderr
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
