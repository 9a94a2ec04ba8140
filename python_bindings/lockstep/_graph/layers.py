"""Graph.summary, Graph.save_svg, the drawing in a notebook, and Executable.summary: a graph by its model's layers."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._base import checks
from .._base.errors import Error

if TYPE_CHECKING:
    from .._lockstep import Executable, Graph

OPTIMIZER = "optimizer"
_MOST_DRAWN = 100  # layers of a graph that a notebook shows as a drawing
_PREFIXES = ("onnx:", "torch:", "python:", "/")
_STEP = re.compile(r"^\s*\[ *\d+\] (\w+)[. ]", re.MULTILINE)


@dataclass
class Layer:
    """The nodes of one module of the model, in the forward computation and for gradients."""

    name: str
    type: str = ""  # of the last result of the forward computation
    parameters: int = 0
    flops: float = 0
    gradient_flops: float = 0
    bytes: int = 0
    nodes: int = 0
    is_forward: bool = False
    communication: str = ""  # "all_reduce along data" for communication, empty for a module
    states: list[str] = field(default_factory=list)  # those that it uses first, of which `parameters` are the elements
    # The values that the layer reads, with their types: by source (a layer or an input), and by whether they are values
    # of the model. Gradients are listed only if the optimizer or communication reads them.
    reads: dict[tuple[str, bool], dict[str, str]] = field(default_factory=dict)


def layer_of(node: dict[str, Any], depth: int | None = None) -> tuple[str, bool]:
    """Returns the layer of a node, and true if the node belongs to the model itself: not to a gradient or an update."""
    source, is_forward = node["source"], True
    while source.startswith("gradient of "):
        source, is_forward = source.removeprefix("gradient of "), False
    if node["updates"] or source.startswith("optimizer"):
        return OPTIMIZER, False
    is_of_torch = source.startswith("torch:")
    for prefix in _PREFIXES:
        source = source.removeprefix(prefix)
    if not source or source.startswith("%"):
        return node["op"] if is_forward else "gradients", is_forward
    parts = [re.sub(r"\[\d+\]$", "", part) for part in source.split("/")]
    parts = parts[:-1] or parts  # the last is the operator
    if is_of_torch and depth:
        modules = parts[0].split(".")  # "torch:encoder.0.linear1/node_MatMul_3" is three modules deep
        parts[0], depth = ".".join(modules[:depth]), max(depth - len(modules), 0) + 1
    return "/".join(parts[: depth or len(parts)]), is_forward


def layers_of(graph: Graph, depth: int | None, shows_communication: bool = False) -> list[Layer]:
    """Returns the layers in the order of their first nodes. Communication belongs to the layer whose values it moves,
    or is a layer of its own if `shows_communication`."""
    layers: dict[str, Layer] = {}
    owner: dict[str, str] = {info.name: info.name for info in graph.inputs}  # of a value: its layer, or the input
    types: dict[str, str] = {info.name: _type(info) for info in graph.inputs}
    unused = {info.name: _elements(info.shape) for info in graph.states}
    communications: set[str] = set()  # layers
    gradients: set[str] = set()  # values
    for node in graph._nodes():
        name, is_forward = layer_of(node, depth)
        communication = node["communication"] if shows_communication else ""
        if communication:
            name = f"{communication}, {'' if is_forward or name == OPTIMIZER else 'gradient of '}{name}"
            communications.add(name)
        layer = layers.setdefault(name, Layer(name, communication=communication))
        layer.nodes += 1
        layer.bytes += node["bytes"]
        if is_forward:
            layer.flops += node["flops"]
            layer.type, layer.is_forward = node["types"][0], True
        else:
            layer.gradient_flops += node["flops"]
        for operand in node["operands"]:
            if operand in unused:
                layer.parameters += unused.pop(operand)
                layer.states.append(operand)
            source = owner.get(operand, name)
            is_shown = is_forward or name == OPTIMIZER or communication or source in communications
            if source != name and is_shown:
                layer.reads.setdefault((source, is_forward and operand not in gradients), {})[operand] = types[operand]
        for i, (result, kind) in enumerate(zip(node["results"], node["types"], strict=True)):
            owner[result], types[result] = name, kind
            # A collective may reduce both the loss and gradients. It has a result for each operand.
            passes_on = communication and is_forward and i < len(node["operands"])
            if node["operands"][i] in gradients if passes_on else not is_forward:
                gradients.add(result)
    return list(layers.values())


def summary(graph: Graph, depth: int | None) -> str:
    """Implements Graph.summary()."""
    return graph._facts() + _table(layers_of(graph, depth_of("summary", depth)))


def executable_summary(executable: Executable, depth: int | None) -> str:
    """Implements Executable.summary()."""
    kinds = Counter(_STEP.findall(executable.steps))
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in sorted({*kinds, "reference"}))
    return f"{sum(kinds.values())} steps: {counts}\n" + summary(executable.graph, depth)


def _table(layers: list[Layer]) -> str:
    if not layers:
        return ""
    rows = [["layer", "result", "parameters", "operations", "for gradients", "bytes"]]
    for layer in layers:
        rows.append([layer.name, layer.type, *_numbers(layer)])
    total = Layer("total")
    for layer in layers:
        total.parameters += layer.parameters
        total.flops += layer.flops
        total.gradient_flops += layer.gradient_flops
        total.bytes += layer.bytes
    rows.append([total.name, "", *_numbers(total)])
    return f"layers ({len(layers)})\n" + "\n".join(aligned(rows, 2)) + "\n"


def aligned(rows: list[list[str]], left: int) -> list[str]:
    """Returns rows as lines with columns of one width. The first `left` columns are texts, the others numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _numbers(layer: Layer) -> list[str]:
    return [f"{number:,.0f}" for number in (layer.parameters, layer.flops, layer.gradient_flops, layer.bytes)]


