"""Calls that no user intends: a wrong value is an Error with printable text; a call that fits no signature is a
TypeError, as usual in Python; and the process continues.
"""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import lockstep as ls
from lockstep import elastic
from ranks import run_in_threads
from test_errors import CROSS_ENTROPY, LABELS, MLP, SGD, X, mlp, raises, training

torch = pytest.importorskip("torch")

WRONG = [None, 5, -1, 2.5, "text", b"bytes", "nul\0", "lone \ud800", [], {}, object(), [None], {"a": "b"}, {5: 5}, X]


def exe() -> ls.Executable:
    return ls.compile(training(), threads=1)


def value(shape: tuple[int, ...] = (2, 3)) -> ls.graph.Value:
    return ls.graph.Builder("g").input("x", "f32", shape)


# Every public function with an argument, and the values for which the call is right; for all other values of WRONG it
# is wrong.
CALLS: list[tuple[Callable[[Any], Any], list[Any]]] = [
    (lambda wrong: ls.load_onnx(wrong), []),
    (lambda wrong: ls.load_onnx(MLP, dims=wrong), []),
    (lambda wrong: ls.load_onnx(MLP, dims={"batch": wrong}), [5]),
    (lambda wrong: ls.load_onnx(MLP, {"batch": 6}, split=wrong), [None, {}]),
    (lambda wrong: ls.load_onnx(MLP, {"batch": 6}, values=wrong), [None, {}]),
    (lambda wrong: ls.load_onnx(MLP, {"batch": 6}, constants=wrong), [[], {}]),
    (lambda wrong: ls.load_onnx(MLP, {"batch": 6}, states=wrong), [[], {}]),
    (lambda wrong: ls.from_torch(wrong, X), []),
    (lambda wrong: ls.from_torch(torch.nn.Identity(), wrong), []),
    (lambda wrong: ls.to_torch(wrong, None), []),
    (lambda wrong: ls.load_weights(wrong, "weights.safetensors"), []),
    (lambda wrong: ls.load_weights(mlp(), wrong), []),
    (lambda wrong: ls.load_weights(mlp(), "weights.safetensors", rename=wrong), []),
    (lambda wrong: ls.load_weights(mlp(), "weights.safetensors", strict=wrong), []),
    (lambda wrong: ls.save_weights(wrong, "weights.safetensors"), []),
    (lambda wrong: ls.save_weights(exe(), wrong), ["text", b"bytes"]),
    (lambda wrong: ls.parse(wrong), []),
    (lambda wrong: ls.train_step(wrong, CROSS_ENTROPY, SGD), []),
    (lambda wrong: ls.train_step(mlp(), wrong, SGD), []),
    (lambda wrong: ls.train_step(mlp(), CROSS_ENTROPY, wrong), [None]),
    (lambda wrong: training(trained=wrong), [[], {}]),
    (lambda wrong: training(frozen=wrong), [[], {}]),
    (lambda wrong: training(keep_results=wrong), []),
    (lambda wrong: training(batch_statistics=wrong), []),
    (lambda wrong: training(dropout=wrong), []),
    (lambda wrong: training(seed=wrong), [5, -1]),
    (lambda wrong: training(precision=wrong), []),
    (lambda wrong: ls.load_graph(wrong), []),
    (lambda wrong: mlp().save(wrong), ["text", b"bytes"]),
    (lambda wrong: training(accumulate=wrong), []),
    (lambda wrong: training(groups=wrong), [None, {}]),
    (lambda wrong: training(groups={"*.bias": wrong}), []),
    (lambda wrong: training(clip=wrong), [None]),
    (lambda wrong: training(average=wrong), [None]),
    (lambda wrong: training(exchange=wrong), [None, {}]),
    (lambda wrong: training(exchange={"*": wrong}), []),
    (lambda wrong: ls.exchange(wrong), []),
    (lambda wrong: ls.exchange.all_reduce(wrong), []),
    (lambda wrong: ls.evaluation(wrong, CROSS_ENTROPY), []),
    (lambda wrong: ls.evaluation(mlp(), wrong), []),
    (lambda wrong: ls.evaluation(mlp(), CROSS_ENTROPY, wrong), [None, {}]),
    (lambda wrong: ls.evaluation(mlp(), CROSS_ENTROPY, {"a": wrong}), []),
    (lambda wrong: ls.evaluation(mlp(), CROSS_ENTROPY, keep_results=wrong), []),
    (lambda wrong: ls.evaluation(mlp(), CROSS_ENTROPY, uneven=wrong), []),
    (lambda wrong: ls.compile(ls.evaluation(mlp(), CROSS_ENTROPY), threads=1).evaluate(wrong), [[], {}]),
    (lambda wrong: ls.compile(wrong), []),
    (lambda wrong: ls.compile(mlp(), wrong), []),
    (lambda wrong: ls.compile(mlp(), world=wrong), [None]),
    (lambda wrong: ls.compile(mlp(), mesh=wrong), [None, {}]),
    (lambda wrong: ls.compile(mlp(), split=wrong), [None, {}]),
    (lambda wrong: ls.compile(mlp(), split={"fc1.weight": wrong}), [{}]),
    (lambda wrong: ls.compile(mlp(), split={"fc1.weight": {"data": wrong}}), []),
    (lambda wrong: ls.compile(mlp(), placements=wrong), [None, {}]),
    (lambda wrong: ls.compile(mlp(), placements={"fc1.weight": wrong}), []),
    (lambda wrong: ls.compile(mlp(), shard_optimizer=wrong), []),
    (lambda wrong: ls.compile(mlp(), shared_weights=wrong), []),
    (lambda wrong: ls.compile(mlp(), threads=wrong), [None, 5]),
    (lambda wrong: ls.compile(mlp(), strategy=wrong), []),
    (lambda wrong: ls.compile(mlp(), asynchronous=wrong), []),
    (lambda wrong: ls.compile(mlp(), max_staleness=wrong), [None]),
    (lambda wrong: ls.compile(mlp(), bigarray_bound=wrong), [None]),
    (lambda wrong: ls.compile(mlp(), bucket_bytes=wrong), [None, 5]),
    (lambda wrong: ls.compile(mlp(), buckets=wrong), [None]),
    (lambda wrong: ls.compile(mlp(), factors=wrong), [None, 5, 2.5]),
    (lambda wrong: ls.compile(mlp(), wire=wrong), [None, "bf16", "int8"]),
    (lambda wrong: ls.compile(mlp(), check_every=wrong), [5]),
    (lambda wrong: ls.compile(mlp(), isa=wrong), []),
    (lambda wrong: ls.compile(mlp(), optimize=wrong), []),
    (lambda wrong: ls.compile(mlp(), replicated=wrong), []),
    (lambda wrong: ls.compile(mlp(), tf32=wrong), []),
    (lambda wrong: ls.compile(mlp(), check_numerics=wrong), []),
    (lambda wrong: ls.compile(mlp(), verify_hardware=wrong), [5]),
    (lambda wrong: ls.compile(mlp(), tune=wrong), []),
    (lambda wrong: ls.compile(mlp(), virtual_ranks=wrong), [None]),
    (lambda wrong: ls.compile(mlp(), shares=wrong), [None]),
    (lambda wrong: ls.compile(mlp(), verify=wrong), []),
    (lambda wrong: ls.compile(mlp(), memory_limit=wrong), [None]),
    (lambda wrong: ls.compile(mlp(), profile=wrong), []),
    (lambda wrong: ls.find_nan(wrong), []),
    (lambda wrong: ls.find_nan(exe(), x=wrong, label=LABELS), [X]),
    (lambda wrong: ls.distribute(wrong, {"data": 2}), []),
    (lambda wrong: ls.distribute(mlp(), wrong), [{}]),
    (lambda wrong: ls.distribute(mlp(), {"data": 2}, wrong), [None, {}]),
    (lambda wrong: ls.distribute(mlp(), {"data": 2}, placements=wrong), [None, {}]),
    (lambda wrong: ls.split(wrong, "model"), [5]),
    (lambda wrong: ls.split(0, wrong), ["text"]),
    (lambda wrong: ls.split(0, "model") & wrong, []),
    (lambda wrong: ls.replicated() & wrong, []),
    (lambda wrong: ls.verify(wrong), []),
    (lambda wrong: ls.verify(mlp(), wrong), [None]),
    (lambda wrong: ls.verify(mlp(), 1, backend=wrong), []),
    (lambda wrong: ls.verify_hlo(wrong, "after.txt"), []),
    (lambda wrong: ls.plan(wrong, {"model": 2}), []),
    (lambda wrong: ls.plan(training(), wrong), []),
    (lambda wrong: ls.plan(training(), {"data": 1, "model": 2}, machine=wrong), [None]),
    (lambda wrong: ls.plan(training(), {"data": 1, "model": 2}, memory_limit=wrong), [None]),
    (lambda wrong: ls.plan(training(), {"data": 1, "model": 2}, placements=wrong), [None, {}]),
    (lambda wrong: ls.Plan.read(wrong), []),
    (lambda wrong: ls.interpret(wrong, [{}]), []),
    (lambda wrong: ls.interpret(mlp(), wrong), []),
    (lambda wrong: ls.interpret(mlp(), [{"x": wrong}]), [X]),
    (lambda wrong: ls.gradients(wrong, "loss"), []),
    (lambda wrong: ls.gradients(mlp(), wrong), []),
    (lambda wrong: ls.gradients(mlp(), "logits", wrong), []),
    (lambda wrong: ls.gradients(value().sum(), wrong), [[]]),
    (lambda wrong: ls.gradients(value().sum(), [wrong]), []),
    (lambda wrong: ls.graph.Builder(wrong), ["text"]),
    (lambda wrong: ls.graph.Builder("g", wrong), [5]),
    (lambda wrong: ls.graph.Builder("g", mesh=wrong), [None, {}]),
    (lambda wrong: ls.graph.Builder("g").input(wrong, "f32", ()), ["text"]),
    (lambda wrong: ls.graph.Builder("g").input("x", wrong, ()), []),
    (lambda wrong: ls.graph.Builder("g").input("x", "f32", wrong), [[]]),
    (lambda wrong: ls.graph.Builder("g").input("x", "f32", (1,), wrong), [None, {}]),
    (lambda wrong: ls.graph.Builder("g").state(wrong), ["text"]),
    (lambda wrong: ls.graph.Builder("g").state("w", wrong), [None, []]),
    (lambda wrong: ls.graph.Builder("g").state("w", (2,), wrong), [None]),
    (lambda wrong: ls.graph.Builder("g").state("w", init=wrong), [None, 5, -1, 2.5, X]),
    (lambda wrong: ls.graph.Builder("g").state("w", trained=wrong), []),
    (lambda wrong: ls.graph.Builder("g").setting(wrong, 5), ["text"]),
    (lambda wrong: ls.graph.Builder("g").setting("rate", wrong), [5, -1, 2.5]),
    (lambda wrong: ls.graph.Builder("g").setting("rate", 5, wrong), [5, -1, 2.5]),
    (lambda wrong: ls.graph.Builder("g").constant(wrong), [5, -1, 2.5, X]),
    (lambda wrong: ls.graph.Builder("g").constant(5, wrong), [None]),
    (lambda wrong: ls.graph.Builder("g").result("x", wrong), []),
    (lambda wrong: ls.graph.Builder.of(wrong), []),
    (lambda wrong: ls.graph.Builder.of(ls.graph.Builder("g").finish(), wrong), [5]),
    (lambda wrong: value().graph.value(wrong), []),
    (lambda wrong: value().graph.nodes(wrong), [None]),
    (lambda wrong: value().graph.nodes(source=wrong), [None, "text"]),
    (lambda wrong: value().graph.nodes(placement=wrong), [None, {}, {"a": "b"}]),
    (lambda wrong: ls.pass_(before=wrong), ["text"]),
    (lambda wrong: ls.pass_(after="distribute", version=wrong), ["text"]),
    (lambda wrong: ls.pass_(after="distribute", keeps=wrong), []),
    (lambda wrong: ls.pass_(after="distribute")(wrong), []),
    (lambda wrong: ls.compile(mlp(), passes=wrong), [[]]),
    (lambda wrong: ls.compile(mlp(), passes=[wrong]), []),
    (lambda wrong: ls.verify(mlp(), 1, passes=wrong), [[]]),
    (lambda wrong: ls.verify(mlp(), 1, passes=[wrong]), []),
    (lambda wrong: value().graph.before(wrong).__enter__(), []),
    (lambda wrong: value().graph.scope(wrong).__enter__(), ["text"]),
    (lambda wrong: (x := value()).graph.replace(x, wrong), []),
    (lambda wrong: (x := value()).graph.result(wrong, x), ["text"]),
    (lambda wrong: (x := value()).graph.next_state(wrong, x), []),
    (lambda wrong: ls.graph.relu(wrong), []),
    (lambda wrong: ls.graph.matmul(value(), wrong), []),
    (lambda wrong: ls.graph.softmax(value(), dim=wrong), []),
    (lambda wrong: ls.graph.reduce_sum(value(), dims=wrong), [[]]),
    (lambda wrong: ls.graph.compare(value(), 5, direction=wrong), []),
    (lambda wrong: ls.graph.iota(wrong, shape=[1], dtype="i64", dim=0), []),
    (lambda wrong: value() + wrong, [5, -1, 2.5]),
    (lambda wrong: value() @ wrong, []),
    (lambda wrong: value()[wrong], [None, -1]),
    (lambda wrong: value().to(wrong), []),
    (lambda wrong: value().sum(wrong), [None, -1, []]),
    (lambda wrong: value().reshape(wrong), [-1]),
    (lambda wrong: value().transpose(wrong), []),
    (lambda wrong: value().flatten(wrong), [-1]),
    (lambda wrong: value().broadcast_to(wrong), []),
    (lambda wrong: ls.graph.nn.conv(wrong, wrong), []),
    (lambda wrong: ls.graph.nn.max_pool(value((1, 1, 9)), wrong), [5]),
    (lambda wrong: ls.graph.nn.linear(value(), wrong), []),
    (lambda wrong: ls.graph.nn.dropout(value(), wrong), []),
    (lambda wrong: ls.graph.nn.linear(value(), np.ones((4, 3)), wrong), [None]),
    (lambda wrong: ls.graph.nn.layer_norm(value(), wrong), [None]),
    (lambda wrong: ls.graph.nn.batch_norm(value(), wrong, np.ones(3)), []),
    (lambda wrong: ls.graph.nn.layer_norm(value(), epsilon=wrong), [5, -1, 2.5]),
    (lambda wrong: ls.graph.nn.gelu(value(), wrong), []),
    (lambda wrong: ls.graph.nn.gelu(wrong), []),
    (lambda wrong: ls.graph.nn.embedding(wrong, value()), [5, -1]),
    (lambda wrong: ls.graph.nn.attention(wrong, value(), value()), []),
    (lambda wrong: ls.graph.nn.cross_entropy(value(), wrong), []),
    (lambda wrong: ls.graph.init.normal(wrong), [5, -1, 2.5]),
    (lambda wrong: ls.graph.init.normal(0, wrong), [5, 2.5]),
    (lambda wrong: ls.graph.init.uniform(0, wrong), [5, 2.5]),
    (lambda wrong: ls.graph.init.constant(wrong), [5, -1, 2.5]),
    (lambda wrong: ls.graph.init.kaiming_uniform(wrong), [5, -1, 2.5]),
    (lambda wrong: ls.save_onnx(wrong, "never.onnx"), []),
    (lambda wrong: ls.save_onnx(exe(), wrong), ["text", b"bytes"]),
    (lambda wrong: mlp().initial_value(wrong), []),
    (lambda wrong: mlp().with_dims(wrong), [None, {}]),
    (lambda wrong: mlp().with_dims(batch=wrong), [5]),
    (lambda wrong: mlp().summary(wrong), [None, 5]),
    (lambda wrong: mlp().save_svg("never.svg", wrong), [None, 5]),
    (lambda wrong: mlp().save_svg(wrong), ["text", b"bytes"]),
    (lambda wrong: mlp().diff(wrong), []),
    (lambda wrong: mlp().explain(wrong), [None]),
    (lambda wrong: mlp().explain(2, rank=wrong), []),
    (lambda wrong: mlp().explain(2, depth=wrong), [None, 5]),
    (lambda wrong: mlp().explain(2, machine=wrong), [None]),
    (lambda wrong: mlp().explain(2, backend=wrong), []),
    (lambda wrong: mlp().save_html(wrong), ["text", b"bytes"]),
    (lambda wrong: mlp().save_html("never.html", wrong), [None]),
    (lambda wrong: mlp().save_html("never.html", other=wrong), [None]),
    (lambda wrong: mlp().explain(2).save_html(wrong), ["text", b"bytes"]),
    (lambda wrong: mlp().explain(2).save_html("never.html", wrong), [None]),
    (lambda wrong: exe().explain(wrong), [None, 5]),
    (lambda wrong: exe().summary(wrong), [None, 5]),
    (lambda wrong: exe().state[wrong], []),
    (lambda wrong: exe().state.__setitem__("fc1.weight", wrong), []),
    (lambda wrong: exe().state.assign(wrong), []),
    (lambda wrong: exe().save(wrong), ["text", b"bytes"]),
    (lambda wrong: exe().save("c.safetensors", step=wrong), [None, 5]),
    (lambda wrong: exe().save("c.safetensors", metadata=wrong), [None, {}, {"a": "b"}]),
    (lambda wrong: exe().save("c.safetensors", metadata={"a": wrong}), [5, -1, 2.5, "text"]),
    (lambda wrong: exe().save("c.safetensors", background=wrong), []),
    (lambda wrong: exe().report(roofline=wrong), []),
    (lambda wrong: exe().report(depth=wrong), []),
    (lambda wrong: exe().roofline(wrong), [5]),
    (lambda wrong: exe().load(wrong), []),
    (lambda wrong: ls.Checkpoints(wrong), ["text", b"bytes"]),
    (lambda wrong: ls.Checkpoints("folder", keep=wrong), [5]),
    (lambda wrong: ls.Checkpoints("folder").save(wrong, step=1), []),
    (lambda wrong: ls.Checkpoints("folder").save(exe(), step=wrong), [None, 5]),
    (lambda wrong: ls.Checkpoints("folder").restore(wrong), []),
    (lambda wrong: exe().settings[wrong], []),
    (lambda wrong: exe().settings.__setitem__("learning_rate", wrong), [5, 2.5]),
    (lambda wrong: exe().set(learning_rate=wrong), [5, 2.5]),
    (lambda wrong: setattr(exe(), "step", wrong), [5]),
    (lambda wrong: exe()(wrong), []),
    (lambda wrong: exe()(x=wrong, label=LABELS), [X]),
    (lambda wrong: exe().start(wrong), []),
    (lambda wrong: exe().start(x=wrong, label=LABELS), [X]),
    (lambda wrong: ls.loss.softmax_cross_entropy(wrong), ["text"]),
    (lambda wrong: ls.loss.mean_squared_error("y", wrong), ["text"]),
    (lambda wrong: ls.loss.result(wrong), ["text"]),
    (lambda wrong: ls.loss.softmax_cross_entropy(class_weights=wrong), [None, []]),
    (lambda wrong: ls.loss.softmax_cross_entropy(ignore_index=wrong), [None, 5, -1]),
    (lambda wrong: ls.loss.l1("y", reduction=wrong), []),
    (lambda wrong: ls.loss.l1("y", sample_weight=wrong), [None, "text"]),
    (lambda wrong: ls.optim.SGD(wrong), [5, 2.5]),
    (lambda wrong: ls.optim.SGD(0.1, momentum=wrong), [None, 5, 2.5]),
    (lambda wrong: ls.optim.SGD(0.1, 0.9, nesterov=wrong), [None]),
    (lambda wrong: ls.optim.Adam(betas=(wrong, 0.9)), [None]),
    (lambda wrong: ls.data.batches(wrong, size=2), [X]),
    (lambda wrong: ls.data.batches(X, size=wrong), [5]),
    (lambda wrong: ls.data.batches(X, size=2, world=wrong), [None]),
    (lambda wrong: ls.data.batches(X, size=2, seed=wrong), [None, 5]),
    (lambda wrong: ls.data.batches(X, size=2, mesh=wrong), [None, {}]),
    (lambda wrong: ls.data.batches(X, size=1, start=wrong), [5]),
    (lambda wrong: ls.data.batches(X, size=2, last=wrong), []),
    (lambda wrong: ls.data.batches(X, size=2, shares=wrong), [None]),
    (lambda wrong: ls.compile(training(uneven=True), threads=1, shares=wrong), [None]),
    (lambda wrong: ls.compile(training(uneven="measured"), threads=1).balance(wrong), [5, 2.5]),
    (lambda wrong: ls.clip.value(wrong), [5, 2.5]),
    (lambda wrong: ls.clip.norm(wrong), [5, 2.5]),
    (lambda wrong: ls.clip.global_norm(wrong), [5, 2.5]),
    (lambda wrong: ls.average.exponential(wrong), []),
    (lambda wrong: ls.average.stochastic(wrong), [5]),
    (lambda wrong: ls.average.stochastic(5, wrong), [5]),
    (lambda wrong: ls.schedule.constant(wrong), [5, -1, 2.5]),
    (lambda wrong: ls.schedule.cosine(0.1, wrong), [5]),
    (lambda wrong: ls.schedule.step(0.1, wrong), [5]),
    (lambda wrong: ls.schedule.cosine(wrong, 5), [5, -1, 2.5]),
    (lambda wrong: ls.schedule.cosine(0.1, 5).after_warmup(wrong), [5]),
    (lambda wrong: ls.schedule.cosine(0.1, 5).after_warmup(5, wrong), [5, -1, 2.5]),
    (lambda wrong: ls.schedule.multi_step(0.1, wrong), [[], {}, {5: 5}]),
    (lambda wrong: ls.schedule.one_cycle(0.1, 5, wrong), []),
    (lambda wrong: ls.metrics.Accuracy(k=wrong), [5]),
    (lambda wrong: ls.metrics.Accuracy(ignore_index=wrong), [None, 5, -1]),
    (lambda wrong: ls.metrics.Accuracy().add(wrong, LABELS), [X]),
    (lambda wrong: ls.metrics.Accuracy().add(X, wrong), []),
    (lambda wrong: ls.metrics.Accuracy().add(X, LABELS, wrong), [5, 2.5]),
    (lambda wrong: ls.metrics.ConfusionMatrix(wrong), [5]),
    (lambda wrong: ls.metrics.ConfusionMatrix(5, ignore_index=wrong), [None, 5, -1]),
    (lambda wrong: ls.metrics.Mean().add(wrong), [5, -1, 2.5, [], X]),
    (lambda wrong: ls.metrics.Mean().add(1.0, wrong), [5, 2.5]),
    (lambda wrong: ls.metrics.Mean().compute(wrong), [None]),
    (lambda wrong: ls.metrics.Mean().compute(ls.Communicator.single(), wrong), [None, {}]),
    (lambda wrong: ls.data.load_idx(wrong), []),
    (lambda wrong: ls.data.mnist(wrong), []),
    (lambda wrong: ls.data.mnist("nowhere", train=wrong), []),
    (lambda wrong: elastic.run(wrong), []),
    (lambda wrong: elastic.run(lambda job: None, shares=wrong), [None, 5]),
    (lambda wrong: elastic.run(lambda job: None, timeout=wrong), [5, 2.5]),
    (lambda wrong: elastic.run(lambda job: job.adopt(wrong)), []),
    (lambda wrong: elastic.run(lambda job: job.step(wrong)), []),
    (lambda wrong: ls.Communicator.in_process(wrong), [5]),
    (lambda wrong: ls.Communicator.in_process(2, timeout=wrong), [5, 2.5]),
    (lambda wrong: ls.Communicator.mpi(timeout=wrong), [5, 2.5]),
    (lambda wrong: ls.Communicator.mpi(between_hosts=wrong), ["tcp", "mpi"]),
    (lambda wrong: ls.Communicator.mpi(order=wrong), ["any", "rank"]),
    (lambda wrong: ls.Communicator.mpi(routes=wrong), ["measured", "default"]),
    (lambda wrong: ls.Communicator.single().host(wrong), []),
    (lambda wrong: ls.Communicator.single().gather_bytes(wrong), [b"bytes"]),
    (lambda wrong: ls.Communicator.single().abort(wrong), ["text"]),
]


