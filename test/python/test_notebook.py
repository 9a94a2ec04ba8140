"""What notebooks show of graphs and reports, and Ctrl-C while a step runs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import lockstep as ls
from test_errors import mlp, training

# A step of about 50 ms, of which nearly all is one product.
SLOW = """graph @slow(%x: f32[1200,1200], state %w: f32[1200,1200]) -> (%w: f32[1200,1200]) {
  %0 = matmul %w, %x : f32[1200,1200]
  %1 = tanh %0 : f32[1200,1200]
  return %1
}
"""


def test_a_graph_is_drawn(tmp_path: Path) -> None:
    training().save_svg(tmp_path / "step.svg")
    assert training()._repr_svg_() == (tmp_path / "step.svg").read_text() and "optimizer" in training()._repr_svg_()


def test_without_graphviz_and_for_large_graphs_there_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = "".join(f'  %{i + 1} = exp %{i} : f32[1] @"onnx:/layer{i}/Exp"\n' for i in range(101))
    assert ls.parse(f"graph @long(%0: f32[1]) -> (y: f32[1]) {{\n{layers}  return %101\n}}\n")._repr_svg_() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mlp()._repr_svg_() is None


def test_a_report_is_a_table() -> None:
    exe = ls.compile(training(), threads=1)
    x, label = np.ones((6, 12), np.float32), np.zeros(6, np.int64)
    for _ in range(3):
        exe(x=x, label=label)
    report = exe.report()
    shown = ElementTree.fromstring(f"<div>{report._repr_html_()}</div>")
    text = " ".join(shown.itertext())
    assert "@mlp on rank 0: 3 calls" in text and "kernels and copies" in text
    assert all(str(step) in text for step, _ in report.slowest())
    widths = [float(span.get("style", "").split("width:")[1].split("%")[0]) for span in shown.findall("./div/span")]
    assert len(widths) == 4 and sum(widths) == pytest.approx(100, abs=0.1)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Lets SIGINT raise KeyboardInterrupt, which it does not in processes that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_a_step_loses_nothing() -> None:
    """The step that runs is finished, and the next ones have the bits of a run without Ctrl-C."""
    values = np.random.default_rng(0).normal(size=(2, 1200, 1200)).astype(np.float32)
    exe, undisturbed = (ls.compile(ls.parse(SLOW), threads=1) for _ in range(2))
    for each in (exe, undisturbed):
        each.state["w"] = values[0]
    for seconds in (0.05, 0.1, 0.15):
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            for _ in range(200):
                exe(x=values[1])
        timer.join()
    assert exe.step >= 3
    for _ in range(exe.step):
        undisturbed(x=values[1])
    assert np.array_equal(exe.state["w"], undisturbed.state["w"])
