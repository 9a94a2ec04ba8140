"""Graphs: loading, parsing, differentiating, distributing, interpreting and writing them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from .. import _lockstep
from .._base import checks
from .._base.errors import Error
from .._base.names import FROM_TORCH, is_torch_module
from .._compile.placements import Placement, choices
from .._lockstep import Executable, Graph
from ..graph._values import Value, gradients_of
from .weights import whole_states

if TYPE_CHECKING:
    import numpy as np
    import onnx


def load_onnx(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    dims: Mapping[str, int] | None = None,
    split: Mapping[str, int] | None = None,
    values: Mapping[str, Any] | None = None,
    constants: Sequence[str] = (),
    states: Sequence[str] = (),
) -> Graph:
    """Reads an ONNX model as the one-rank program over the global batch.

    Args:
      model: the path of a file, or the model itself, serialized or as an `onnx.ModelProto`. A file's external data is
        read from its folder or below. If the file is a link, as in a cache, it is also read from the folder of the
        link's target. A data file may be a link to anywhere, but its folder may not be outside these folders.
      dims: the extents of symbolic dimensions, by name. They are global: `{"batch": 128}` is 128 in total. For 64 on
        each rank, write `64 * world.size`. A dimension that the file fixes is given by its position: `{"x:0": 128}`.
        `Graph.with_dims` changes the extents of the graph later.
      split: the inputs that the ranks share, with the dimension: `{"x": 0}`; `{}` is none. If None, the inputs whose
        dimension 0 is symbolic or is given by its position are split along it.
      values: values of inputs, for models whose inputs decide shapes, such as the shape of a Reshape. Inputs whose
        values an operator must know become constants, which `fixed_inputs` of the graph lists. The others stay inputs.
      constants: names of float initializers that are not parameters, such as tables of positions. They are not states
        and not trained.
      states: names of float initializers that are parameters although they are scalars, such as a temperature.

    Returns:
      A graph. Its states are the float initializers that are parameters or running statistics, under their names.
      PyTorch's exporter marks the parameters of the module. In other files, all initializers that are not scalars count
      as parameters, and a training step reports the states that it trains for this reason only. An initializer that
      PyTorch's exporter computed while optimizing ("val_67") is a constant if it has one element. Larger ones are
      states, because they may be weights, and `notes` lists them.

    Raises:
      Error: names the file, and the node, input or dimension.
    """
    extents = checks.extents("dims", {} if dims is None else dims)
    shared = None if split is None else checks.extents("split", split)
    if values is not None and not isinstance(values, Mapping):
        raise Error(f"values is a {type(values).__name__}, expected a dict from input to value")
    known = {checks.text("values: the name of an input", name): value for name, value in (values or {}).items()}
    fixed, learnt = checks.names("constants", constants), checks.names("states", states)
    if is_torch_module(model):
        raise Error(
            f"load_onnx: the model is {checks.shown(model)}, expected an ONNX file; {FROM_TORCH} imports a module"
        )
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    if isinstance(model, bytes):
        return _lockstep._load_onnx("<model>", model, extents, shared, known, fixed, learnt)
    return _lockstep._load_onnx(checks.path(model), None, extents, shared, known, fixed, learnt)


def with_dims(graph: Graph, dims: Mapping[str, int] | None = None, /, **named: int) -> Graph:
    """See Graph.with_dims."""
    if dims is not None and named:
        raise Error("with_dims: give dimensions either as one dict or by keywords")
    return _lockstep._with_dims(graph, checks.extents("with_dims", named if dims is None else dims))


def parse(text: str) -> Graph:
    """Parses the text of a graph. Its states start at zero. `str(parse(str(graph))) == str(graph)`.

    Raises:
      Error: names the line and column.
    """
    return _lockstep._parse(checks.text("the graph's text", text))


@overload
def gradients(graph: Graph, of: str, wrt: Sequence[str] = ()) -> Graph: ...
@overload
def gradients(graph: Value, of: Sequence[Value]) -> list[Value]: ...
def gradients(graph: Any, of: Any, wrt: Any = ()) -> Any:
    """Returns the graph with a result `grad/<name>` for each input in `wrt`: the gradient of the scalar result `of`.
    Or, of a graph under construction, the gradients as values: `gradients(loss, [w, b])`.

    Args:
      graph: any one-rank program; or the value of a float scalar, see `lockstep.graph`.
      of: the name of a result; or, of a value, the list of values whose gradients are returned.
      wrt: names of inputs; all float states if empty.

    Raises:
      Error: the scalar does not depend on one of them through floats, or an op on the way has no gradient.
    """
    if isinstance(graph, Value):
        if not isinstance(of, (list, tuple)) or wrt:
            raise Error(f"gradients of a value are with respect to a list of values; found {checks.shown(of)}")
        return gradients_of(graph, of)
    return _lockstep._gradients(checks.graph("the graph", graph), checks.text("of", of), checks.names("wrt", wrt))


def distribute(
    graph: Graph,
    mesh: Mapping[str, int],
    split: Mapping[str, Mapping[str, int]] | None = None,
    placements: Mapping[str, Placement] | None = None,
) -> Graph:
    """Places the program on a mesh, as in `distribute(step, {"data": 4})`. `compile`, which has the same arguments
    `mesh`, `split` and `placements`, does this itself.

    Returns the placed program. Its shapes are those of whole values. Each value has a placement, and the collectives
    are inserted. It can be printed, changed as text, and compiled.
    """
    placed = _lockstep._distribute(
        checks.graph("the graph", graph), list(checks.extents("mesh", mesh).items()), choices(split, placements)
    )
    placed._schedules = getattr(graph, "_schedules", {})
    return placed


def interpret(graph: Graph, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, np.ndarray]]:
    """Runs a graph, slowly, by the ops' reference meanings, with a dict of inputs for each rank of its mesh.

    Args:
      graph: any graph. A graph without a mesh runs on one rank; otherwise each rank runs its part.
      inputs: for each rank, the data inputs, and values of states that differ from the initial values.

    Returns:
      For each rank, the results, and the next values of the states under their names.
    """
    if not isinstance(inputs, (list, tuple)) or not all(isinstance(rank, Mapping) for rank in inputs):
        raise Error(f"inputs is a {type(inputs).__name__}, expected a list with a dict of inputs for each rank")
    ranks = [{checks.text("the name of an input", name): value for name, value in rank.items()} for rank in inputs]
    return _lockstep._interpret(checks.graph("the graph", graph), ranks)


def save_onnx(executable: Executable, path: str | os.PathLike[str]) -> None:
    """Writes the imported model with the current values of its parameters. Rank 0 writes; the others return.

    The file appears complete or not at all.

    Raises:
      Error: on all ranks if ranks have parts of the states, which `Executable.save` writes as whole states.
    """
    checks.instance("save_onnx: the executable", executable, Executable, "what compile() returns")
    whole_states("save_onnx", executable)
    if executable._world().rank == 0:
        executable._save_onnx(checks.path(path))
