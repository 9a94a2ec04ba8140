"""ONNX operators that the importer writes as functions over core ops, compared with NumPy in cases that ONNX's own
tests lack, and refusals.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import lockstep as ls
from lockstep import onnx_backend

F = np.float32


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).standard_normal(shape).astype(F)


def model_of(node: onnx.NodeProto, values: dict[str, np.ndarray], constants: dict[str, np.ndarray], opset: int) -> Any:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(op: str, *arrays: np.ndarray, opset: int = 22, outputs: int = 1, fixed: int = 0, **attributes: Any) -> Any:
    """The operator's outputs on the CPU. The last `fixed` inputs are initializers."""
    names = [f"x{i}" for i in range(len(arrays))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name="it", **attributes)
    data = dict(zip(names, arrays, strict=True))
    constants = {name: data.pop(name) for name in names[len(names) - fixed :]} if fixed else {}
    model = model_of(node, data, constants, opset)
    results = onnx_backend.Prepared(model).run(list(data.values()))
    return results[0] if outputs == 1 else results


def refuses(*parts: str) -> Any:
    return pytest.raises(ls.Error, match="(?s)" + ".*".join(re.escape(part) for part in parts))


# Einsum

EXTENTS = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "c": 3}


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,jk",
        "ij,kj->ki",
        "bij,bjk->bik",
        "bhik,bhjk->bhij",
        "bihc,bjhc->bhij",
        "ii",
        "ii->i",
        "bii->ib",
        "iji->j",
        "iii->i",
        "i,i",
        "i,j->ij",
        "ij->",
        "ij->ji",
        "ij,ij->ij",
        "ij,i->j",
        "ij,jk,kc->ic",
        "bi,ij,bj->b",
        "ij,k->i",
        "bik,ck,c->bi",
        "i,i,i->i",
        " b i j , b j k -> b i k ",
    ],
)
def test_einsum(equation: str) -> None:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    arrays = [random(*[EXTENTS[label] for label in term], seed=i) for i, term in enumerate(terms)]
    expected = np.einsum(equation.replace(" ", ""), *arrays)
    found = run("Einsum", *arrays, equation=equation)
    assert found.shape == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ij,...jk->...ik", [(2, 3, 4, 5), (2, 3, 5, 6)]),
        ("...ij,jk->...ik", [(2, 3, 4, 5), (5, 6)]),
        ("...ij,...jk", [(3, 4, 5), (2, 1, 5, 6)]),
        ("i...->...i", [(4, 2, 3)]),
        ("...ii->...i", [(2, 4, 4)]),
        ("b...,b...->b", [(2, 3, 4), (2, 1, 4)]),
        ("ij,ij->ij", [(4, 1), (4, 5)]),
        ("...,...->...", [(4,), (3, 4)]),
    ],
)
def test_einsum_with_ellipses_and_stretched_dimensions(equation: str, shapes: list[tuple[int, ...]]) -> None:
    arrays = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    # NumPy requires an ellipsis in the result.
    expected = (arrays[0] * arrays[1]).sum((1, 2)) if equation.endswith("->b") else np.einsum(equation, *arrays)
    found = run("Einsum", *arrays, equation=equation)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "parts"),
    [
        ("ij,jk->ik", [(2, 3)], ["2 terms for 1 inputs"]),
        ("ij->ji", [(2, 3, 4)], ["term 'ij'", "rank 3"]),
        ("ij,jk->ik", [(2, 3), (4, 5)], ["extents 3 and 4"]),
        ("ii->i", [(2, 3)], ["a label repeats for extents 2 and 3"]),
        ("ij->ik", [(2, 3)], ["in its result twice or in no term"]),
        ("ij->ii", [(2, 3)], ["in its result twice or in no term"]),
        ("i1->i", [(2, 3)], ["has '1' in a term"]),
        ("...i...->i", [(2, 3)], ["term '...i...'"]),
    ],
)
def test_einsum_refuses(equation: str, shapes: list[tuple[int, ...]], parts: list[str]) -> None:
    values = {f"x{i}": random(*shape) for i, shape in enumerate(shapes)}
    node = helper.make_node("Einsum", list(values), ["y"], name="it", equation=equation)
    with refuses("Einsum: ", *parts, "at onnx:it"):
        ls.load_onnx(model_of(node, values, {}, 13))