def is_in(value: Any, values: list[Any]) -> bool:
    return any(value is each or (type(value) is type(each) and value is not X and value == each) for each in values)


@pytest.mark.parametrize("i", range(len(CALLS)))
def test_every_wrong_value_is_an_error(i: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, right = CALLS[i]
    tried = 0
    for wrong in WRONG:
        if is_in(wrong, right):
            call(wrong)
            continue
        with pytest.raises(ls.Error) as caught:
            call(wrong)
        str(caught.value).encode()
        assert len(str(caught.value)) > 10
        assert "incompatible function arguments" not in str(caught.value)
        tried += 1
    assert tried > 5


def test_every_public_function_was_called() -> None:
    source = Path(__file__).read_text()
    for name in ls.__all__:
        if name[0].islower() and callable(getattr(ls, name)):
            assert f"ls.{name}(" in source, name


def test_each_option_of_compile_was_wrong_once() -> None:
    source = Path(__file__).read_text()
    for name in list(inspect.signature(ls.compile).parameters)[2:]:
        assert f"ls.compile(mlp(), {name}=wrong)" in source, f"add a call with {name}=wrong to CALLS"


# Calls that fit no signature, each with the parts of the message that name the mistake.
MISFITS: list[tuple[Callable[[], Any], list[str]]] = [
    (lambda: ls.parse(), ["parse", "text"]),
    (lambda: ls.parse("", strict=True), ["parse", "strict"]),
    (lambda: ls.compile(mlp(), thread=1), ["compile", "thread"]),
    (lambda: ls.train_step(mlp(), CROSS_ENTROPY), ["train_step", "optimizer"]),
    (lambda: ls.data.batches(X), ["batches", "size"]),
    (lambda: ls.optim.SGD(0.1, decay=0.1), ["SGD()", "decay"]),
    (lambda: ls.optim.SGD(0.1, 0.9, True, 0.0, 0.1), ["SGD(learning_rate", "too many positional arguments"]),
    (lambda: ls.optim.SGD(0.1, learning_rate=0.1), ["SGD(learning_rate", "multiple values"]),
    (lambda: ls.loss.softmax_cross_entropy(label="y"), ["softmax_cross_entropy()", "label"]),
    (lambda: ls.loss.result("y", "t"), ["result(", "too many positional arguments"]),
    (lambda: ls.loss.result(), ["result(", "missing a required argument"]),
    (lambda: ls.Communicator.in_process(), ["in_process"]),
    (lambda: ls.Communicator.single().host(who=0), ["host"]),
    (lambda: ls.Graph(), ["Graph"]),
]


@pytest.mark.parametrize("i", range(len(MISFITS)))
def test_a_call_that_no_signature_fits_is_a_type_error(i: int) -> None:
    call, parts = MISFITS[i]
    with pytest.raises(TypeError) as caught:
        call()
    assert not isinstance(caught.value, ls.Error)
    for part in parts:
        assert part in str(caught.value)


def test_the_error_has_the_packages_name() -> None:
    assert repr(ls.Error) == "<class 'lockstep.Error'>"
    assert isinstance(pickle.loads(pickle.dumps(ls.Error("no more data"))), ls.Error)
    done = subprocess.run(
        [sys.executable, "-c", "import lockstep\nlockstep.parse('')"], capture_output=True, text=True, check=False
    )
    assert "\nlockstep.Error: line 1" in done.stderr


# Text


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("graph @f(%é: f32[2]", "found 'é'"),
        ("graph @f(%x: f32[2]) → (", "column 22: expected '->', found '→'"),
        ('graph @"\u00e9\u4e2d\U0001f600"(\u4e2d', "column 14: expected '%', found '中'"),
    ],
)
def test_messages_about_characters_of_several_bytes(text: str, part: str) -> None:
    with raises(part):
        ls.parse(text)