def save_svg(graph: Graph, path: Any, depth: int | None) -> None:
    """Implements Graph.save_svg()."""
    target = checks.path(path)
    try:
        done = _draw(_dot(graph, depth_of("save_svg", depth)), "-o", target)
    except FileNotFoundError:
        raise Error("save_svg: the program dot, which draws it, is missing: apt install graphviz") from None
    if done.returncode != 0:
        raise Error(f"save_svg: dot cannot write {target}: {done.stderr.decode(errors='replace').strip()}")


def notebook_svg(graph: Graph) -> str | None:
    """Implements Graph._repr_svg_(): the drawing of save_svg(). Returns None without the program dot, and for a graph
    of more layers than can be read; a notebook then shows short()."""
    if len(layers_of(graph, None)) > _MOST_DRAWN:
        return None
    try:
        done = _draw(_dot(graph, None))
    except FileNotFoundError:
        return None
    return done.stdout.decode() if done.returncode == 0 else None


def _draw(text: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["dot", "-Tsvg", *arguments], input=text.encode(), capture_output=True, check=False)


def _dot(graph: Graph, depth: int | None) -> str:
    """The graph's layers, collectives and optimizer for Graphviz. Other gradients are in their layers' boxes."""
    layers = {layer.name: layer for layer in layers_of(graph, depth, shows_communication=True)}
    drawn = [layer for layer in layers.values() if layer.is_forward or layer.communication or layer.name == OPTIMIZER]
    sources = {source for layer in drawn for source, _ in layer.reads}
    lines = ["digraph {", '  node [shape=box, style=rounded, fontname="sans-serif", fontsize=11];']
    lines.append('  edge [fontname="sans-serif", fontsize=9];')
    for info in graph.inputs:
        lines.append(
            f"  {_quoted(f'input {info.name}')} [shape=plain, label={_quoted(f'{info.name}: {_type(info)}')}];"
        )
    inputs = {info.name for info in graph.inputs}
    for layer in layers.values():
        if layer not in drawn and layer.name not in sources:
            continue
        shape = ", shape=ellipse" if layer.communication else ""
        lines.append(f"  {_quoted(layer.name)} [label={_quoted(chr(10).join(_label(layer)))}{shape}];")
        for (source, is_forward), values in layer.reads.items():
            node = f"input {source}" if source in inputs else source
            label = next(iter(values.values())) if len(values) == 1 else f"{len(values)} tensors"
            style = "" if is_forward else ", style=dashed"
            lines.append(f"  {_quoted(node)} -> {_quoted(layer.name)} [label={_quoted(label)}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def _label(layer: Layer) -> list[str]:
    if layer.communication:
        return [layer.communication, f"{layer.bytes:,} bytes"]
    is_optimizer = layer.name == OPTIMIZER
    kind, flops = ("elements of states", layer.gradient_flops) if is_optimizer else ("parameters", layer.flops)
    numbers = [f"{layer.parameters:,} {kind}"] if layer.parameters else []
    return [layer.name, *numbers, *([f"{flops:,.0f} operations"] if flops else [])]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _type(info: Any) -> str:
    return f"{info.dtype}[{','.join(map(str, info.shape))}]"


def _elements(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def depth_of(what: str, depth: int | None) -> int | None:
    return None if depth is None else checks.integer(f"{what}: depth", depth, 1)