# Pad


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 3, 4), (0, 0, 0, 0), (0, 7, 0, 0), (0, 0, 11, 9), (2, 2, 2, 2), (3, 0, 0, 5)])
def test_pad_modes(mode: str, pads: tuple[int, ...]) -> None:
    x = random(4, 5)
    expected = np.pad(x, [(pads[0], pads[2]), (pads[1], pads[3])], mode)
    np.testing.assert_array_equal(run("Pad", x, np.array(pads), opset=19, fixed=1, mode=mode), expected)


def test_pad_modes_remove_too() -> None:
    x = random(4, 5)
    expected = np.pad(x[1:, :], [(0, 2), (0, 0)], "edge")
    np.testing.assert_array_equal(run("Pad", x, np.array([-1, 0, 2, 0]), opset=19, fixed=1, mode="edge"), expected)


def test_pad_of_one_element() -> None:
    x = random(1, 3)
    for mode in ("edge", "reflect", "wrap"):
        found = run("Pad", x, np.array([2, 0, 1, 0]), opset=19, fixed=1, mode=mode)
        np.testing.assert_array_equal(found, np.pad(x, [(2, 1), (0, 0)], mode))


def test_pad_refuses() -> None:
    def load(pads: list[int], mode: str, shape: tuple[int, ...] = (4,)) -> None:
        node = helper.make_node("Pad", ["x", "p"], ["y"], name="it", mode=mode)
        ls.load_onnx(model_of(node, {"x": np.zeros(shape, F)}, {"p": np.array(pads)}, 19))

    with refuses("Pad: ", "mode is 'mirror'", "at onnx:it"):
        load([1, 1], "mirror")
    with refuses("Pad: ", "pads [9223372036854775807, 1] are too large", "at onnx:it"):
        load([2**63 - 1, 1], "reflect")
    with refuses("Pad: ", "too many pieces", "at onnx:it"):
        load([10000, 0], "reflect")
    with refuses("Pad: ", "remove more", "at onnx:it"):
        load([-3, -2], "edge")


# Normalisation


def normalized(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    wide = x.astype(np.float64)
    centered = wide - wide.mean(axes, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axes, keepdims=True) + 1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_layer_normalization_in_each_type(dtype: Any) -> None:
    """Statistics are in the stash type, but a wider input is not rounded to it."""
    x = (random(3, 4, 5) + 100).astype(dtype)
    scale, bias = random(5, seed=1).astype(dtype), random(5, seed=2).astype(dtype)
    y, mean, deviation = run("LayerNormalization", x, scale, bias, outputs=3)
    expected = normalized(x, (2,)) * scale.astype(np.float64) + bias
    tolerance = {np.float16: 4e-2, np.float32: 1e-4, np.float64: 1e-12}[dtype]
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
    assert y.dtype == dtype and mean.dtype == F and deviation.dtype == F
    assert mean.shape == (3, 4, 1) and deviation.shape == (3, 4, 1)
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(-1, keepdims=True), rtol=1e-5)


def test_layer_normalization_keeps_the_digits_of_a_large_mean() -> None:
    x = random(2, 64) + F(4096)
    np.testing.assert_allclose(run("LayerNormalization", x, np.ones(64, F)), normalized(x, (1,)), atol=2e-3)


