"""Pooling, transposed convolution, resizing, sampling and regions: compared with ONNX Runtime where ONNX's own cases
are incomplete; gradients at points that are not smooth; and refusals.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import lockstep as ls
from test_onnx_functions import model_of, random, refuses, run

F = np.float32
NOTHING = np.empty(0, F)


def runtime(op: str, *arrays: np.ndarray, opset: int = 20, outputs: int = 1, **attributes: Any) -> Any:
    """ONNX Runtime's results. An empty array stands for an absent input."""
    names = [f"x{i}" if array.size else "" for i, array in enumerate(arrays)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    values = {name: array for name, array in zip(names, arrays, strict=True) if name}
    model = model_of(node, values, {}, opset)
    results = onnxruntime.InferenceSession(model.SerializeToString()).run(None, values)
    return results[0] if outputs == 1 else results


def ours(op: str, *arrays: np.ndarray, opset: int = 20, outputs: int = 1, **attributes: Any) -> Any:
    """Our results. Small inputs other than the first are fixed at import."""
    names = [f"x{i}" if array.size else "" for i, array in enumerate(arrays)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="it", **attributes)
    values = {name: array for name, array in zip(names, arrays, strict=True) if name}
    graph = ls.load_onnx(model_of(node, values, {}, opset), split={}, values=values)
    taken = {info.name for info in graph.inputs}
    results = ls.compile(graph)(**{name: value for name, value in values.items() if name in taken})
    return results["y0"] if outputs == 1 else [results[f"y{i}"] for i in range(outputs)]


def agrees(op: str, *arrays: np.ndarray, atol: float = 1e-5, **options: Any) -> None:
    found, expected = ours(op, *arrays, **options), runtime(op, *arrays, **options)
    for ours_, theirs in zip(
        *([each] if isinstance(each, np.ndarray) else each for each in (found, expected)), strict=True
    ):
        assert ours_.shape == theirs.shape and ours_.dtype == theirs.dtype
        np.testing.assert_allclose(ours_, theirs, atol=atol, rtol=1e-4)


# Pooling


@pytest.mark.parametrize("storage_order", [0, 1])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        ((2, 3, 7, 6), {"kernel_shape": [2, 3], "strides": [2, 1], "dilations": [2, 2], "pads": [1, 0, 0, 1]}),
        ((1, 2, 6, 7), {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
        ((1, 2, 5, 6, 4), {"kernel_shape": [2, 2, 2], "strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    ],
)
def test_maxima_and_where_they_are(shape: tuple[int, ...], attributes: dict[str, Any], storage_order: int) -> None:
    if storage_order == 1 and len(shape) != 4:
        pytest.skip("ONNX Runtime gives it another meaning there")
    agrees("MaxPool", random(*shape), outputs=2, opset=12, storage_order=storage_order, **attributes)


def test_the_first_of_equal_maxima_is_found_and_nan_is_one() -> None:
    x = np.zeros((1, 1, 4, 4), F)
    y, at = ours("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    assert at.ravel().tolist() == [0, 2, 8, 10]
    x[0, 0, 1, 1] = np.nan
    y, at = ours("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
    assert np.isnan(y[0, 0, 0, 0]) and at.ravel().tolist() == [5, 2, 8, 10]
    x[:] = -np.inf
    y, at = ours("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1])
    assert at.ravel().tolist() == [0, 1, 3, 4, 5, 7, 12, 13, 15]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_maxima_of_bytes(dtype: type) -> None:
    x = np.random.default_rng(0).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, 3, 7, 7)).astype(dtype)
    agrees("MaxPool", x, opset=12, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 9), {"kernel_shape": [3], "dilations": [2], "pads": [2, 2]}),
        ((2, 3, 7, 6), {"kernel_shape": [2, 3], "strides": [2, 1], "dilations": [2, 1], "pads": [1, 1, 1, 1]}),
        ((1, 2, 5, 6, 4), {"kernel_shape": [2, 2, 2], "dilations": [1, 2, 1], "strides": [1, 2, 1]}),
    ],
)
def test_averages_of_dilated_windows(shape: tuple[int, ...], attributes: dict[str, Any], include: int) -> None:
    agrees("AveragePool", random(*shape), count_include_pad=include, **attributes)


def test_averages_do_not_count_what_lies_after_the_padding() -> None:
    x = random(1, 2, 5, 4)
    found = ours(
        "AveragePool", x, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 0], ceil_mode=1, count_include_pad=1
    )
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 0)))
    windows = [[padded[:, :, i : i + 3, j : j + 2].mean((2, 3)) for j in (0, 2, 4)] for i in (0, 2, 4)]
    np.testing.assert_allclose(found, np.moveaxis(np.array(windows), (0, 1), (2, 3)), rtol=1e-5)