def test_names_of_every_language_go_through() -> None:
    text = (
        'graph @"größe"(%"入力": f32[2]) -> ("結果": f32[2]) {\n  %"y ñ" = exp %"入力" : f32[2]\n  return %"y ñ"\n}\n'
    )
    graph = ls.parse(text)
    assert str(graph) == text
    assert graph.inputs[0].name == "入力"
    np.testing.assert_allclose(ls.compile(graph, threads=1)(入力=np.zeros(2, np.float32))["結果"], 1)


@pytest.mark.parametrize("name", [b"in\xff\xfeput", b"nul\0byte", b"cut \xe4\xb8"])
@pytest.mark.parametrize("where", ["input", "node", "initializer", "graph"])
def test_names_in_files_that_are_no_text(where: str, name: bytes, tmp_path: Path) -> None:
    model = onnx.load(MLP)
    old, new = {
        "input": (b"x", name),
        "node": (model.graph.node[0].name.encode(), name),
        "initializer": (b"fc1.weight", name),
        "graph": (model.graph.name.encode(), name),
    }[where]
    # Python's protobuf refuses to make such a file, so the name is first replaced by a placeholder of equal length, and
    # then the bytes of the placeholder.
    placeholder = b"Q" * len(new)
    for field in ("input", "output", "node", "initializer"):
        for item in getattr(model.graph, field):
            if item.name.encode() == old:
                item.name = placeholder.decode()
            for names in (getattr(item, "input", []), getattr(item, "output", [])):
                for i, each in enumerate(names):
                    if each.encode() == old:
                        names[i] = placeholder.decode()
    if where == "graph":
        model.graph.name = placeholder.decode()
    content = model.SerializeToString()
    assert placeholder in content
    path = tmp_path / "names.onnx"
    path.write_bytes(content.replace(placeholder, name))
    with raises(str(path), "name", "not valid text"):
        ls.load_onnx(path, dims={"batch": 6})