def test_group_normalization_of_old_has_coefficients_of_groups() -> None:
    x, scale, bias = random(2, 6, 3, 3), random(2, seed=1), random(2, seed=2)
    grouped = normalized(x.reshape(2, 2, -1), (2,)).reshape(x.shape)
    expected = grouped * scale.repeat(3)[:, None, None] + bias.repeat(3)[:, None, None]
    found = run("GroupNormalization", x, scale, bias, opset=20, num_groups=2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_nothing_is_nothing(p: int) -> None:
    x = random(3, 4)
    x[1] = 0
    found = run("LpNormalization", x, p=p, axis=1)
    assert np.all(found[1] == 0)
    np.testing.assert_allclose(found[0], x[0] / np.linalg.norm(x[0], p), rtol=1e-5)


def test_normalizations_refuse() -> None:
    def load(op: str, shapes: list[tuple[int, ...]], opset: int = 23, **attributes: Any) -> None:
        values = {f"x{i}": np.zeros(shape, F) for i, shape in enumerate(shapes)}
        ls.load_onnx(model_of(helper.make_node(op, list(values), ["y"], name="it", **attributes), values, {}, opset))

    with refuses("LayerNormalization: shapes do not broadcast: f32[2,3] f32[4]", "at onnx:it"):
        load("LayerNormalization", [(2, 3), (4,)])
    with refuses("LayerNormalization: axis 2", "at onnx:it"):
        load("LayerNormalization", [(2, 3), (3,)], axis=2)
    with refuses("LayerNormalization: attribute stash_type", "at onnx:it"):
        load("LayerNormalization", [(2, 3), (3,)], stash_type=7)
    with refuses("GroupNormalization: attribute num_groups is 4", "f32[2,6,2]", "at onnx:it"):
        load("GroupNormalization", [(2, 6, 2), (6,), (6,)], num_groups=4)
    with refuses("InstanceNormalization: input 2 is f32[5]", "expected shape [6]", "at onnx:it"):
        load("InstanceNormalization", [(2, 6, 2), (6,), (5,)])
    with refuses("LpNormalization: attribute p is 3", "at onnx:it"):
        load("LpNormalization", [(2, 3)], p=3)


# Losses


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 1, -100])
@pytest.mark.parametrize("places", [(), (3,), (2, 2)])
def test_cross_entropy(reduction: str, weighted: bool, ignored: int | None, places: tuple[int, ...]) -> None:
    scores = random(6, 4, *places)
    classes = np.random.Generator(np.random.PCG64(3)).integers(0, 4, (6, *places))
    if ignored == -100:
        classes[0] = ignored
    weight = np.abs(random(4, seed=1)) + F(0.1) if weighted else None
    inputs = [scores, classes] + ([weight] if weighted else [])
    attributes = {} if ignored is None else {"ignore_index": ignored}
    log_prob = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    each = np.where(classes == ignored, 0.0, 1.0) if ignored is not None else np.ones(classes.shape)
    if weight is not None:
        each = each * weight[np.maximum(classes, 0)]
    picked = np.take_along_axis(log_prob, np.maximum(classes, 0)[:, None], 1)[:, 0]
    expected = -picked * each
    if reduction != "none":
        expected = expected.sum() / (each.sum() if reduction == "mean" else 1)
    found = run("SoftmaxCrossEntropyLoss", *inputs, reduction=reduction, **attributes)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    both = run("SoftmaxCrossEntropyLoss", *inputs, reduction=reduction, outputs=2, **attributes)
    np.testing.assert_allclose(both[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both[1], log_prob, rtol=1e-5, atol=1e-6)
    inputs[0] = log_prob
    nll = run("NegativeLogLikelihoodLoss", *inputs, reduction=reduction, **attributes)
    np.testing.assert_allclose(nll, expected, rtol=1e-5, atol=1e-6)


def test_a_class_that_does_not_exist_is_no_silent_zero() -> None:
    for classes in ([1, 7, 0], [1, -1, 0]):
        with refuses("NegativeLogLikelihoodLoss", "label is outside [0, 3)"):
            run("NegativeLogLikelihoodLoss", random(3, 3), np.array(classes), reduction="none")
        with refuses("SoftmaxCrossEntropyLoss", "label is outside [0, 3)"):
            run("SoftmaxCrossEntropyLoss", random(3, 3), np.array(classes), ignore_index=9)


# Signals


@pytest.mark.parametrize("length", [None, 5, 8, 13])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["fft", "ifft", "rfft", "irfft"])
def test_dft(length: int | None, axis: int, kind: str) -> None:
    parts = 1 if kind == "rfft" else 2
    x = random(8, 7, parts)
    signal = x[..., 0] if parts == 1 else x[..., 0] + 1j * x[..., 1]
    expected = getattr(np.fft, kind)(signal, n=length, axis=axis)
    expected = expected[..., None] if kind == "irfft" else np.stack([expected.real, expected.imag], -1)
    constants = ([] if length is None else [np.array(length)]) + [np.array(axis)]
    names = ["x", "" if length is None else "n", "axis"]
    node = helper.make_node(
        "DFT", names, ["y"], inverse=int("if" in kind or kind == "irfft"), onesided=int("rf" in kind)
    )
    constants = {name: value for name, value in zip([n for n in names[1:] if n], constants, strict=True)}
    found = onnx_backend.Prepared(model_of(node, {"x": x}, constants, 20)).run([x])[0]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_windows_of_one_element_and_symmetric_ones() -> None:
    for op, of_numpy in (("HannWindow", np.hanning), ("HammingWindow", None), ("BlackmanWindow", np.blackman)):
        assert run(op, np.array(1), opset=17, fixed=1, periodic=0).tolist() == [1]
        if of_numpy is not None:
            found = run(op, np.array(9), opset=17, fixed=1, periodic=0)
            np.testing.assert_allclose(found, of_numpy(9), atol=1e-6)


