"""Compiled steps of micro-batches learn what steps of the whole batch do, in less memory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lockstep as ls
from cases import BATCH, CASES, MLP_SPLIT, Case
from ranks import run_in_threads
from test_errors import raises, training

LENET, MLP, CONVNET = CASES
LOSS = ls.loss.softmax_cross_entropy("logits", "label")


def step_of(case: Case, accumulate: int, **options: Any) -> ls.Graph:
    model = ls.load_onnx(case.model, dims={"batch": BATCH})
    loss = options.pop("loss", LOSS)
    return ls.train_step(model, loss, options.pop("optimizer", case.optimizer), accumulate=accumulate, **options)


def learn(
    case: Case, step: ls.Graph, world: ls.Communicator, steps: int = 4, **options: Any
) -> tuple[list[float], ls.Executable]:
    exe = ls.compile(step, world=world, threads=1, **options)
    samples, labels = (array[: steps * BATCH] for array in case.data())
    losses = []
    for x, y in ls.data.batches(samples, labels, size=BATCH, world=world, mesh=options.get("mesh")):
        extra = {"weight": (y % 3).astype(np.float32)} if "weight" in [each.name for each in step.inputs] else {}
        losses.append(float(exe(**{case.input: x}, label=y, **extra)["loss"]))
    return losses, exe


def expect_equal(case: Case, ranks: int, accumulate: int, **options: Any) -> None:
    expected, of_one = learn(case, step_of(case, 1, **options), ls.Communicator.single())
    assert expected[-1] != expected[0] and np.isfinite(expected).all()
    step = step_of(case, accumulate, **options)
    results = run_in_threads(ranks, lambda world: learn(case, step, world))
    assert len(results) == ranks
    for result in results:
        assert not isinstance(result, Exception), result
        losses, exe = result
        np.testing.assert_allclose(losses, expected, rtol=2e-4)
        for name in of_one.state:
            found, wanted = exe.state[name], of_one.state[name]
            # A different rounding may fall on the other side of a ReLU: few elements differ, by little compared with
            # the largest.
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-3 * np.abs(wanted).max(), err_msg=name)
            assert found.tobytes() == results[0][1].state[name].tobytes(), name


@pytest.mark.parametrize(
    ("case", "ranks", "accumulate"),
    [(MLP, 1, 2), (MLP, 1, 32), (MLP, 2, 4), (MLP, 3, 8), (LENET, 1, 4), (LENET, 2, 3)],
    ids=lambda value: value.name if isinstance(value, Case) else str(value),
)
def test_models_learn_what_they_do_of_the_whole_batch(case: Case, ranks: int, accumulate: int) -> None:
    expect_equal(case, ranks, accumulate)


@pytest.mark.parametrize("ranks", [1, 3])
def test_clipping_averages_groups_and_masks_see_the_whole_batch(ranks: int) -> None:
    expect_equal(
        MLP,
        ranks,
        4,
        loss=ls.loss.softmax_cross_entropy("logits", "label", ignore_index=1)
        + 0.5 * ls.loss.softmax_cross_entropy("logits", "label", sample_weight="weight"),
        clip=ls.clip.global_norm(0.05),
        average=ls.average.exponential(0.9),
        groups={"*.bias": ls.optim.SGD(0.1)},
    )


def test_weights_that_ranks_share_learn_what_whole_ones_do() -> None:
    mesh = {"data": 2, "model": 2}
    expected, of_one = learn(MLP, step_of(MLP, 1), ls.Communicator.single())
    step = step_of(MLP, 4)
    results = run_in_threads(4, lambda world: learn(MLP, step, world, mesh=mesh, split=MLP_SPLIT))
    assert len(results) == 4
    for result in results:
        assert not isinstance(result, Exception), result
        losses, exe = result
        np.testing.assert_allclose(losses, expected, rtol=2e-4)
        assert exe.state["fc1.weight"].shape == (8, 12)
        wanted = of_one.state["fc3.weight"]
        np.testing.assert_allclose(exe.state["fc3.weight"], wanted, rtol=1e-3, atol=2e-3 * np.abs(wanted).max())


def test_ranks_reduce_once_a_step() -> None:
    def collectives(accumulate: int) -> list[list[str]]:
        step = step_of(LENET, accumulate)
        return run_in_threads(2, lambda world: ls.compile(step, world=world, threads=1).collectives)

    whole, parts = collectives(1), collectives(4)
    assert len(parts[0]) == len(whole[0]) > 0
    assert parts[0] == parts[1]


def wide(hidden: int) -> ls.Graph:
    """Four layers whose activations are much larger than everything else."""
    random = np.random.Generator(np.random.PCG64(1))
    sizes = [8, hidden, 8, hidden, 4]
    weights = [
        numpy_helper.from_array(random.standard_normal((a, b)).astype(np.float32) / a**0.5, f"w{i}")
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]
    nodes, x = [], "x"
    for i in range(4):
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], ["logits" if i == 3 else f"h{i}"]))
        if i < 3:
            nodes.append(helper.make_node("Tanh", [f"h{i}"], [f"a{i}"]))
        x = f"a{i}"
    takes = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])]
    gives = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])]
    graph = helper.make_graph(nodes, "wide", takes, gives, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return ls.load_onnx(model.SerializeToString(), dims={"batch": 1024})


def test_one_micro_batch_is_in_memory_at_a_time() -> None:
    def arena(accumulate: int) -> int:
        step = ls.train_step(wide(512), LOSS, ls.optim.SGD(0.1), accumulate=accumulate)
        return ls.compile(step, threads=1).memory["arena"]

    whole = arena(1)
    activations = 4 * 1024 * (512 + 512)  # at least: those of the two wide layers
    assert whole > activations
    copies = 4 * 1024 * 8 + 8 * 1024  # of x and of the labels
    gradients = 2 * 4 * (8 * 512 * 3 + 512 * 4)  # the sums, and one term of each
    for accumulate in (2, 4, 8, 32):
        assert arena(accumulate) > activations / accumulate, "the loop's own memory counts"
        assert arena(accumulate) < 1.1 * whole / accumulate + copies + gradients + 100_000, accumulate


def test_memory_is_what_a_rank_holds() -> None:
    def body(world: ls.Communicator) -> tuple[dict[str, int], int]:
        exe = ls.compile(step_of(MLP, 4), world=world, threads=1)
        return exe.memory, sum(exe.state[name].nbytes for name in exe.state)

    for ranks in (1, 2):
        for memory, states in run_in_threads(ranks, body):
            assert set(memory) == {"arena", "states", "constants", "buckets"}
            assert states <= memory["states"] <= states + 64 * 20  # each state begins at a multiple of 64
            assert (memory["buckets"] >= 4 * 389) == (ranks > 1)  # the gradients


def test_the_summary_has_the_layers_of_the_model() -> None:
    def layers(accumulate: int) -> dict[str, list[str]]:
        table = step_of(MLP, accumulate).summary().partition("layers (")[2].splitlines()[2:]
        return {line.split()[0]: line.split()[1:] for line in table}

    whole, parts = layers(1), layers(4)
    assert {"node_linear", "node_relu", "node_linear_2", "loss", "optimizer"} <= set(parts)
    assert parts["node_linear"][0] == "f32[24,16]"
    assert parts["total"][0] == whole["total"][0] == "1,168"  # parameters
    for layer in ("node_linear_1", "node_linear_2", "node_relu"):
        assert parts[layer][1:4] == whole[layer][1:4], layer  # parameters and operations, of all micro-batches
    assert parts["node_linear"][1:3] == whole["node_linear"][1:3]  # the gradient of x is not needed and not computed


def test_saved_runs_go_on(tmp_path: Path) -> None:
    """With the same number of micro-batches the bits are equal; with another, results are equal up to rounding."""
    single = ls.Communicator.single()
    samples, labels = (array[: 4 * BATCH] for array in MLP.data())

    def run(accumulate: int, first: int, last: int, load: Path | None = None, save: Path | None = None) -> list[float]:
        exe = ls.compile(step_of(MLP, accumulate), world=single, threads=1)
        if load is not None:
            exe.load(load)
        rows = [slice(i * BATCH, (i + 1) * BATCH) for i in range(first, last)]
        losses = [float(exe(**{MLP.input: samples[each]}, label=labels[each])["loss"]) for each in rows]
        if save is not None:
            exe.save(save)
        return losses

    whole = run(4, 0, 4)
    saved = tmp_path / "half.safetensors"
    assert run(4, 0, 2, save=saved) == whole[:2]
    assert run(4, 2, 4, load=saved) == whole[2:]
    for other in (1, 2, 8):
        np.testing.assert_allclose(run(other, 2, 4, load=saved), whole[2:], rtol=1e-5)


def test_kept_results_are_in_the_order_of_the_batch() -> None:
    random = np.random.Generator(np.random.PCG64(2))
    x, labels = random.standard_normal((6, 12)).astype(np.float32), random.integers(0, 5, 6)
    logits = [
        ls.compile(training(keep_results=True, accumulate=k), threads=1)(x=x, label=labels)["logits"] for k in (1, 3)
    ]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5, atol=1e-6)
    step = training(keep_results=True, accumulate=3)

    def of_rank(world: ls.Communicator) -> np.ndarray:
        rows = slice(3 * world.rank, 3 * world.rank + 3)
        return ls.compile(step, world=world, threads=1)(x=x[rows], label=labels[rows])["logits"]

    np.testing.assert_allclose(np.concatenate(run_in_threads(2, of_rank)), logits[0], rtol=1e-5, atol=1e-6)


def test_what_cannot_be_cut_is_named() -> None:
    with raises("accumulate is 4", "%x", "the batch, is 6, no multiple of 4; it can be 1, 2, 3, 6"):
        training(accumulate=4)
    with raises("accumulate is 0, expected at least 1"):
        training(accumulate=0)
    with raises("accumulate is 2.5, expected a whole number"):
        training(accumulate=2.5)
    step = training(accumulate=3)
    results = run_in_threads(3, lambda world: ls.compile(step, world=world))
    for result in results:
        assert isinstance(result, ls.Error)
        assert "each of 3 ranks has 2 of the 6 rows of input %x" in str(result)
        assert "the batch has to be a multiple of 3 * 3 = 9" in str(result)


def test_batch_normalisation_of_several_ranks_needs_their_own_statistics() -> None:
    results = run_in_threads(2, lambda world: ls.compile(step_of(CONVNET, 4), world=world))
    for result in results:
        assert isinstance(result, ls.Error)
        assert 'batch_statistics="rank"' in str(result)
    step = step_of(CONVNET, 4, batch_statistics="rank")
    (first, one), (second, other) = run_in_threads(2, lambda world: learn(CONVNET, step, world))
    assert first == second
    assert first[-1] < first[0]
    for name in one.state:
        assert one.state[name].tobytes() == other.state[name].tobytes(), name


def test_dropout_drops_the_same(tmp_path: Path) -> None:
    weight = np.random.Generator(np.random.PCG64(4)).standard_normal((6, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Dropout", ["x", "ratio"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["logits"]),
    ]
    takes = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])]
    gives = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])]
    initializers = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32(0.4), "ratio")]
    graph = helper.make_graph(nodes, "drops", takes, gives, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "drops.onnx")
    x, labels = np.ones((24, 6), np.float32), np.arange(24) % 3

    def losses(accumulate: int, world: ls.Communicator) -> list[float]:
        model = ls.load_onnx(tmp_path / "drops.onnx", dims={"batch": 24})
        exe = ls.compile(ls.train_step(model, LOSS, ls.optim.SGD(0.5), accumulate=accumulate, seed=3), world=world)
        share = slice(24 * world.rank // world.size, 24 * (world.rank + 1) // world.size)
        return [float(exe(x=x[share], label=labels[share])["loss"]) for _ in range(5)]

    expected = losses(1, ls.Communicator.single())
    for ranks, accumulate in ((1, 4), (2, 3), (3, 4)):
        for found in run_in_threads(ranks, lambda world, k=accumulate: losses(k, world)):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_it_is_the_loop_that_pytorch_users_write() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(1, 4, 3)
            self.norm = torch.nn.BatchNorm2d(4)
            self.out = torch.nn.Linear(16, 3)

        def forward(self, image: Any) -> Any:
            return self.out(torch.flatten(torch.relu(self.norm(self.conv(image))), 1))

    torch.manual_seed(1)
    module = Net()
    images, labels = torch.randn(12, 1, 4, 4), torch.arange(12) % 3
    model = ls.from_torch(module, torch.randn(2, 1, 4, 4), dims={"batch": 12}, output_names=["logits"])
    exe = ls.compile(ls.train_step(model, LOSS, ls.optim.SGD(0.1, momentum=0.9), accumulate=3), threads=1)
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        before = {name: value.clone() for name, value in module.named_buffers()}
        total, moved = 0.0, []
        optimizer.zero_grad()
        for part in range(3):
            with torch.no_grad():
                for name, value in module.named_buffers():
                    value.copy_(before[name])
            loss = torch.nn.functional.cross_entropy(module(images[part::3]), labels[part::3]) / 3
            loss.backward()
            total += loss.item()
            moved.append({name: value.clone() for name, value in module.named_buffers()})
        optimizer.step()
        with torch.no_grad():  # the running statistics move once, by the mean over the micro-batches
            for name in ("norm.running_mean", "norm.running_var"):
                module.get_buffer(name).copy_(sum(each[name] for each in moved) / 3)
        assert float(exe(image=images, label=labels)["loss"]) == pytest.approx(total, rel=1e-5)
    for name, value in module.state_dict().items():
        if name in exe.state:
            np.testing.assert_allclose(exe.state[name], value.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    assert "norm.running_var" in exe.state


@pytest.mark.parametrize("is_joined", [False, True], ids=["one view", "two views joined"])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_running_variances_are_unbiased_by_the_rows_that_are_normalised_as_one(
    ranks: int, accumulate: int, is_joined: bool
) -> None:
    """Statistics are per rank with batch_statistics="rank" and per micro-batch with accumulate=. The expected ones are
    the mean of PyTorch's running statistics after a forward pass of each part. A concatenation of batches is gathered
    and normalised as a whole.
    """
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)
            self.out = torch.nn.Linear(3, 3)

        def forward(self, one: Any, other: Any) -> Any:
            rows = one.shape[0]
            views = self.norm(torch.cat([one, other])) if is_joined else self.norm(one)
            return self.out(views[:rows] + views[rows:] if is_joined else views + other)

    torch.manual_seed(1)
    module = Net()
    one, other, labels = torch.randn(12, 3), torch.randn(12, 3), torch.arange(12) % 3
    model = ls.from_torch(module, (torch.randn(2, 3), torch.randn(2, 3)), dims={"batch": 12}, output_names=["logits"])
    step = ls.train_step(model, LOSS, ls.optim.SGD(0.1), accumulate=accumulate, batch_statistics="rank")
    shares = np.split(np.arange(12), ranks)
    expected = []
    parts = [share[j::accumulate] for share in shares for j in range(accumulate)]
    for part in [np.arange(12)] if is_joined else parts:
        copy = Net()
        copy.load_state_dict(module.state_dict())
        copy(one[part], other[part])
        expected.append(copy.norm)

    def learned(world: ls.Communicator) -> dict[str, np.ndarray]:
        exe = ls.compile(step, world=world, threads=1)
        mine = shares[world.rank]
        exe(one=one[mine], other=other[mine], label=labels[mine])
        return dict(exe.state)

    for state in run_in_threads(ranks, learned):
        for name in ("running_mean", "running_var"):
            mean = sum(getattr(norm, name) for norm in expected) / len(expected)
            np.testing.assert_allclose(state[f"norm.{name}"], mean, rtol=1e-5, err_msg=name)
