"""Places in the user's program."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def own_place() -> str:
    """Returns the line of the user's program that is being executed, such as "model.py:12": in a file of neither torch nor this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (_is_of_tracing(frame.f_code.co_filename)):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_of_tracing(path: str) -> bool:
    return Path(path).parent == Path(__file__).parent or is_of_torch(path)


def is_of_torch(path: str) -> bool:
    """Returns True for a source file of the package torch."""
    import torch

    return Path(path).resolve().is_relative_to(Path(torch.__file__).resolve().parent)


def place_of(node: torch.fx.Node) -> str:
    """Returns the line of the user's program that made a node, such as "model.py:12"; if it is unknown, the module's part or the node's name."""
    frames = re.findall(r'File "([^"]*)", line (\d+)', node.meta.get("stack_trace") or "")
    users = node.users if not frames else {}
    for user in users:  # a node with several results has no line of its own; those who select one result have
        frames = frames or re.findall(r'File "([^"]*)", line (\d+)', user.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not is_of_torch(frame[0])]
    parts = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    if not own and parts:
        return f"part {parts[-1]}"
    own = own or frames
    return f"{own[-1][0].rpartition('/')[2]}:{own[-1][1]}" if own else node.name
