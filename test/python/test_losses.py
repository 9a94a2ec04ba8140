"""Losses in compiled programs: on 1, 2 and 3 ranks, values and gradients equal those that PyTorch computes of the whole
batch.

Every option of every loss is compared in f64, on the interpreter, by test/op_cases/pytorch_loss_test.cc; this file
tests the user's view.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from ranks import run_in_threads
from test_errors import raises

torch = pytest.importorskip("torch")
F = torch.nn.functional

BATCH, FEATURES, CLASSES = 6, 4, 5
RANDOM = np.random.Generator(np.random.PCG64(11))
X = RANDOM.standard_normal((BATCH, FEATURES)).astype(np.float32)
WEIGHTS = {name: RANDOM.standard_normal((FEATURES, CLASSES)).astype(np.float32) for name in ("w", "u", "v")}
CLASS_WEIGHTS = [0.5, 2.0, 1.0, 0.25, 1.5]
LABELS = np.array([3, -1, 0, 4, 1, 2])  # -1 is ignored if a loss ignores it
WANTED = RANDOM.standard_normal((BATCH, CLASSES)).astype(np.float32)
WANTED[0, 0] = 0
PROBABILITIES = RANDOM.dirichlet(np.ones(CLASSES), BATCH).astype(np.float32)
SIGNS = np.array([1, -1, -1, 1, -1, 1], np.float32)
SIGNS_OF_ELEMENTS = np.where(RANDOM.random((BATCH, CLASSES)) < 0.5, 1, -1).astype(np.float32)


def model(batch: int = BATCH, dtype: str = "f32") -> ls.Graph:
    """A model with results z, y and q of the shape [batch, classes], each one product, and log, the log_softmax of the
    three as steps in time, [batch, 3, classes].
    """
    lines = [
        *(f"%{name} = matmul %x, %{weight} : {dtype}[{batch},{CLASSES}]" for name, weight in zip("zyq", WEIGHTS)),
        f"%all = concat %z, %y, %q {{dim=1}} : {dtype}[{batch},{3 * CLASSES}]",
        f"%steps = reshape %all {{shape=[{batch},3,{CLASSES}]}} : {dtype}[{batch},3,{CLASSES}]",
        f"%log = log_softmax %steps {{dim=2}} : {dtype}[{batch},3,{CLASSES}]",
        "return %z, %y, %q, %log",
    ]
    states = ", ".join(f"state %{weight}: {dtype}[{FEATURES},{CLASSES}]" for weight in WEIGHTS)
    results = ", ".join(f"{name}: {dtype}[{batch},{CLASSES}] split(0)" for name in "zyq")
    results += f", log: {dtype}[{batch},3,{CLASSES}] split(0)"
    body = "\n  ".join(lines)
    return ls.parse(f"graph @m(%x: {dtype}[{batch},{FEATURES}] split(0), {states}) -> ({results}) {{\n  {body}\n}}")


@dataclass
class Case:
    """One of our losses, its inputs, and PyTorch's loss of z, y, q and the inputs."""

    name: str
    loss: ls.Loss
    inputs: dict[str, np.ndarray]
    expected: Callable[..., Any]


CTC_LABELS = np.array([[1, 2], [3, 3], [4, -1], [-1, -1], [2, 1], [1, 1]])
CTC_LENGTHS = {"input_lengths": np.array([3, 3, 2, 3, 2, 3]), "target_lengths": np.array([2, 2, 1, 0, 2, 2])}


def ctc(z: Any, y: Any, q: Any, target: Any, input_lengths: Any, target_lengths: Any) -> Any:
    steps = F.log_softmax(torch.stack([z, y, q]), 2)
    return F.ctc_loss(steps, target.clamp_min(0), input_lengths, target_lengths)


def weighted(unreduced: Any, weight: Any) -> Any:
    weight = weight.reshape(-1, *[1] * (unreduced.dim() - 1)).expand(unreduced.shape)
    return (unreduced * weight).sum() / weight.sum()


