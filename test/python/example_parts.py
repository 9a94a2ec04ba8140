"""Imports files below examples/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from cases import ROOT

sys.path.append(str(ROOT / "examples"))  # model.py files import onnx_layers from there


def part(name: str) -> ModuleType:
    """The module of a file. Several files may have the same name."""
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), ROOT / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
