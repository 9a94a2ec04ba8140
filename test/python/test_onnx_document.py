"""docs/onnx.md agrees with the importer's tables, the node tests and the list of gradients."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import onnx_gradients

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("onnx_document", ROOT / "tools" / "onnx_document.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore")
def test_it_is_up_to_date(tool: ModuleType) -> None:
    text = tool.document()
    assert text == (ROOT / "docs" / "onnx.md").read_text(encoding="utf-8"), (
        "docs/onnx.md is not current: run `make docs`"
    )
    for op in onnx_gradients.operators():
        assert f"\n| {op} | " in text


def test_opsets(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("Relu", 1, 28), ("Gelu", 1, 28), ("Add", 1, 6), ("Add", 13, 28), ("Softmax", 7, 12), ("Scatter", 9, 10)]
    monkeypatch.setattr(tool._lockstep, "_onnx_operators", lambda: {"": rows})
    found = {op: tool.opsets_of(op) for op, _, _ in rows}
    assert found == {
        "Relu": "all",
        "Gelu": "all",
        "Add": "1 to 6, 13+",
        "Softmax": "7 to 12",
        "Scatter": "all, to 10",
    }


def test_other_domains(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"": [("Relu", 1, 28)], "com.example": [("B", 2, 4), ("A", 1, 1)]}
    monkeypatch.setattr(tool._lockstep, "_onnx_operators", lambda: rows)
    assert tool.other_domains() == ["\nOf the domain com.example, with its opsets: A (1), B (2 to 4)."]


def test_every_operator_that_is_left_out_is_one_of_onnx(tool: ModuleType) -> None:
    names = {each.name for each in tool.onnx.defs.get_all_schemas() if not each.domain}
    assert {op for ops in tool.LEFT_OUT.values() for op in ops} <= names