def cases() -> list[Case]:
    of = torch.tensor
    labels = np.where(LABELS < 0, 1, LABELS)
    ignoring = {"ignore_index": -1}
    all_options = {**ignoring, "class_weights": CLASS_WEIGHTS, "label_smoothing": 0.25}
    samples = np.array([1, 0, 0.5, 2, 1, 0], np.float32)
    elements = (RANDOM.random((BATCH, CLASSES)) < 0.5).astype(np.float32)
    soft = {"soft_targets": True, "label_smoothing": 0.1}
    entropy = F.cross_entropy
    torch_options = {"ignore_index": -1, "weight": of(CLASS_WEIGHTS), "label_smoothing": 0.25}
    make = ls.loss
    return [
        Case("entropy", make.softmax_cross_entropy("z", "t"), {"t": labels}, lambda z, y, q, t: entropy(z, t)),
        Case("entropy, sum", make.softmax_cross_entropy("z", "t", reduction="sum"), {"t": labels},
             lambda z, y, q, t: entropy(z, t, reduction="sum")),
        Case("entropy, ignored", make.softmax_cross_entropy("z", "t", **ignoring), {"t": LABELS},
             lambda z, y, q, t: entropy(z, t, ignore_index=-1)),
        Case("entropy, all options", make.softmax_cross_entropy("z", "t", **all_options), {"t": LABELS},
             lambda z, y, q, t: entropy(z, t, **torch_options)),
        Case("entropy, soft", make.softmax_cross_entropy("z", "t", **soft), {"t": PROBABILITIES},
             lambda z, y, q, t: entropy(z, t, label_smoothing=0.1)),
        Case("entropy, weighted samples", make.softmax_cross_entropy("z", "t", sample_weight="s"),
             {"t": labels, "s": samples}, lambda z, y, q, t, s: weighted(entropy(z, t, reduction="none"), s)),
        Case("mse", make.mean_squared_error("z", "t"), {"t": WANTED}, lambda z, y, q, t: F.mse_loss(z, t)),
        Case("l1", make.l1("z", "t"), {"t": WANTED}, lambda z, y, q, t: F.l1_loss(z, t)),
        Case("l1, weighted elements", make.l1("z", "t", element_weight="e"), {"t": WANTED, "e": elements},
             lambda z, y, q, t, e: (F.l1_loss(z, t, reduction="none") * e).sum() / e.sum()),
        Case("l1, weighted samples and elements", make.l1("z", "t", sample_weight="s", element_weight="e"),
             {"t": WANTED, "s": samples, "e": elements},
             lambda z, y, q, t, s, e: (F.l1_loss(z, t, reduction="none") * e * s[:, None]).sum() / (e * s[:, None]).sum()),
        Case("huber", make.huber("z", "t", 0.5), {"t": WANTED}, lambda z, y, q, t: F.huber_loss(z, t, delta=0.5)),
        Case("smooth_l1", make.smooth_l1("z", "t", beta=0.5, sample_weight="s"), {"t": WANTED, "s": samples},
             lambda z, y, q, t, s: weighted(F.smooth_l1_loss(z, t, reduction="none", beta=0.5), s)),
        Case("binary", make.binary_cross_entropy_with_logits("z", "t", pos_weight=CLASS_WEIGHTS), {"t": PROBABILITIES},
             lambda z, y, q, t: F.binary_cross_entropy_with_logits(z, t, pos_weight=of(CLASS_WEIGHTS))),
        Case("hinge", make.hinge_embedding("z", "t", margin=0.5), {"t": SIGNS_OF_ELEMENTS},
             lambda z, y, q, t: F.hinge_embedding_loss(z, t, margin=0.5)),
        Case("kl_div", make.kl_div("z", "t", reduction="batchmean"), {"t": PROBABILITIES},
             lambda z, y, q, t: F.kl_div(z, t, reduction="batchmean")),
        Case("nll", make.nll("z", "t", class_weights=CLASS_WEIGHTS, **ignoring), {"t": LABELS},
             lambda z, y, q, t: F.nll_loss(z, t, weight=of(CLASS_WEIGHTS), ignore_index=-1)),
        Case("cosine", make.cosine_embedding("z", "y", "t", margin=0.25), {"t": SIGNS},
             lambda z, y, q, t: F.cosine_embedding_loss(z, y, t, margin=0.25)),
        Case("triplet", make.triplet_margin("z", "y", "q", margin=2.0), {},
             lambda z, y, q: F.triplet_margin_loss(z, y, q, margin=2.0)),
        Case("ctc", make.ctc("log", max_target_length=2), {"target": CTC_LABELS, **CTC_LENGTHS}, ctc),
        Case("a sum", make.softmax_cross_entropy("z", "t") * 2 + 0.5 * make.nll("y", "t") + make.l1("z", "wanted"),
             {"t": labels, "wanted": WANTED},
             lambda z, y, q, t, wanted: 2 * entropy(z, t) + 0.5 * F.nll_loss(y, t) + F.l1_loss(z, wanted)),
        Case("a sum with counts", make.nll("z", "t", **ignoring) + make.mean_squared_error("z", "wanted", sample_weight="s"),
             {"t": LABELS, "wanted": WANTED, "s": samples},
             lambda z, y, q, t, wanted, s: F.nll_loss(z, t, ignore_index=-1)
             + weighted(F.mse_loss(z, wanted, reduction="none"), s)),
    ]  # fmt: skip