def test_windows_that_lie_in_the_padding_have_no_maximum() -> None:
    found = ours("MaxPool", np.array([[[3, 1, 2]]], F), kernel_shape=[2], pads=[2, 1])
    assert found.ravel().tolist() == [-np.inf, 3, 3, 2, 2]


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows(p: int) -> None:
    x = random(2, 3, 8, 7)
    agrees("LpPool", x, p=p, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    agrees("LpPool", x, p=p, kernel_shape=[2, 2], dilations=[2, 3])
    agrees("GlobalLpPool", x, p=p)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_local_response(size: int) -> None:
    agrees("LRN", random(2, 5, 4, 3), size=size | 1, alpha=0.3, beta=0.6, bias=1.5)
    if size % 2 == 0:  # ONNX Runtime requires odd sizes
        x = random(2, 5, 4, 3).astype(np.float64)
        squares = np.pad(x * x, ((0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)))
        sums = sum(squares[:, i : i + 5] for i in range(size))
        found = ours("LRN", x.astype(F), size=size, alpha=0.3, beta=0.6, bias=1.5)
        np.testing.assert_allclose(found, x / (1.5 + 0.3 / size * sums) ** 0.6, rtol=1e-5)


def test_regions_by_their_maxima() -> None:
    x = random(2, 3, 9, 8)
    rois = np.array([[0, 1, 1, 5, 6], [1, 0, 0, 15, 17], [1, 3, 3, 3, 3], [0, 6, 7, 40, 40]], F)
    for scale in (1.0, 0.5):
        agrees("MaxRoiPool", x, rois, opset=12, pooled_shape=[3, 2], spatial_scale=scale)


# Transposed convolution


@pytest.mark.parametrize(
    ("x", "filter_", "attributes"),
    [
        ((2, 4, 5), (4, 3, 3), {"strides": [2], "pads": [1, 0]}),
        ((2, 4, 5, 4), (4, 3, 3, 2), {"strides": [3, 2], "output_padding": [2, 1], "pads": [1, 0, 0, 1]}),
        ((2, 4, 5, 4), (4, 3, 3, 2), {"dilations": [2, 3], "group": 2}),
        ((2, 4, 5, 4), (4, 1, 3, 3), {"strides": [2, 2], "group": 4, "auto_pad": "SAME_UPPER"}),
        ((2, 4, 5, 4), (4, 1, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
        ((2, 4, 5, 4), (4, 2, 3, 3), {"strides": [2, 2], "output_shape": [10, 8]}),
        ((2, 4, 5, 4), (4, 2, 3, 4), {"strides": [2, 3], "output_shape": [8, 10], "auto_pad": "SAME_UPPER"}),
        ((2, 4, 5, 4), (4, 2, 3, 4), {"strides": [2, 3], "output_shape": [8, 10], "auto_pad": "SAME_LOWER"}),
        ((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 0, 1]}),
    ],
)
def test_transposed_convolution(x: tuple[int, ...], filter_: tuple[int, ...], attributes: dict[str, Any]) -> None:
    bias = random(filter_[1] * attributes.get("group", 1), seed=2)
    agrees("ConvTranspose", random(*x), random(*filter_, seed=1), bias, opset=11, **attributes)


def test_output_padding_beyond_the_stride_is_zeros() -> None:
    x, filter_, bias = random(2, 4, 5, 4), random(4, 2, 3, 3, seed=1), np.array([3, 4], F)
    whole = ours("ConvTranspose", x, filter_, bias, dilations=[2, 2])
    padded = ours("ConvTranspose", x, filter_, bias, dilations=[2, 2], output_padding=[1, 0])
    np.testing.assert_allclose(padded[:, :, :-1], whole, rtol=1e-5)
    np.testing.assert_array_equal(padded[:, :, -1], np.broadcast_to(bias[:, None], (2, 2, 8)))


def test_transposed_convolution_runs_on_onednn_and_so_do_its_gradients() -> None:
    x, filter_ = random(2, 4, 5, 5), random(4, 3, 3, 3, seed=1)
    step = gradients("ConvTranspose", {"x": x, "w": filter_}, {}, ["x", "w"], strides=[2, 2])
    text = ls.compile(step).steps
    for kernel in ("onednn.convolution_grad_input", "onednn.convolution_grad_filter", "onednn.convolution "):
        assert kernel in text
    assert "reference." not in text


# Resize

TRANSFORMS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("transform", [*TRANSFORMS, "half_pixel_symmetric"])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_the_nearest(transform: str, nearest: str) -> None:
    x = np.arange(2 * 3 * 4 * 6, dtype=F).reshape(2, 3, 4, 6)
    for sizes in ([2, 3, 8, 18], [2, 3, 2, 3], [2, 3, 7, 4], [2, 3, 1, 9]):
        agrees(
            "Resize", x, NOTHING, NOTHING, np.array(sizes),
            mode="nearest", coordinate_transformation_mode=transform, nearest_mode=nearest,
        )  # fmt: skip


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_between(mode: str, transform: str) -> None:
    x = random(2, 3, 6, 8)
    for sizes in ([2, 3, 12, 16], [2, 3, 12, 24], [2, 3, 3, 4], [2, 3, 9, 12], [2, 3, 5, 11], [2, 3, 4, 6]):
        agrees("Resize", x, NOTHING, NOTHING, np.array(sizes), mode=mode, coordinate_transformation_mode=transform)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_of_wide_images_and_by_scales(mode: str) -> None:
    # ONNX Runtime computes positions in f32, with an error of 6e-5 elements at 500.
    agrees("Resize", random(1, 2, 4, 700), NOTHING, np.array([1, 1, 1.7, 1.31], F), mode=mode, atol=5e-4)
    agrees("Resize", random(1, 2, 4, 700), NOTHING, np.array([1, 1, 2, 0.4], F), mode=mode, atol=5e-4)


def test_cubic_resize_without_what_is_outside() -> None:
    for sizes in ([1, 2, 12, 16], [1, 2, 4, 5]):
        agrees(
            "Resize", random(1, 2, 6, 8), NOTHING, NOTHING, np.array(sizes),
            mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5,
        )  # fmt: skip


def test_upsample_of_all_opsets() -> None:
    x = random(2, 3, 4, 5)
    scales = np.array([1, 1, 2, 3], F)
    for mode in ("nearest", "linear"):
        y = runtime("Upsample", x, scales, opset=9, mode=mode)
        np.testing.assert_allclose(ours("Upsample", x, scales, opset=9, mode=mode), y, atol=1e-6)
        np.testing.assert_allclose(ours("Upsample", x, opset=7, mode=mode, scales=[1.0, 1.0, 2.0, 3.0]), y, atol=1e-6)
        np.testing.assert_allclose(ours("Resize", x, scales, opset=10, mode=mode), y, atol=1e-6)
    agrees("Resize", x, np.array([1, 1, 0.5, 0.6], F), opset=10, mode="nearest")


def test_resize_to_one_element_and_between_elements() -> None:
    x = np.arange(12, dtype=F).reshape(1, 1, 3, 4)
    # A single element is the middle of the region; regions end at elements, and 1 is the last element.
    roi = np.array([0, 0, 0.0, 0.25, 1, 1, 1.0, 0.75], F)
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    found = ours("Resize", x, roi, NOTHING, np.array([1, 1, 1, 1]), **crop)
    np.testing.assert_allclose(found.ravel(), [5.5], rtol=1e-6)
    # As many elements as before, from a part of the image.
    found = ours("Resize", x, roi, NOTHING, np.array([1, 1, 3, 4]), **crop)
    rows, columns = np.array([0, 1, 2]), 3 * np.linspace(0.25, 0.75, 4)
    np.testing.assert_allclose(found[0, 0], 4 * rows[:, None] + columns, rtol=1e-6)
    # The same with a scale that adds less than one element.
    found = ours(
        "Resize", x, NOTHING, np.array([1, 1, 1, 1.2], F), mode="linear", coordinate_transformation_mode="asymmetric"
    )
    np.testing.assert_allclose(found[0, 0, 0], np.arange(4) / 1.2, rtol=1e-6)
    found = ours(
        "Resize",
        x,
        NOTHING,
        NOTHING,
        np.array([1, 1, 3, 2]),
        nearest_mode="floor",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    )
    np.testing.assert_array_equal(found[0, 0, 0], [1, 3])


def test_resize_of_axes_from_the_end_and_antialiased_growth() -> None:
    x = random(2, 3, 4, 6)
    sizes = {"mode": "linear", "opset": 18}
    named = ours("Resize", x, NOTHING, NOTHING, np.array([7, 9]), axes=[-1, -2], **sizes)
    by_place = ours("Resize", x, NOTHING, NOTHING, np.array([2, 3, 9, 7]), **sizes)
    np.testing.assert_allclose(named, by_place, atol=1e-6)
    # Enlarging does not blur.
    for mode in ("linear", "cubic"):
        plain = {"mode": mode, "opset": 18, "exclude_outside": 1}
        grown = ours("Resize", x, NOTHING, NOTHING, np.array([2, 3, 9, 12]), antialias=1, **plain)
        np.testing.assert_allclose(
            grown, ours("Resize", x, NOTHING, NOTHING, np.array([2, 3, 9, 12]), **plain), atol=1e-5
        )


def test_resize_of_bytes_rounds() -> None:
    x = np.arange(48, dtype=np.uint8).reshape(1, 1, 6, 8)
    found = ours("Resize", x, NOTHING, NOTHING, np.array([1, 1, 9, 12]), mode="linear")
    expected = ours("Resize", x.astype(F), NOTHING, NOTHING, np.array([1, 1, 9, 12]), mode="linear")
    np.testing.assert_array_equal(found, np.round(expected).astype(np.uint8))


# Sampling


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize(
    ("mode", "padding"),
    list(itertools.product(["bilinear", "nearest", "bicubic"], ["zeros", "border", "reflection"])),
)
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    grid = 1.6 * random(2, 4, 5, 2, seed=1)
    agrees(
        "GridSample",
        random(2, 3, 6, 5),
        grid,
        opset=16,
        mode=mode,
        padding_mode=padding,
        align_corners=align,
        atol=1e-4,
    )


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_of_volumes(padding: str) -> None:
    grid = 1.3 * random(2, 3, 4, 2, 3, seed=1)
    for mode in ("linear", "nearest"):
        agrees("GridSample", random(2, 3, 4, 6, 5), grid, opset=20, mode=mode, padding_mode=padding, atol=1e-4)


def test_a_grid_without_numbers_reads_nothing_else() -> None:
    x, grid = random(1, 1, 3, 3), np.full((1, 1, 3, 2), np.nan, F)
    grid[0, 0, 1] = np.inf
    grid[0, 0, 2] = 0
    y = ours("GridSample", x, grid, mode="linear")
    assert np.isnan(y[0, 0, 0, 0]) and y[0, 0, 0, 1] == 0
    np.testing.assert_allclose(y[0, 0, 0, 2], x[0, 0, 1, 1], rtol=1e-6)
    for mode in ("linear", "nearest", "cubic"):
        assert ours("GridSample", x, np.full((1, 1, 1, 2), 1e30, F), mode=mode) == 0


@pytest.mark.parametrize("groups", [1, 2])
def test_deformable_convolution_without_offsets_is_convolution(groups: int) -> None:
    x, filter_, bias = random(2, 4, 7, 6), random(6, 4 // groups, 3, 2, seed=1), random(6, seed=2)
    options = {"strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2], "group": groups}
    expected = runtime("Conv", x, filter_, bias, **options)
    offsets = np.zeros((2, 2 * 6 * 2, *expected.shape[2:]), F)
    found = ours("DeformConv", x, filter_, offsets, bias, offset_group=2, **options)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
def test_aligned_regions(mode: str, ratio: int) -> None:
    x = random(2, 3, 9, 8)
    rois = np.array([[1, 1, 5, 6], [0, 0, 15, 17], [3, 3, 3.5, 3.25], [6.5, 7, 40, 40], [-5, -6, 2, 3]], F)
    image = np.array([0, 1, 1, 0, 1])
    for transform, scale in itertools.product(["half_pixel", "output_half_pixel"], [1.0, 0.5]):
        agrees(
            "RoiAlign", x, rois, image, opset=16, mode=mode, output_height=3, output_width=2, sampling_ratio=ratio,
            spatial_scale=scale, coordinate_transformation_mode=transform,
        )  # fmt: skip


# Gradients


def gradients(
    op: str,
    data: dict[str, np.ndarray],
    fixed: dict[str, np.ndarray],
    wrt: list[str],
    opset: int = 20,
    **attributes: Any,
) -> ls.Graph:
    """The graph of loss = sum(y * y) / 2, and its gradients."""
    values = {**data, **fixed}
    model = model_of(helper.make_node(op, list(values), ["y"], name="it", **attributes), data, fixed, opset)
    model.graph.node.append(helper.make_node("Mul", ["y", "y"], ["squares"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["squares"], ["sum"], keepdims=0))
    half = helper.make_node("Constant", [], ["half"], value=helper.make_tensor("half", 1, [], [0.5]))
    model.graph.node.extend([half, helper.make_node("Mul", ["sum", "half"], ["loss"])])
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", 1, []))
    return ls.gradients(ls.load_onnx(model, split={}), "loss", wrt)


def gradient(
    op: str, data: dict[str, np.ndarray], fixed: dict[str, np.ndarray], wrt: str, **options: Any
) -> np.ndarray:
    return ls.compile(gradients(op, data, fixed, [wrt], **options))(**data)[f"grad/{wrt}"]


def test_gradients_of_grids_at_elements_and_at_the_border() -> None:
    x = np.array([1, 2, 4, 8, 16], F).reshape(1, 1, 1, 5)
    # Positions 0, 1, 1.5, 4 and 6 along the width; the height is one element.
    place = np.array([0, 1, 1.5, 4, 6], F)
    grid = np.stack([place / 2 - 1, np.zeros(5, F)], -1).reshape(1, 1, 5, 2)
    options = {"opset": 16, "mode": "bilinear", "padding_mode": "border", "align_corners": 1}
    found = gradient("GridSample", {"x": x, "g": grid}, {}, "g", **options)
    # y times dy by position, times 2: at an element the derivative is that of the interval after it; at the border and
    # outside it is zero.
    np.testing.assert_allclose(found[0, 0, :, 0], [0, 2 * 2 * 2, 3 * 2 * 2, 0, 0], atol=1e-4)
    found = gradient("GridSample", {"x": x, "g": grid}, {}, "x", **options)
    np.testing.assert_allclose(found.ravel(), [1, 2 + 1.5, 1.5, 0, 32], atol=1e-4)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms_of_windows_of_zeros_have_no_gradient(p: int) -> None:
    x = random(1, 1, 2, 4)
    x[..., :2] = 0
    found = gradient("LpPool", {"x": x}, {}, "x", p=p, kernel_shape=[2, 2], strides=[2, 2])
    assert np.all(found[..., :2] == 0) and np.all(np.isfinite(found)) and np.any(found != 0)


def test_gradients_of_what_was_read_twice_add_up() -> None:
    x = random(1, 1, 4, 4)
    up = gradient("Upsample", {"x": x}, {"s": np.array([1, 1, 2, 2], F)}, "x", opset=9, mode="nearest")
    np.testing.assert_allclose(up, 4 * x, rtol=1e-5)


def test_wrong_things_are_refused() -> None:
    x = random(1, 1, 4, 4)
    with refuses("Resize", "attribute mode is 'area', expected one of nearest, linear, cubic"):
        ours("Resize", x, NOTHING, np.array([1, 1, 2, 2], F), mode="area")
    with refuses("Resize", "scales has 2 entries, expected 4"):
        ours("Resize", x, NOTHING, np.array([2, 2], F), mode="linear")
    with refuses("Resize", "scale -1"):
        ours("Resize", x, NOTHING, np.array([1, 1, -1, 2], F), mode="linear")
    with refuses("GridSample", "grid is f32[1,2,2,3]"):
        ours("GridSample", x, random(1, 2, 2, 3))
    with refuses("ConvTranspose", "output_padding is [2, 0]"):
        ours("ConvTranspose", x, random(1, 1, 3, 3), output_padding=[2, 0])
    with refuses("Col2Im", "expected a multiple of 4 rows"):
        ours("Col2Im", random(1, 5, 9), np.array([4, 4]), np.array([2, 2]))
    with refuses("MaxUnpool", "output_shape is [1, 1, 3, 3]"):
        ours(
            "MaxUnpool",
            x,
            np.zeros((1, 1, 4, 4), np.int64),
            np.array([1, 1, 3, 3]),
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
    with refuses("RoiAlign", "sampling_ratio is 0"):
        run("RoiAlign", x, random(2000, 4), np.zeros(2000, np.int64))
    with refuses("scatter (C8): index 4096 at position"):
        ours("MaxUnpool", x, np.full((1, 1, 4, 4), 4096), kernel_shape=[2, 2], strides=[2, 2])
    for image in (-1, 1):
        with refuses("gather (C6): index"):
            ours("RoiAlign", x, np.array([[0, 0, 2, 2]], F), np.array([image]), sampling_ratio=1)
