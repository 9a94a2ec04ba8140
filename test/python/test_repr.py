"""The repr of graphs, executables, states and the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lockstep as ls
from test_errors import mlp, training


def test_one_line_says_what_it_is() -> None:
    step = training()
    assert repr(mlp()) == "<lockstep.Graph @mlp(x: f32[6,12]) -> (logits), 6 states, 11 nodes>"
    assert repr(step).startswith("<lockstep.Graph @mlp(x: f32[6,12], label: i64[6]) -> (loss), 6 states, ")
    exe = ls.compile(step, threads=1)
    shown = repr(exe)
    assert shown.startswith("<lockstep.Executable @mlp(x: f32[6,12], label: i64[6]) -> (loss), 6 states, ")
    assert shown.endswith(" steps, cpu, rank 0 of 1>")
    assert repr(exe.state) == (
        "<lockstep states fc1.weight f32[16,12], fc1.bias f32[16], fc2.weight f32[8,16], fc2.bias f32[8] and 2 more>"
    )


def test_of_many_results_the_first() -> None:
    gradients = repr(ls.train_step(mlp(), ls.loss.softmax_cross_entropy(), None))
    assert "-> (loss, grad/fc1.weight, grad/fc1.bias, grad/fc2.weight, and 3 more), 6 states" in gradients


def test_a_graph_is_not_called() -> None:
    for call in (lambda: mlp()(16), lambda: mlp()(x=16)):
        with pytest.raises(TypeError, match=r"^graph @mlp is not compiled: use exe = lockstep\.compile\(graph\)"):
            call()


def test_the_version() -> None:
    assert ls.__version__ == "0.1.0"
    command = Path(ls.__file__).parent / "_command.py"
    done = subprocess.run([sys.executable, command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"lockstep {ls.__version__}\n"