CASES = cases()


def trained(loss: ls.Loss, inputs: dict[str, np.ndarray], world: ls.Communicator, batch: int = BATCH, **options: Any):
    """The loss of one step, and the gradients, which are what a step of SGD with rate 1 subtracts."""
    step = ls.train_step(model(batch), loss, ls.optim.SGD(1.0))
    exe = ls.compile(step, world=world, threads=1, **options)
    before = {name: WEIGHTS[name] for name in exe.state}
    for name, value in before.items():
        exe.state[name] = value
    share = {name: np.split(value, world.size)[world.rank] for name, value in inputs.items()}
    value = float(exe(**share)["loss"])
    return world.size, value, {name: before[name] - np.array(exe.state[name]) for name in before}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_losses_and_gradients_are_those_of_pytorch(case: Case, n: int) -> None:
    weights = {name: torch.tensor(value, requires_grad=True) for name, value in WEIGHTS.items()}
    outputs = [torch.tensor(X) @ weight for weight in weights.values()]
    expected = case.expected(*outputs, **{name: torch.tensor(value) for name, value in case.inputs.items()})
    expected.backward()
    results: list[Any] = run_in_threads(n, lambda world: trained(case.loss, {"x": X, **case.inputs}, world))
    assert not [each for each in results if isinstance(each, Exception)], results
    assert [size for size, _, _ in results] == [n] * n
    for _, value, gradients in results:
        np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
        assert gradients.keys() == WEIGHTS.keys()
        for name, gradient in gradients.items():
            if weights[name].grad is None:
                assert not gradient.any()
                continue
            wanted = weights[name].grad.numpy()
            assert np.abs(wanted).max() > 0
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6, err_msg=name)


def test_every_loss_is_compared() -> None:
    tried = {term.kind for case in CASES for term in case.loss.terms}
    assert tried == set(ls.loss.__all__) - {"Loss", "Term", "result"}


PADDED = [
    (ls.loss.softmax_cross_entropy("z", "t", sample_weight="s"), {"t": LABELS.clip(0)}),
    (ls.loss.softmax_cross_entropy("z", "t", sample_weight="s", class_weights=CLASS_WEIGHTS), {"t": LABELS.clip(0)}),
    (ls.loss.mean_squared_error("z", "t", sample_weight="s"), {"t": WANTED}),
    (ls.loss.mean_squared_error("z", "t", sample_weight="s", reduction="sum"), {"t": WANTED}),
    (ls.loss.kl_div("z", "t", sample_weight="s", reduction="batchmean"), {"t": PROBABILITIES}),
    (ls.loss.cosine_embedding("z", "y", "t", sample_weight="s"), {"t": SIGNS}),
    (ls.loss.triplet_margin("z", "y", "q", sample_weight="s"), {}),
]