@pytest.mark.parametrize("onesided", [True, False])
def test_stft(onesided: bool) -> None:
    signal, window = random(2, 50), np.hanning(16).astype(F)
    frames = np.stack([signal[:, at : at + 16] for at in range(0, 50 - 15, 4)], 1) * window
    expected = (np.fft.rfft if onesided else np.fft.fft)(frames)
    found = run("STFT", signal[..., None], np.array(4), window, opset=17, fixed=2, onesided=int(onesided))
    np.testing.assert_allclose(found, np.stack([expected.real, expected.imag], -1), rtol=1e-4, atol=1e-4)


# Matrices


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6])
def test_det(rows: int) -> None:
    x = random(3, rows, rows)
    np.testing.assert_allclose(run("Det", x), np.linalg.det(x), rtol=1e-4, atol=1e-5)


def test_det_of_a_large_matrix_is_refused() -> None:
    x = {"x": random(7, 7)}
    with refuses("Det: ", "more than 6 rows", "at onnx:it"):
        ls.load_onnx(model_of(helper.make_node("Det", ["x"], ["y"], name="it"), x, {}, 22))


def test_trilu_far_off() -> None:
    x = random(3, 4)
    for k in (-(2**63), 2**63 - 1):
        for upper in (0, 1):
            kept = (k < 0) == bool(upper)
            np.testing.assert_array_equal(run("Trilu", x, np.array(k), fixed=1, upper=upper), x if kept else 0 * x)


# Attention


def test_keys_without_a_mask_are_not_seen_and_raw_scores_have_no_cap() -> None:
    q, k, v = random(1, 2, 3, 4), random(1, 2, 5, 4, seed=1), random(1, 2, 5, 4, seed=2)
    mask = np.array([[True, False, True]] * 3)
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["y", "", "", "raw"], softcap=0.5, name="it")
    values = {"q": q, "k": k, "v": v, "mask": mask}
    y, raw = onnx_backend.Prepared(model_of(node, values, {}, 24)).run(list(values.values()))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / 2
    np.testing.assert_allclose(raw, scores, rtol=1e-5, atol=1e-6)
    seen = np.exp(0.5 * np.tanh(scores / 0.5)) * np.array([1, 0, 1, 0, 0])
    np.testing.assert_allclose(y, seen / seen.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


def test_rotary_positions_do_not_count_from_the_end() -> None:
    x, angles = random(1, 2, 2, 4), random(6, 2, seed=1)
    positions = np.array([[1, 5]])
    assert run("RotaryEmbedding", x, angles, angles, positions, opset=23).shape == x.shape
    with refuses("position"):
        run("RotaryEmbedding", x, angles, angles, np.array([[1, -1]]), opset=23)


# Quantised numbers


def test_quantization_rounds_to_even_and_saturates() -> None:
    x = np.array([-1e9, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 1e9, np.inf, -np.inf], F)
    scale, zero = np.array(1, F), np.array(0, np.int8)
    expected = [-128, -2, -2, 0, 0, 2, 2, 126, 127, 127, 127, -128]
    found = run("QuantizeLinear", x, scale, zero)
    assert found.dtype == np.int8 and found.tolist() == expected


def test_integer_products_are_exact() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    x, w = rng.integers(0, 256, (1, 512, 4, 4), np.uint8), rng.integers(0, 256, (3, 512, 3, 3), np.uint8)
    windows = np.lib.stride_tricks.sliding_window_view(x[0].astype(np.int64), (3, 3), (1, 2))
    expected = np.einsum("chwij,ocij->ohw", windows, w.astype(np.int64))[None]
    found = run("ConvInteger", x, w, opset=10)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, expected)
    a, b = rng.integers(0, 256, (5, 3000), np.uint8), rng.integers(-128, 128, (3000, 4), np.int8)
    zero = np.array([1, 2, 3, 4], np.int8)
    exact = (a.astype(np.int64) - 7) @ (b.astype(np.int64) - zero)
    np.testing.assert_array_equal(run("MatMulInteger", a, b, np.array(7, np.uint8), zero, opset=10), exact)


