"""What becomes of the cases of torch_options.py and its like that do not train as in PyTorch."""

from __future__ import annotations

REFUSED: dict[str, str] = {}
DIFFERS: dict[str, str] = {}
