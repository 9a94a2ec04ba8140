"""The roofline of a step: sums over its steps, what ResNet-50 and GPT need at least on an H200, and its reorders."""

from __future__ import annotations

import dataclasses
import re
import sys

import numpy as np
import pytest

import lockstep as ls
from cases import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

MLP = """graph @mlp(%x: f32[64,128], state %w1: f32[128,256], state %w2: f32[256,10]) -> (logits: f32[64,10]) {
  %1 = matmul %x, %w1 : f32[64,256] @"torch:body.0.linear/node_MatMul_1"
  %2 = relu %1 : f32[64,256] @"torch:body.1/node_Relu_2"
  %logits = matmul %2, %w2 : f32[64,10] @"torch:head/node_MatMul_3"
  return %logits
}"""


def test_a_roofline_adds_up() -> None:
    exe = ls.compile(ls.parse(MLP), threads=1)
    roofline = exe.roofline()
    assert roofline.machine == "1 thread of this processor, measured"
    products = 2 * 64 * 128 * 256 + 2 * 64 * 256 * 10
    assert roofline.operations == products + 64 * 256
    assert roofline.bytes == 4 * (64 * 128 + 128 * 256 + 3 * 64 * 256 + 64 * 256 + 256 * 10 + 64 * 10)
    assert roofline.least_bytes == roofline.bytes
    assert [step.measured for step in roofline.steps] == [0.0] * 3
    assert roofline.seconds == pytest.approx(sum(step.seconds for step in roofline.steps))
    assert roofline.seconds == pytest.approx(sum(roofline.kinds.values()))
    assert list(roofline.layers) == sorted(roofline.layers, key=lambda name: -roofline.layers[name])
    assert set(roofline.layers) == {"body.0", "body.1", "head"}
    assert set(exe.roofline(depth=1).layers) == {"body", "head"}
    for line in ("kind", "layer", "(1 thread of this processor, measured)", "ratio 1.000"):
        assert line in str(roofline)


def test_steps_have_their_measured_times() -> None:
    exe = ls.compile(ls.parse(MLP), threads=1)
    for _ in range(3):
        exe(x=np.ones((64, 128), np.float32))
    for step, (name, seconds) in zip(exe.roofline().steps, exe.profile, strict=True):
        assert (step.step, step.measured) == (name, pytest.approx(seconds / 3))


def test_a_depth_is_a_positive_number() -> None:
    exe = ls.compile(ls.parse(MLP), threads=1)
    with pytest.raises(ls.Error, match=r"roofline: depth is 0, expected at least 1"):
        exe.roofline(depth=0)


# The numbers of docs/gpu.md: milliseconds, gigabytes, and how many times the least bytes they are.
@pytest.mark.parametrize(
    ("name", "changes", "milliseconds", "gigabytes", "ratio"),
    [
        ("resnet50", {}, 12.54, 47.63, 1.290),
        ("gpt", {"layers": 1}, 7.655, 14.84, 1.040),
        pytest.param("gpt", {}, 24.29, 56.30, 1.086, marks=pytest.mark.everything),
    ],
    ids=["resnet50", "gpt of one layer", "gpt"],
)
def test_the_least_time_of_a_step_on_an_h200(
    name: str, changes: dict[str, int], milliseconds: float, gigabytes: float, ratio: float
) -> None:
    """ResNet-50 takes 17.8 ms with operands of f32 for the gradients of filters, and 13.7 with two passes for the
    statistics of batch normalisation and with relu's masks read from memory.
    """
    benchmark = pytest.importorskip("roofline")
    spec = dataclasses.replace(benchmark.SPECS[name], **changes)
    printed = benchmark.roofline(spec, "bf16", "h200")
    least = re.search(r"^ *([0-9.]+) .* all$", printed, re.MULTILINE)
    moved = re.search(r"^bytes: ([0-9.]+) MB; .*, ratio ([0-9.]+)$", printed, re.MULTILINE)
    assert least is not None and moved is not None, printed[:1000]
    found = (float(least[1]), float(moved[1]) / 1e3, float(moved[2]))
    assert found == pytest.approx((milliseconds, gigabytes, ratio), rel=2e-3)


@pytest.mark.parametrize(
    ("precision", "reorders", "convolutions", "row_major"),
    [("bf16", 0, 125, 0), (None, 16, 158, 2)],
    ids=["bf16", "TF32"],
)
def test_only_filters_are_reordered_between_convolutions(
    precision: str | None, reorders: int, convolutions: int, row_major: int
) -> None:
    """In TF32 the stem, with three channels, and the gradient of its filter are row-major. In bf16 a conversion writes
    filters, and cuBLASLt computes the gradients of 33 of them.
    """
    benchmark = pytest.importorskip("roofline")
    steps = benchmark.dry(benchmark.SPECS["resnet50"], precision, "h200").splitlines()
    found = [step for step in steps if " ptx.reorder " in step]
    assert len(found) == reorders
    assert all(re.search(r" reads %[^ ]*\.weight  writes ", step) for step in found)
    of_cudnn = [step for step in steps if " cudnn.convolution" in step]
    assert (len(of_cudnn), sum(":channels-last" not in step for step in of_cudnn)) == (convolutions, row_major)
