"""The checked-in stubs match the extension module. `make docs` writes them."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import lockstep as ls

PACKAGE = Path(ls.__file__).parent


def test_the_stub_is_what_stubgen_writes(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "nanobind.stubgen",
        "-q",
        "-P",
        "-m",
        "lockstep._lockstep",
        "-o",
        tmp_path / "new.pyi",
    ]
    subprocess.run(command, check=True, timeout=60)
    assert (PACKAGE / "_lockstep.pyi").read_text() == (tmp_path / "new.pyi").read_text(), "run `make docs`"


def test_the_generated_stubs_are_those_of_what_is_compiled_in() -> None:
    path = PACKAGE.parents[1] / "tools" / "python_stubs.py"
    spec = importlib.util.spec_from_file_location("python_stubs", path)
    assert spec is not None and spec.loader is not None
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    assert set(stubs.STUBS) == {
        "optim.pyi", "loss.pyi", "graph/_ops.pyi", "_compile/compile.pyi", "_compile/strategy.pyi",
    }  # fmt: skip
    for name, stub in stubs.STUBS.items():
        assert (PACKAGE / name).read_text() == stub(), f"{name} is not current: run `make docs`"
        ast.parse(stub())
    assert "class AdamW(Optimizer):" in stubs.optim_stub()
    assert (
        "def compile(graph: Graph, backend: str = 'cpu', world: Communicator | None = None, *, passes: "
        in stubs.compile_stub()
    )
    assert "check_every: int = 512, " in stubs.compile_stub() and "check_every: int" not in stubs.strategy_stub()
    assert "def concat(*xs: Operand | Sequence[Operand], dim: int) -> Value:" in stubs.ops_stub()
    assert "def sgd(w: Operand, g: Operand, *, learning_rate: float | Value, weight_decay: " in stubs.ops_stub()
    assert (
        "def mean_squared_error(prediction: str, target: str = 'target', reduction: str = 'mean', " in stubs.loss_stub()
    )


def test_the_stub_types_every_public_name() -> None:
    tree = ast.parse((PACKAGE / "_lockstep.pyi").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    names = {
        name: {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
        for name, node in classes.items()
    }
    assert {"mpi", "single", "in_process", "rank", "size"} <= names["Communicator"]
    assert {"state", "graph", "steps", "__call__"} <= names["Executable"]
    assert {"inputs", "results", "states", "__str__"} <= names["Graph"]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 20
    for function in functions:
        assert function.returns is not None, function.name
        for argument in function.args.args:
            assert argument.arg == "self" or argument.annotation is not None, function.name
    assert (PACKAGE / "py.typed").exists()
    for name in ls.__all__:
        assert hasattr(ls, name), name