# Sizes


def nested(depth: int) -> str:
    head = "graph @g(%x: f32[2]) -> (y: f32[2]) {\n  %y = fusion %x {body="
    tail = "} : f32[2]\n  return %y\n}"
    inner = "graph @g(%x: f32[2]) -> (y: f32[2]) {\n  %y = exp %x : f32[2]\n  return %y\n}"
    return head * depth + inner + tail * depth


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (nested(100_000), "nested graphs"),
        ("graph @f(%x: f32[4611686018427387904,4]) -> () {\n  return\n}", "too large"),
        ("graph @f(state %x: f32[4611686018427387904]) -> () {\n  return\n}", "too large"),
        ("graph @f() -> () {\n  %y = constant {value=dense<f32[99999999999]: 0>} : f32[99999999999]", "too large"),
        ("graph @f() -> () {\n  %y = constant {value=dense<f64[9999999,9999999,9999999]: 0>}", "too large"),
        (
            "graph @f() -> () {\n" + "  %y = constant {value=dense<f64[100000000]: 0>} : f64[100000000]\n" * 9,
            "too large|defined twice",
        ),
    ],
)
def test_texts_that_ask_for_too_much(text: str, part: str) -> None:
    with pytest.raises(ls.Error, match=part):
        ls.parse(text)


