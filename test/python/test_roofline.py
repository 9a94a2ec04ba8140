"""The roofline of a step: sums over its steps, what they lost, what ResNet-50 and GPT need at least on an H200, and its
reorders.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep as ls
from cases import ROOT
from lockstep._reports.report import Report, seconds_of_steps
from lockstep._reports.roofline import roofline_of_executable
from ranks import run_in_threads

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
    exe(x=np.ones((64, 128), np.float32))
    with pytest.raises(ls.Error, match=r"report: depth is 0, expected at least 1"):
        exe.report(roofline=True, depth=0)


def called(calls: int) -> ls.Executable:
    exe = ls.compile(ls.parse(MLP), threads=1)
    for _ in range(calls):
        exe(x=np.ones((64, 128), np.float32))
    return exe


def test_a_report_against_the_roofline_adds_up() -> None:
    report = called(5).report(calls=3, roofline=True)
    roofline = report.roofline
    assert roofline is not None
    assert roofline.measured == pytest.approx(report.compute)
    assert [step.measured for step in roofline.steps] == [seconds for _, seconds in report.steps]
    assert roofline.seconds + roofline.lost == pytest.approx(report.compute)
    for sums in (roofline.lost_by_kind, roofline.lost_by_layer):
        assert sum(sums.values()) == pytest.approx(roofline.lost)
        assert list(sums.values()) == sorted(sums.values(), reverse=True)
    assert set(roofline.lost_by_layer) == {"body.0", "body.1", "head"}
    assert list(report.lost) == ["steps", "exposed", "waiting", "other", "between"]
    assert roofline.seconds + sum(report.lost.values()) == pytest.approx(report.total + report.between)
    assert f"least time      {1e3 * roofline.seconds:>9.3f} ms" in str(report)
    assert f"lost in steps   {1e3 * roofline.lost:>9.3f} ms" in str(report)
    assert "compute" not in str(report)
    assert str(report).endswith(str(roofline).rstrip())
    assert "(1 thread of this processor, measured)" in report._repr_html_()


def test_a_report_without_a_roofline_measures_nothing() -> None:
    report = called(1).report()
    assert (report.roofline, report.lost) == (None, {})
    assert "compute" in str(report)
    assert "least" not in str(report)


def test_a_report_of_two_ranks_adds_up() -> None:
    model = ls.load_onnx(ROOT / "test/models/mlp.onnx", dims={"batch": 8})
    step = ls.train_step(model, ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1))

    def body(world: ls.Communicator) -> tuple[float, float]:
        exe = ls.compile(step, world=world, threads=1)
        for _ in range(3):
            exe(x=np.ones((4, 12), np.float32), label=np.zeros(4, np.int64))
        report = exe.report(roofline=True)
        assert report.roofline is not None
        assert report.exposed + report.waiting > 0
        return report.roofline.seconds + sum(report.lost.values()), report.total + report.between

    results = run_in_threads(2, body)
    for least_and_lost, whole in results:
        assert least_and_lost == pytest.approx(whole)


def test_operations_are_counted_as_by_hand() -> None:
    """A product of m x k and k x n does 2mnk operations, and each element of a convolution 2 x channels x taps."""
    exe = ls.compile(
        ls.parse("""graph @f(%a: f32[5,7], %b: f32[7,11], %x: f32[2,3,8,8], %w: f32[16,3,3,3])
            -> (y: f32[5,11], z: f32[2,16,8,8]) {
          %y = matmul %a, %b : f32[5,11]
          %z = convolution %x, %w {stride=[1, 1], padding_low=[1, 1], padding_high=[1, 1], dilation=[1, 1], groups=1} : f32[2,16,8,8]
          return %y, %z
        }"""),
        threads=1,
    )
    for _ in range(2):
        exe(
            a=np.ones((5, 7), np.float32),
            b=np.ones((7, 11), np.float32),
            x=np.ones((2, 3, 8, 8), np.float32),
            w=np.ones((16, 3, 3, 3), np.float32),
        )
    roofline = exe.roofline()
    steps = {step.kind: step for step in roofline.steps}
    product, convolution = steps["onednn.matmul"], steps["onednn.convolution"]
    assert product.operations == 2 * 5 * 7 * 11
    assert product.bytes == 4 * (5 * 7 + 7 * 11 + 5 * 11)
    assert convolution.operations == 2 * (2 * 16 * 8 * 8) * (3 * 3 * 3)
    assert convolution.bytes == 4 * (2 * 3 * 8 * 8 + 16 * 3 * 3 * 3 + 2 * 16 * 8 * 8)
    for step in (product, convolution):
        assert step.arithmetic == "f32"
        assert step.operations_per_second == pytest.approx(step.operations / step.measured)
        assert step.bytes_per_second == pytest.approx(step.bytes / step.measured)
        assert step.lost == pytest.approx(step.measured - max(step.by_operations, step.by_bytes))
        line = next(line for line in str(roofline).splitlines() if line.endswith(step.step))
        for rate, ceiling in (
            (step.operations_per_second, roofline.operations_per_second["f32"]),
            (step.bytes_per_second, roofline.bytes_per_second),
        ):
            assert f" {1e-9 * rate:.3f} of {1e-9 * ceiling:.4g} " in line


def test_large_steps_are_below_their_ceilings() -> None:
    """The rates of a large product, and of a copy that no cache holds: the best of some attempts beside the highest
    ceilings, as other programs may slow both."""
    size, elements = 1024, 1 << 24
    exe = ls.compile(
        ls.parse(f"""graph @f(%a: f32[{size},{size}], %b: f32[{size},{size}], %x: f32[{elements}])
            -> (y: f32[{size},{size}], z: f32[{elements}]) {{
          %y = matmul %a, %b : f32[{size},{size}]
          %z = relu %x : f32[{elements}]
          return %y, %z
        }}"""),
        threads=1,
    )
    inputs = {"a": np.ones((size, size), np.float32), "b": np.ones((size, size), np.float32)}
    found = []  # the rates and ceilings of the product and of the copy
    for _ in range(5):
        exe(**inputs, x=np.ones(elements, np.float32))
        roofline = exe.report(calls=1, roofline=True).roofline
        assert roofline is not None
        rates = {step.kind: (step.operations_per_second, step.bytes_per_second) for step in roofline.steps}
        ceilings = roofline.operations_per_second
        assert ceilings["f64"] == ceilings["f32"] / 2 and ceilings["tf32"] == ceilings["f32"] <= ceilings["16 bits"]
        found.append((rates["onednn.matmul"][0], ceilings["f32"], rates["llvm.relu"][1], roofline.bytes_per_second))
    operations, most_operations, moved, most_moved = np.max(found, axis=0)
    assert 1e9 < most_operations < 1e13
    assert 1e8 < most_moved < 1e12
    assert 0.02 < operations / most_operations < 1.2, found
    assert 0.02 < moved / most_moved < 1.2, found


def test_a_step_faster_than_its_least_time_has_lost_less_than_nothing() -> None:
    exe = ls.compile(ls.parse(MLP), threads=1)
    roofline = roofline_of_executable(exe, 2, [1e-9, 2.0, 3.0])
    steps = roofline.steps
    assert steps[0].lost == 1e-9 - steps[0].seconds < 0
    assert [step.lost for step in steps[1:]] == [2.0 - steps[1].seconds, 3.0 - steps[2].seconds]
    assert roofline.lost == pytest.approx(5.000000001 - roofline.seconds)
    fast = f"faster than their least time: 1 of 3 steps, by {-1e3 * steps[0].lost:.3f} ms in all"
    assert fast in str(roofline).splitlines()


def test_without_calls_nothing_is_lost() -> None:
    roofline = ls.compile(ls.parse(MLP), threads=1).roofline()
    assert (roofline.measured, roofline.lost) == (0, 0)
    assert {(step.lost, step.operations_per_second, step.bytes_per_second) for step in roofline.steps} == {(0, 0, 0)}
    assert "lost" not in str(roofline)


def test_steps_that_run_at_once_have_no_roofline() -> None:
    """As on a GPU, where the record has one time for all kernels."""
    report = called(1).report()
    at_once: Report = dataclasses.replace(report, steps=[(step, 0.0) for step, _ in report.steps])
    assert seconds_of_steps(report) == [seconds for _, seconds in report.steps]
    with pytest.raises(ls.Error, match=r"known on a GPU only with compile\(profile=True\)"):
        seconds_of_steps(at_once)


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


def report_of_times() -> Report:
    """A report of three steps that take 0.1, 0.2 and 0.3 s."""
    exe = called(1)
    roofline = roofline_of_executable(exe, 2, [0.1, 0.2, 0.3])
    return dataclasses.replace(
        exe.report(), roofline=roofline, exposed=0.01, waiting=0.02, other=0.03, between=0.04, total=0.66
    )


def test_the_tables_of_the_document_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # before other folders that have a contestant.py
    monkeypatch.delitem(sys.modules, "contestant", raising=False)
    benchmark = importlib.import_module("lost_time")
    report = report_of_times()
    whole, *parts = (float(row.split("|")[2].split()[0]) for row in benchmark.parts({"mlp": report})[2:])
    assert whole == 700
    assert sum(parts) == pytest.approx(700, abs=0.5), "each is rounded to a tenth"
    for name, groups in (("kind", 2), ("layer", 3)):
        rows = [row.split("|") for row in benchmark.sums(report.roofline.steps, name)[2:]]
        assert len(rows) == groups + 1
        for column in range(2, 6):
            numbers = [float(row[column]) for row in rows]
            assert sum(numbers[:-1]) == pytest.approx(numbers[-1], abs=0.3)
        assert float(rows[-1][4]) == 600
    document = tmp_path / "performance.md"
    document.write_text(f"before\n{benchmark.BEGIN}old\n{benchmark.END}after\n")
    for _ in range(2):
        benchmark.write(document, {"mlp": report})
        text = document.read_text()
        assert text.startswith(f"before\n{benchmark.BEGIN}") and text.endswith(f"{benchmark.END}after\n")
        assert "old" not in text and text.count("| from call to call | 700.0 ms |") == 1
    assert benchmark.BEGIN in benchmark.DOCUMENT.read_text()