@pytest.mark.parametrize("i", range(len(PADDED)))
@pytest.mark.parametrize("n", [1, 2, 3])
def test_padding_of_weight_0_changes_nothing(i: int, n: int) -> None:
    """On 3 ranks the last one has only padding. The content of the padding does not matter."""
    loss, inputs = PADDED[i]
    given = {"x": X, **inputs, "s": np.ones(BATCH, np.float32)}
    _, value, gradients = trained(loss, {k: v[:4] for k, v in given.items()}, ls.Communicator.single(), batch=4)
    padded = {**given, "x": X.copy(), "s": np.array([1, 1, 1, 1, 0, 0], np.float32)}
    padded["x"][4:] = [[1e3, -1e3, 0, 5], [0, 0, 0, 0]]
    results: list[Any] = run_in_threads(n, lambda world: trained(loss, padded, world))
    assert not [each for each in results if isinstance(each, Exception)], results
    for size, of_rank, gradients_of_rank in results:
        assert size == n
        np.testing.assert_allclose(of_rank, value, rtol=1e-6)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradients_of_rank[name], gradient, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("n", [1, 3])
def test_if_nothing_counts_the_mean_is_nan_and_there_is_no_gradient(n: int) -> None:
    ignored = np.full(BATCH, -1)
    z = (torch.tensor(X) @ torch.tensor(WEIGHTS["w"])).requires_grad_()
    expected = F.cross_entropy(z, torch.tensor(ignored), ignore_index=-1)
    expected.backward()
    assert expected.isnan()
    assert not z.grad.any()
    for loss, inputs in [
        (ls.loss.softmax_cross_entropy("z", "t", ignore_index=-1), {"t": ignored}),
        (ls.loss.l1("z", "t", sample_weight="s"), {"t": WANTED, "s": np.zeros(BATCH, np.float32)}),
    ]:
        results: list[Any] = run_in_threads(n, lambda world: trained(loss, {"x": X, **inputs}, world))  # noqa: B023
        assert len(results) == n
        for _, value, gradients in results:
            assert np.isnan(value)
            assert not gradients["w"].any()


def test_an_ignored_label_need_not_be_a_class_and_others_must() -> None:
    loss = ls.loss.nll("z", "t", ignore_index=-100)
    labels = LABELS.clip(0)
    labels[2] = -100
    assert np.isfinite(trained(loss, {"x": X, "t": labels}, ls.Communicator.single())[1])
    for wrong in (-1, CLASSES):
        labels[3] = wrong
        with raises(f"loss nll: a label that is not ignore_index is outside [0, {CLASSES}), at loss"):
            trained(loss, {"x": X, "t": labels}, ls.Communicator.single())


def test_lengths_of_sequences_are_checked() -> None:
    loss = ls.loss.ctc("log", max_target_length=2)
    for name, end in (("input_lengths", 4), ("target_lengths", 3)):
        for wrong in (-1, end):
            lengths = {key: value.copy() for key, value in CTC_LENGTHS.items()}
            lengths[name][3] = wrong
            what = {"input_lengths": "an input length", "target_lengths": "a target length"}[name]
            with raises(f"loss ctc: {what} is outside [0, {end})"):
                trained(loss, {"x": X, "target": CTC_LABELS, **lengths}, ls.Communicator.single())


def of_logits(
    loss: ls.Loss, shape: str, value: np.ndarray, normalizes: bool = False, **inputs: np.ndarray
) -> tuple[float, np.ndarray]:
    """The loss of these logits "z", and the difference that a step of SGD with rate 1 makes to a zero that is added to
    them. With `normalizes`, the loss is of "log", their log_softmax over the last dimension.
    """
    text = f"graph @f(%x: {shape} split(0), state %w: {shape}) -> (z: {shape} split(0)) {{\n  %z = add %x, %w : {shape}\n  return %z\n}}"
    if normalizes:
        log = f"  %log = log_softmax %z {{dim={value.ndim - 1}}} : {shape}\n  return %z, %log"
        text = text.replace(") {", f", log: {shape} split(0)) {{").replace("  return %z", log)
    exe = ls.compile(ls.train_step(ls.parse(text), loss, ls.optim.SGD(1.0)), threads=1)
    return float(exe(x=value, **inputs)["loss"]), -exe.state["w"]