def test_states_that_no_machine_holds() -> None:
    text = "graph @f(state %w: f32[9000000000000]) -> (%w: f32[9000000000000]) {\n  return %w\n}\n"
    graph = ls.parse(text)
    assert str(graph) == text
    with raises("state w", "f32[9000000000000]", "memory"):
        graph.initial_value("w")
    with raises("state w", "memory"):
        ls.interpret(graph, [{}])
    with raises("memory"):
        ls.compile(graph, threads=1)
    text = "graph @f(%x: f32[]) -> (y: f32[9000000000000]) {\n  %y = broadcast %x {dims=[], shape=[9000000000000]} : f32[9000000000000]\n  return %y\n}\n"
    with raises("broadcast", "memory"):
        ls.interpret(ls.parse(text), [{"x": np.float32(1)}])
    with raises("memory"):
        ls.compile(ls.parse(text), threads=1)(x=np.array(1, np.float32))


# Threads

SLOW = """
graph @slow(%x: f32[1024,1024], state %w: f32[1024,1024]) -> (y: f32[1024,1024], %w: f32[1024,1024]) {
  %a = matmul %x, %w : f32[1024,1024]
  %b = matmul %a, %w : f32[1024,1024]
  %c = matmul %b, %w : f32[1024,1024]
  %y = matmul %c, %w : f32[1024,1024]
  return %y, %w
}
""".lstrip()


