"""The checked-in models are those that their scripts write. Exports them again if torch is installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).parents[2]


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def structure(model: onnx.ModelProto) -> list:
    """Everything that a program depends on: operators, attributes, values, shapes."""
    nodes = [
        (
            node.op_type,
            node.name,
            list(node.input),
            list(node.output),
            sorted(a.SerializeToString() for a in node.attribute),
        )
        for node in model.graph.node
    ]
    ends = [value.SerializeToString() for value in [*model.graph.input, *model.graph.output]]
    return [model.graph.name, [opset.version for opset in model.opset_import], nodes, ends]


def assert_same_model(exported: Path, checked_in: Path) -> None:
    new, old = onnx.load(exported), onnx.load(checked_in)
    assert structure(new) == structure(old)
    parameters = {tensor.name: numpy_helper.to_array(tensor) for tensor in old.graph.initializer}
    assert [tensor.name for tensor in new.graph.initializer] == list(parameters)
    for tensor in new.graph.initializer:
        np.testing.assert_allclose(
            numpy_helper.to_array(tensor), parameters[tensor.name], rtol=1e-6, err_msg=tensor.name
        )


@pytest.mark.filterwarnings("ignore")
def test_lenet(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    load_script(ROOT / "examples/mnist/export_lenet.py").export(tmp_path / "lenet.onnx")
    assert_same_model(tmp_path / "lenet.onnx", ROOT / "examples/mnist/lenet.onnx")


@pytest.mark.filterwarnings("ignore")
def test_small_models(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    names = load_script(ROOT / "test/models/export_models.py").export_all(tmp_path)
    for name in names:
        assert_same_model(tmp_path / f"{name}.onnx", ROOT / f"test/models/{name}.onnx")
