"""`lockstep verify`: proves for a file that n ranks compute what one computes, and the same for a program of XLA."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import loss, optim
from .._base import checks
from .._base.errors import Error
from .._compile.strategy import Strategy
from .._compile.verify import verify
from .._hlo.verify import verify_hlo
from .._lockstep import Graph
from .graph_file import load_graph
from .graphs import load_onnx
from .train_step import train_step


def run(file: str, ranks: Sequence[int], strategy: str, dims: Mapping[str, int], shrink: bool = True) -> str:
    """Returns the report on a file of `Graph.save`, or on a step that trains an ONNX model, for these numbers of ranks.
    Without any, they are those of the mesh, or 2 and 4. `shrink` is that of `lockstep.verify`.

    Raises:
      Error: as `lockstep.verify`, with the number of ranks; or the file cannot be read.
    """
    options = Strategy.parse(strategy).options
    mesh = options.get("mesh")
    numbers = ranks or ([math.prod(mesh.values())] if mesh else [2, 4])
    for number in numbers:
        checks.integer("--ranks", number, 1)
    graph, what = _program(file, dims)
    lines, assumptions = [what], set[str]()
    for number in numbers:
        start = time.perf_counter()
        try:
            assumptions.update(verify(graph, number, shrink=shrink, **options))
        except Error as error:
            raise Error(f"{what}, on {number} rank{'s' * (number != 1)}: {error}") from None
        lines.append(f"{number} rank{'s' * (number != 1)}: equal to one rank ({time.perf_counter() - start:.1f} s)")
    lines += [f"assumed: {each}" for each in sorted(assumptions)]
    return "\n".join(lines)


def run_hlo(before: str, after: str) -> str:
    """Returns the report on a program of XLA before and after its partitioning.

    Raises:
      Error: as `lockstep.verify_hlo`.
    """
    start = time.perf_counter()
    assumptions = verify_hlo(before, after)
    lines = [f"{after}: equal to {before} ({time.perf_counter() - start:.1f} s)"]
    return "\n".join(lines + [f"assumed: {each}" for each in assumptions])


def _program(file: str, dims: Mapping[str, int]) -> tuple[Graph, str]:
    """Returns the program of a file, and what it is."""
    if Path(file).suffix != ".onnx":
        graph = load_graph(file)
        if dims:
            raise Error(f"--dims is for ONNX models, and {file} is a graph, whose dimensions are fixed")
        return graph, f"{file}: @{graph.name}"
    try:
        model = load_onnx(file, dims)
    except Error as error:
        raise Error(f"{error} (dims are --dims batch=8,…)" if "dims" in str(error) else str(error)) from None
    floats = [result.name for result in model.results if result.dtype in ("bf16", "f16", "f32", "f64")]
    if not model.states or not floats:
        return model, f"{file}: the model"
    step = train_step(model, loss.mean_squared_error(floats[0], "target"), optim.AdamW(0.01))
    return step, f"{file}: a step that trains it with AdamW and the mean squared error of {floats[0]}"