def test_two_threads_with_one_executable() -> None:
    exe = ls.compile(ls.parse(SLOW), threads=1)
    x = np.ones((1024, 1024), np.float32)
    exe.state["w"] = np.eye(1024, dtype=np.float32)
    outcomes: list[Any] = []
    calls = [
        lambda: exe(x=x)["y"],
        lambda: exe.state["w"],
        lambda: exe.state.__setitem__("w", np.eye(1024, dtype=np.float32)),
    ]

    def use(call: Callable[[], Any]) -> None:
        for _ in range(20):
            try:
                result = call()
                assert result is None or (result == x).all() or (result == np.eye(1024)).all(), "a corrupted result"
                outcomes.append("ok")
            except Exception as error:  # noqa: BLE001
                outcomes.append(error)

    threads = [threading.Thread(target=use, args=(call,)) for call in calls * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    errors = [outcome for outcome in outcomes if outcome != "ok"]
    assert len(outcomes) == 120
    assert errors, "the threads never met"
    for error in errors:
        assert isinstance(error, ls.Error), error
        assert "@slow is in use by another thread" in str(error)
    assert (exe(x=x)["y"] == x).all(), "it is still usable"


def test_two_threads_with_one_communicator() -> None:
    first, second = ls.Communicator.in_process(2, timeout=20)
    waiting = threading.Thread(target=first.barrier, daemon=True)
    waiting.start()
    time.sleep(0.3)  # until it waits in there
    with raises("gather_bytes: the communicator is in use by another thread"):
        first.gather_bytes(b"")
    with raises("compile: the communicator is in use by another thread"):
        ls.compile(mlp(), world=first, threads=1)
    assert waiting.is_alive()
    second.barrier()
    waiting.join(10)
    assert not waiting.is_alive(), "the barrier ended"


# Shares


def test_a_whole_batch_where_a_share_is_expected() -> None:
    def body(world: ls.Communicator) -> None:
        exe = ls.compile(training(), world=world, threads=1)
        exe(x=X, label=LABELS)

    for error in run_in_threads(2, body):
        assert isinstance(error, ls.Error)
        for part in ("input ", "f32[3,12], this rank's share of f32[6,12], found f32[6,12], which is the whole"):
            assert part in str(error)


def test_inputs_without_names() -> None:
    with raises("@mlp is called with inputs by name, such as exe(x=…, label=…)"):
        exe()(X, LABELS)