def test_logits_far_from_0_have_a_finite_loss() -> None:
    z = torch.tensor([[1e3, -1e3, 0], [-100, 100, -50]], requires_grad=True)
    t = np.array([[1, 0, 0.5], [1, 0, 0]], np.float32)
    for options in ({}, {"pos_weight": [2.0]}):
        z.grad = None
        weight = {key: torch.tensor(value) for key, value in options.items()}
        expected = F.binary_cross_entropy_with_logits(z, torch.tensor(t), **weight)
        expected.backward()
        loss = ls.loss.binary_cross_entropy_with_logits("z", "t", **options)
        value, gradient = of_logits(loss, "f32[2,3]", z.detach().numpy(), t=t)
        np.testing.assert_allclose(value, expected.item(), rtol=1e-6)
        np.testing.assert_allclose(gradient, z.grad.numpy(), atol=1e-7)


def test_ctc_of_a_class_that_cannot_be() -> None:
    """The class's logarithm is -inf. It contributes nothing, and gets no gradient."""
    x = RANDOM.standard_normal((2, 4, 3)).astype(np.float32)
    x[0, 1, 1] = x[1, 2, 0] = -np.inf
    labels = {
        "target": np.array([[1, 2], [2, 1]]),
        "input_lengths": np.array([4, 4]),
        "target_lengths": np.array([2, 2]),
    }
    z = torch.tensor(x)
    expected = F.ctc_loss(z.transpose(0, 1), *(torch.tensor(value) for value in labels.values()))
    value, gradient = of_logits(ls.loss.ctc("z", max_target_length=2), "f32[2,4,3]", x, **labels)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    assert np.isfinite(gradient).all() and gradient.any()
    assert not gradient[0, 1, 1] and not gradient[1, 2, 0]
    x[1, 2] = -np.inf  # no path is left
    value, gradient = of_logits(ls.loss.ctc("z", max_target_length=2), "f32[2,4,3]", x, **labels)
    assert value == np.inf and np.isfinite(gradient[0]).all() and gradient[0].any()
    assert np.isnan(gradient[1]).any()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_ctc_of_a_sequence_that_is_too_short(reduction: str, zero_infinity: bool) -> None:
    x = RANDOM.standard_normal((3, 4, 5)).astype(np.float32)
    lengths = {"input_lengths": np.array([4, 4, 3]), "target_lengths": np.array([4, 3, 1])}
    target = np.array([[1, 1, 2, 2], [1, 2, 3, 0], [4, 0, 0, 0]])  # the first would need 6 steps
    z = torch.tensor(x, requires_grad=True)
    given = (torch.tensor(value) for value in (target, *lengths.values()))
    steps = z.log_softmax(2).transpose(0, 1)
    expected = F.ctc_loss(steps, *given, reduction=reduction, zero_infinity=zero_infinity)
    expected.backward()
    loss = ls.loss.ctc("log", max_target_length=4, reduction=reduction, zero_infinity=zero_infinity)
    value, gradient = of_logits(loss, "f32[3,4,5]", x, normalizes=True, target=target, **lengths)
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    assert np.isfinite(value) == np.isfinite(z.grad.numpy()).all() == zero_infinity
    np.testing.assert_allclose(gradient, z.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_in_16_bits_the_sum_is_not_too_large() -> None:
    graph = ls.train_step(model(dtype="f16"), ls.loss.mean_squared_error("z", "t"), ls.optim.SGD(1.0))
    x = np.ones((BATCH, FEATURES), np.float16)
    states = {name: np.zeros((FEATURES, CLASSES), np.float16) for name in WEIGHTS}
    [results] = ls.interpret(graph, [{"x": x, "t": np.full((BATCH, CLASSES), 200, np.float16), **states}])
    assert results["loss"].dtype == np.float16
    assert results["loss"] == 40000  # the sum is 1200000


def test_losses_are_values() -> None:
    a, b = ls.loss.l1("z"), ls.loss.huber("y", "t", 2)
    assert a + b == a + b != b + a
    assert 2 * a == a * 2 == a * np.float32(2) == np.float64(2) * a == a * 4 * 0.5 != a
    assert sum([a, b]) == a + b
    assert (a + b) * 0.5 == 0.5 * a + 0.5 * b
    assert hash(a) == hash(ls.loss.l1("z"))
    weighted = ls.loss.nll("z", class_weights=np.array([1, 0.5]))
    assert weighted == ls.loss.nll("z", class_weights=(1, 0.5)) != ls.loss.nll("z")
    for each in (a + b, weighted):
        assert copy.deepcopy(each) == each == pickle.loads(pickle.dumps(each))
        hash(each)


def test_what_cannot_be_added_or_multiplied() -> None:
    a = ls.loss.l1("z")
    for wrong in (lambda: a + 1, lambda: 1 + a, lambda: a * a, lambda: a * "2", lambda: a * True, lambda: a + None):
        with pytest.raises(TypeError, match="unsupported operand|can't multiply"):
            wrong()
    with pytest.raises(TypeError, match="unsupported operand"):
        np.ones(2) * a  # not an array of losses
    for factor in (float("nan"), float("inf")):
        with raises("loss l1: its factor is", "expected a finite number"):
            a * factor


def test_errors_name_the_option_its_length_and_its_range() -> None:
    entropy = ls.loss.softmax_cross_entropy
    with raises("loss softmax_cross_entropy: class_weights[1] is -1, expected a finite number of at least 0"):
        entropy(class_weights=[1, -1])
    with raises("loss softmax_cross_entropy: class_weights[1] is 'a', expected a number"):
        entropy(class_weights=[1, "a"])
    with raises("loss softmax_cross_entropy: label_smoothing is 1.5, expected a finite number from 0 to 1"):
        entropy(label_smoothing=1.5)
    with raises("loss softmax_cross_entropy: ignore_index is 0.5, expected a whole number"):
        entropy(ignore_index=0.5)
    with raises("loss l1: reduction is 'none', expected one of mean, sum"):
        ls.loss.l1("z", reduction="none")
    with raises("class_weights has 2 numbers, expected 5, one for each class"):
        ls.train_step(model(), entropy("z", class_weights=[1, 2]), ls.optim.SGD(1.0))
    with raises("loss l1: sample_weight %x is f32[6,4], expected f32[6]"):
        ls.train_step(model(), ls.loss.l1("z", sample_weight="x"), ls.optim.SGD(1.0))
    with raises("loss nll: target %t is f32[6,5], expected i64[6]"):
        ls.train_step(model(), ls.loss.l1("z", "t") + ls.loss.nll("z", "t"), ls.optim.SGD(1.0))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_labels_of_scores_whose_classes_are_last(accumulate: int) -> None:
    """Of training steps and evaluations. PyTorch's order of dimensions is named, and both ways out."""
    text = """graph @f(%x: f32[4,3,7] split(0), state %w: f32[7]) -> (logits: f32[4,3,7] split(0)) {
      %0 = broadcast %w {shape=[4, 3, 7], dims=[2]} : f32[4,3,7]
      %1 = mul %x, %0 : f32[4,3,7]
      return %1
    }"""
    scores, loss = ls.parse(text), ls.loss.softmax_cross_entropy("logits", "label")
    step = ls.compile(ls.train_step(scores, loss, ls.optim.SGD(0.1), accumulate=accumulate), threads=1)
    x, labels = np.ones((4, 3, 7), np.float32), np.ones((4, 3), np.int64)
    for exe in (step, ls.compile(ls.evaluation(scores, loss), threads=1)):
        with raises(
            "input label is i64[4,3]; the classes of logits, [4, 3, 7], are dimension 1; if the module gives them last, let it return "
            "scores.flatten(0, 1) for flattened labels, or scores.movedim(2, 1)"
        ):
            exe(x=x, label=labels)
        with raises("input label: expected i64[4,7], found i64[4,2]"):
            exe(x=x, label=labels[:, :2])
    assert np.isfinite(step(x=x, label=np.ones((4, 7), np.int64))["loss"])
