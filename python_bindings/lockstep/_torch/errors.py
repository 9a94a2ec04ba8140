"""Messages about errors of torch's exporter and of the import: the reason, and the line of the module."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from .places import is_of_torch, place_of

if TYPE_CHECKING:
    import torch


def reason_of(error: BaseException) -> str:
    """Returns the first line of the innermost cause, as the outer errors are about the exporter, and the line of the module."""
    import torch

    place = ""
    while error.__cause__ is not None:
        error = error.__cause__
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if isinstance(node := frame.f_locals.get("node"), torch.fx.Node):  # which the exporter translates
                place = f" (at {place_of(node)})"
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.name == "_detect_is_causal_mask" for frame in frames):
        text = "torch tests if a mask is causal, which it cannot export; pass is_causal=True or False with the mask"
    elif type(error).__name__ == "GuardOnDataDependentSymNode":
        text = f"forward branches on the values of a tensor, which a graph cannot: {text}"
    forwards = [
        frame
        for frame in frames
        if frame.name == "forward" and not frame.filename.startswith("<") and not is_of_torch(frame.filename)
    ]
    return (
        f"{text} (at {Path(forwards[-1].filename).name}:{forwards[-1].lineno} in forward)" if forwards else text + place
    )


def with_place(message: str, program: torch.onnx.ONNXProgram) -> str:
    """Returns an importer's message, completed by the line of the user's program that made the operator, and advice if there is any."""
    import onnx_ir as ir

    words = set(re.findall(r"[^\s/,;:()'\"]+", message))
    nodes = ir.traversal.RecursiveGraphIterator(program.model.graph)
    traced = next((node.meta["node"] for node in nodes if node.name in words and "node" in node.meta), None)
    place = "" if traced is None else f" (at {place_of(traced)})"
    if "NonZero: " in message:  # an index that is a mask
        place += (
            "; how many elements a mask chooses depends on data, which no graph can; instead of t[mask].mean(), write "
            "(t * mask).sum() / mask.sum()"
        )
    return message + place
