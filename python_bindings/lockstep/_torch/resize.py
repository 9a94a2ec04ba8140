"""Resizing as in PyTorch, where the nodes that its exporter writes mean something else.

ONNX takes a new size or a scale. PyTorch's kernels take both: the size that the scale gives, rounded down in f64, and
the scale for the coordinates (aten/src/ATen/native/UpSample.h). The exporter keeps one of them, in f32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import Error

if TYPE_CHECKING:
    import torch
    import torch.fx


def resize_as_pytorch_does(name: str, program: torch.onnx.ONNXProgram, place: Callable[[torch.fx.Node], str]) -> None:
    """Rewrites the program's Resize nodes so that they compute the same as `interpolate` of the module `name`.

    Args:
      place: returns the place of a node in the module, for messages.

    Raises:
      Error: ONNX has no such resizing: antialiasing with aligned corners, or a scale of a size that is not fixed.
    """
    for node in list(program.model.graph):
        of_torch = node.meta.get("node")
        if node.op_type != "Resize" or "upsample" not in str(getattr(of_torch, "target", "")):
            continue
        try:
            _resize(node, of_torch)
        except _CannotSay as error:
            raise Error(f"from_torch: {name} has interpolate with {error} ({place(of_torch)})") from None


class _CannotSay(Exception):
    """An option of interpolate that ONNX does not have."""


def _resize(node: Any, of_torch: torch.fx.Node) -> None:
    options = _options(of_torch)
    scales, aligned = _scales(options), bool(options.get("align_corners", False))
    is_antialiased = "_aa" in str(of_torch.target)
    if is_antialiased and aligned:
        raise _CannotSay("antialias=True and align_corners=True, which ONNX does not have together; leave out one")
    old, new = (tuple(each.meta["val"].shape[2:]) for each in (of_torch.args[0], of_torch))
    if not all(isinstance(extent, int) for extent in (*old, *new)):
        if any(scale is not None and not float(scale).is_integer() for scale in scales or ()):
            raise _CannotSay("a scale_factor of a size that dynamic_shapes makes symbolic; keep that size fixed")
        return
    if "nearest" in str(of_torch.target):
        _select(node, old, new, scales)
    elif scales is None or aligned or None in scales:
        _take(node, sizes=np.array(new, np.int64))
    else:
        _take(node, scales=np.array([_rounded(*each) for each in zip(scales, old, new, strict=True)], np.float32))


def _options(of_torch: torch.fx.Node) -> dict[str, Any]:
    names = [argument.name for argument in of_torch.target._schema.arguments]
    return dict(zip(names, of_torch.args, strict=False)) | dict(of_torch.kwargs)


def _scales(options: dict[str, Any]) -> list[float | None] | None:
    """The scale of each dimension; None if only the size is given."""
    if "scale_factors" in options:
        return options["scale_factors"]
    given = [options[name] for name in ("scales", "scales_d", "scales_h", "scales_w") if name in options]
    return given or None


def _rounded(scale: float, old: int, new: int) -> np.float32:
    """The f32 nearest to `scale` for which the product, rounded down in f32, equals `new`, as it does in f64."""
    rounded = np.float32(scale)
    while int(np.float32(old) * rounded) != new:
        rounded = np.nextafter(rounded, np.float32(np.inf if int(np.float32(old) * rounded) < new else 0))
    return rounded


def _take(node: Any, **given: np.ndarray) -> None:
    """Replaces the node's sizes or scales by those given, which are of all dimensions except the first two."""
    import onnx_ir as ir

    (kind, array), *_ = given.items()
    value = _constant(node, kind, array)
    inputs = [node.inputs[0], None, value] if kind == "scales" else [node.inputs[0], None, None, value]
    node.resize_inputs(len(inputs))
    for i, each in enumerate(inputs):
        node.replace_input_with(i, each)
    node.attributes.add(ir.AttrInt64s("axes", range(2, 2 + len(array))))


def _select(node: Any, old: tuple[int, ...], new: tuple[int, ...], scales: list[float | None] | None) -> None:
    """Selects the same elements as PyTorch: by a size if that gives the same elements, otherwise by their indices."""
    import onnx_ir as ir
    import torch

    places = []
    for before, after, scale in zip(old, new, scales or [None] * len(old), strict=True):
        line = torch.arange(before, dtype=torch.float32)[None, None]
        places.append(torch.ops.aten.upsample_nearest1d(line, [after], scale)[0, 0].long().numpy())
    by_size = [
        np.floor(np.arange(after) / (after / before)).astype(np.int64) for before, after in zip(old, new, strict=True)
    ]
    if all(np.array_equal(*each) for each in zip(places, by_size, strict=True)):
        _take(node, sizes=np.array(new, np.int64))
        return
    selected = node.inputs[0]
    for i, each in enumerate(places):
        gather = ir.node("Gather", [selected, _constant(node, f"places{i}", each)], {"axis": 2 + i})
        gather.name, gather.outputs[0].name = f"{node.name}_{i}", f"{node.outputs[0].name}/{i}"
        gather.metadata_props.update(node.metadata_props)  # the same module
        node.graph.insert_before(node, gather)
        selected = gather.outputs[0]
    node.resize_inputs(1)
    node.replace_input_with(0, selected)
    _take(node, scales=np.ones(len(old), np.float32))  # the node keeps its name and resizes nothing


def _constant(node: Any, kind: str, array: np.ndarray) -> Any:
    import onnx_ir as ir

    tensor = ir.tensor(array)
    value = ir.Value(
        name=f"{node.name}/{kind}", shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    node.graph.register_initializer(value)
    return value
