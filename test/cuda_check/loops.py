"""Programs with one loop that is bound by memory, with the number of bytes it has to move, and one that does almost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True)
class Loop:
    text: str
    bytes: int


def _rows(backend: str) -> int:
    """The number of rows of 1024 f32: a GiB on a GPU, several times its caches; a few MiB on the host, where only the
    check itself is tried.
    """
    return 256 * 1024 if backend == "cuda" else 1024


def update(backend: str) -> Loop:
    """x = 0.9 x + 0.1 y, element by element."""
    shape = f"{_rows(backend)},1024"
    text = f"""
graph @update(state %x: f32[{shape}], state %y: f32[{shape}]) -> (%x: f32[{shape}]) {{
  %a = constant {{value=dense<f32[]: 0.9>}} : f32[]
  %b = constant {{value=dense<f32[]: 0.1>}} : f32[]
  %as = broadcast %a {{dims=[], shape=[{shape}]}} : f32[{shape}]
  %bs = broadcast %b {{dims=[], shape=[{shape}]}} : f32[{shape}]
  %ax = mul %x, %as : f32[{shape}]
  %by = mul %y, %bs : f32[{shape}]
  %next = add %ax, %by : f32[{shape}]
  return %next
}}"""
    return Loop(text, 3 * _rows(backend) * 4096)


def rows(backend: str) -> Loop:
    """x = x - mean of its row: a reduction along the contiguous dimension, and its result broadcast."""
    n = _rows(backend)
    shape = f"{n},1024"
    text = f"""
graph @rows(state %x: f32[{shape}]) -> (%x: f32[{shape}]) {{
  %s = reduce_sum %x {{dims=[1]}} : f32[{n}]
  %c = constant {{value=dense<f32[]: 0.0009765625>}} : f32[]
  %cs = broadcast %c {{dims=[], shape=[{n}]}} : f32[{n}]
  %m = mul %s, %cs : f32[{n}]
  %ms = broadcast %m {{dims=[0], shape=[{shape}]}} : f32[{shape}]
  %next = sub %x, %ms : f32[{shape}]
  return %next
}}"""
    return Loop(text, 2 * n * 4096)


def columns(backend: str) -> Loop:
    """The sum of all rows, as in the gradient of a bias."""
    n = _rows(backend)
    text = f"""
graph @columns(state %x: f32[{n},1024], state %s: f32[1024]) -> (%s: f32[1024]) {{
  %next = reduce_sum %x {{dims=[0]}} : f32[1024]
  return %next
}}"""
    return Loop(text, n * 4096)


def one(backend: str) -> Loop:
    """One element: measures the host's time of a run, with the start and end of a kernel."""
    text = """
graph @one(state %x: f32[1]) -> (%x: f32[1]) {
  %next = neg %x : f32[1]
  return %next
}"""
    return Loop(text, 8)


LOOPS: dict[str, Callable[[str], Loop]] = {"update": update, "rows": rows, "columns": columns, "one": one}