def test_scales_of_channels_and_what_they_are_divided_in() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    x, w = rng.integers(0, 256, (2, 3, 4, 4), np.uint8), rng.integers(-9, 10, (2, 3, 1, 1)).astype(np.int8)
    scales, one, zero = np.array([0.5, 0.03125], F), np.array(0.25, F), np.array(0, np.int8)
    args = [x, one, np.array(0, np.uint8), w, scales, zero, np.array(16, F), zero]
    product = np.einsum("nchw,oc->nohw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    expected = np.clip(np.round(product * 0.25 * scales[:, None, None] / 16), -128, 127)
    np.testing.assert_array_equal(run("QLinearConv", *args, opset=10), expected)
    # In f16 the number is 3.5, which rounds up.
    y, scale = np.array([3.4995], F), np.array(1, F)
    assert run("QuantizeLinear", y, scale, zero, opset=23).tolist() == [3]
    assert run("QuantizeLinear", y, scale, zero, opset=23, precision=10).tolist() == [4]


def test_quantization_of_nothing_and_of_much() -> None:
    y, scale, zero = run("DynamicQuantizeLinear", np.zeros((2, 3), F), opset=11, outputs=3)
    assert np.isfinite(scale) and scale > 0 and zero == 0 and not np.any(y)
    # Too large for f16 before it is scaled.
    found = run("DequantizeLinear", np.array([100_000, -70_000], np.int32), np.array(0.001, np.float16), opset=19)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.array([100, -70], np.float16), rtol=2e-3)


# Loops and gradients


@pytest.mark.parametrize(("op", "count"), [("LayerNormalization", 3), ("RMSNormalization", 2)])
def test_a_normalization_is_one_loop(op: str, count: int) -> None:
    constants = {name: random(64) for name in ["scale", "bias"][: count - 1]}
    node = helper.make_node(op, ["x", *constants], ["y"], name="it")
    executable = ls.compile(ls.load_onnx(model_of(node, {"x": random(64, 64)}, constants, 23)), threads=1)
    assert [line.split()[:2] for line in executable.steps.splitlines()[1:]] == [["[0]", "llvm.fusion"]]


def sums(nodes: list[onnx.NodeProto], x: np.ndarray, constants: dict[str, np.ndarray]) -> Any:
    """The graph of loss = sum(y * w), where y is the nodes' output for x and w is fixed, and the gradient with respect
    to x.
    """
    nodes = [
        *nodes,
        helper.make_node("Mul", ["y", "w"], ["yw"]),
        helper.make_node("ReduceSum", ["yw"], ["loss"], keepdims=0),
    ]
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    inputs = [helper.make_tensor_value_info("x", element, x.shape)]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_empty_tensor_value_info("loss")], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=8)
    return ls.gradients(ls.load_onnx(model, split={}), "loss", ["x"])


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("LayerNormalization", [(4,), (4,)], {}),
        ("RMSNormalization", [(4,)], {}),
        ("GroupNormalization", [(6,), (6,)], {"num_groups": 2}),
        ("InstanceNormalization", [(6,), (6,)], {}),
        ("MeanVarianceNormalization", [], {"axes": [0, 2]}),
        ("LpNormalization", [], {"p": 2}),
        ("ReduceLogSumExp", [], {}),
        ("Einsum", [], {"equation": "ijk->ki"}),
        ("Pad", [], {"mode": "reflect"}),
    ],
)
def test_gradients_of_functions(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    x = random(2, 6, 4).astype(np.float64)
    constants = {f"c{i}": random(*shape, seed=i + 1).astype(np.float64) for i, shape in enumerate(shapes)}
    if op == "Pad":
        constants["pads"] = np.array([0, 2, 1, 1, 0, 2])
    node = helper.make_node(op, ["x", *constants], ["y"], name="it", **attributes)
    result = {"Einsum": (4, 2), "Pad": (3, 8, 7), "ReduceLogSumExp": (1, 1, 1)}.get(op, (2, 6, 4))
    constants["w"] = random(*result, seed=9).astype(np.float64)
    executable = ls.compile(sums([node], x, constants), threads=1)
    found = executable(x=x)["grad/x"]
    step = 1e-5
    for at in [(0, 0, 0), (1, 5, 3), (0, 3, 2)]:
        moved = [x.copy(), x.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        up, down = (float(executable(x=value)["loss"]) for value in moved)
        np.testing.assert_allclose(found[at], (up - down) / (2 * step), rtol=2e-5, atol=1e-7)
    assert np.any(found != 0)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("LpNormalization", {"p": 1}), ("LpNormalization", {"p": 2}), ("MeanVarianceNormalization", {"axes": [1]})],
)
def test_gradients_where_there_is_nothing_to_normalize_are_finite(op: str, attributes: dict[str, Any]) -> None:
    x = np.zeros((2, 3), F)
    node = helper.make_node(op, ["x"], ["y"], name="it", **attributes)
    found = ls.compile(sums([node], x, {"w": random(2, 3)}), threads=1)(x=x)
    assert found["loss"] == 0 and np.all(np.isfinite(found["grad/x"]))
