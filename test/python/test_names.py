"""Misspelt names and options, and words of other libraries: the error suggests ours."""

from __future__ import annotations

import importlib
import pickle
import re
import rlcompleter
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import lockstep as ls
from lockstep._base.names import _with_hints
from test_errors import CROSS_ENTROPY, SGD, mlp, raises, training

torch = pytest.importorskip("torch")
MODULE = torch.nn.Sequential(torch.nn.Linear(12, 5))


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        ("lockstep", "Compile", "compile"),
        ("lockstep", "trainstep", "train_step"),
        ("lockstep", "SGD", "optim.SGD"),
        ("lockstep", "softmax_cross_entropy", "loss.softmax_cross_entropy"),
        ("lockstep", "DataLoader", "data.batches"),
        ("lockstep", "KVStore", "kv.create"),
        ("lockstep", "optimizers", "optim"),
        ("lockstep.loss", "cross_entropy", "softmax_cross_entropy"),
        ("lockstep.loss", "CrossEntropyLoss", "softmax_cross_entropy"),
        ("lockstep.loss", "SoftmaxCrossEntropyLoss", "softmax_cross_entropy"),
        ("lockstep.loss", "SparseCategoricalCrossentropy", "softmax_cross_entropy"),
        ("lockstep.loss", "mse_loss", "mean_squared_error"),
        ("lockstep.loss", "BCEWithLogitsLoss", "binary_cross_entropy_with_logits"),
        ("lockstep.loss", "NLLLoss", "nll"),
        ("lockstep.loss", "softmax", "softmax_cross_entropy"),
        ("lockstep.optim", "Adamw", "AdamW"),
        ("lockstep.optim", "rmsprop", "RMSprop"),
        ("lockstep.optim", "NAG", "SGD"),
        ("lockstep.schedule", "CosineAnnealingLR", "cosine"),
        ("lockstep.schedule", "cosin", "cosine"),
        ("lockstep.clip", "clip_grad_norm_", "global_norm"),
        ("lockstep.average", "ema", "exponential"),
        ("lockstep.metrics", "accuracy", "Accuracy"),
        ("lockstep.data", "Batch", "Batches"),
        ("lockstep.kv", "creat", "create"),
        ("lockstep.graph", "Relu", "relu"),
        ("lockstep.graph", "where", "select"),
        ("lockstep.graph.nn", "layernorm", "layer_norm"),
        ("lockstep.graph.init", "kaiming_unifrom", "kaiming_uniform"),
        ("lockstep.horovod.torch", "all_reduce", "allreduce"),
    ],
)
def test_a_name_that_a_module_does_not_have(module: str, name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(importlib.import_module(module), name)
    assert str(caught.value).startswith(f"{module} has no {name!r}; is {meant} meant?")


def test_a_name_that_is_near_to_none() -> None:
    with pytest.raises(
        AttributeError, match=r"^lockstep\.clip has no 'zebra'\. There are: Clip, global_norm, norm, value$"
    ):
        ls.clip.zebra  # noqa: B018
    assert not hasattr(ls, "__wrapped__")
    for name in ("entropy", "max"):  # a part of several names, and too short a part of one
        with pytest.raises(AttributeError, match=rf"^lockstep\.loss has no '{name}'\. There are: "):
            getattr(ls.loss, name)


def test_modules_that_are_imported_by_themselves() -> None:
    code = "import lockstep\ntry: lockstep.forecast\nexcept AttributeError as error: print(error)\n"
    code += "from lockstep import forecast\nprint(lockstep.forecast is forecast)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "lockstep.forecast is a module that has to be imported: import lockstep.forecast\nTrue\n"


def test_dir_lists_what_is_public() -> None:
    for module in (ls, ls.average, ls.clip, ls.data, ls.kv, ls.loss, ls.metrics, ls.optim, ls.schedule):
        assert dir(module) == sorted(module.__all__)
        assert len(dir(module)) <= 42
    assert dir(ls.graph) == sorted(ls.graph.__all__)


def test_the_docstring_groups_the_names() -> None:
    assert ls.__doc__ is not None
    listed = ls.__doc__.split("The names, by what they are for:")[1].split("The modules")[0]
    groups = re.findall(r"^    [A-Z]\w+ {2,}(.*)$", listed, re.MULTILINE)
    assert len(groups) >= 5
    assert sorted(name for group in groups for name in group.split(", ")) == sorted(ls.__all__)


def test_tab_completion_offers_the_public_names() -> None:
    completer = rlcompleter.Completer({"ls": ls})
    offered = completer.attr_matches("ls.")
    names = {each.removeprefix("ls.").rstrip("()") for each in offered}
    assert names == {name for name in ls.__all__ if not name.startswith("_")}


# Calls with an option that does not exist, and the message.
OPTIONS: list[tuple[Callable[[], Any], str]] = [
    (lambda: ls.compile(mlp(), thread=1), "compile() has no option 'thread'; is threads meant? It has: graph, backend, world"),
    (lambda: ls.compile(mlp(), device="cuda"), "compile() has no option 'device'; is backend meant?"),
    (lambda: ls.compile(mlp(), zebra=1), "compile() has no option 'zebra'. It has: graph"),
    (lambda: training(grad_clip=1), "train_step() has no option 'grad_clip'; is clip meant?"),
    (lambda: training(amp=1), "train_step() has no option 'amp'; is precision meant?"),
    (lambda: ls.load_onnx("m.onnx", dim={}), "load_onnx() has no option 'dim'; is dims meant?"),
    (lambda: ls.data.batches([], batch_size=3), "batches() has no option 'batch_size'; is size meant?"),
    (lambda: ls.graph.nn.max_pool(None, kernel=2), "max_pool() has no option 'kernel'"),
    (lambda: ls.graph.Builder("g").input("x", "f32", (), splits=0), "Builder.input() has no option 'splits'; is split meant?"),
    (lambda: ls.kv.create(knd="local"), "create() has no option 'knd'; is kind meant?"),
    (lambda: ls.schedule.cosine(0.1, T_max=9), "cosine() has no option 'T_max'; is steps meant?"),
    (lambda: ls.schedule.constant(0.1).after_warmup(step=9), "Schedule.after_warmup() has no option 'step'; is steps meant?"),
    (lambda: ls.metrics.Accuracy(top_k=5), "Accuracy() has no option 'top_k'"),
    (lambda: ls.Checkpoints("folder", keeps=5), "Checkpoints() has no option 'keeps'; is keep meant?"),
    (lambda: ls.optim.SGD(0.1, decay=0.1), "SGD() has no option 'decay'; is weight_decay meant?"),
    (lambda: ls.optim.Adam(0.1, beta=0.9), "Adam() has no option 'beta'; is beta1 meant?"),
    (lambda: ls.optim.AdamW(0.1, wd=0.1), "AdamW() has no option 'wd'; is weight_decay meant?"),
    (lambda: ls.optim.RMSprop(0.1, rho=0.1), "RMSprop() has no option 'rho'; is alpha meant?"),
    (lambda: ls.loss.softmax_cross_entropy(weight=[1]), "softmax_cross_entropy() has no option 'weight'; is class_weights meant?"),
    (lambda: ls.loss.mean_squared_error(y_true="y"), "mean_squared_error() has no option 'y_true'; is target meant?"),
    (lambda: ls.Trainer(mlp(), CROSS_ENTROPY, kv_store="local"), "'kv_store' is an option of neither train_step nor compile; is kvstore meant?"),
    (lambda: ls.Trainer.fit(None, epoch=1), "Trainer.fit() has no option 'epoch'; is epochs meant?"),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(OPTIONS)))
def test_an_option_that_a_call_does_not_have(i: int) -> None:
    call, text = OPTIONS[i]
    with pytest.raises(TypeError) as caught:
        call()
    assert text in str(caught.value)


def test_options_of_an_optimizer_by_name() -> None:
    with raises("there is no optimizer 'adamww'; is adamw meant?"):
        ls.Trainer(mlp(), CROSS_ENTROPY, "adamww")
    with raises("the optimizer adam has no option 'beta_1'; is beta1 meant?"):
        ls.Trainer(mlp(), CROSS_ENTROPY, "adam", {"beta_1": 0.9})


@pytest.mark.parametrize(
    "call",
    [
        lambda: ls.compile(MODULE),
        lambda: ls.train_step(MODULE, CROSS_ENTROPY, SGD),
        lambda: ls.plan(MODULE, {"data": 1}),
        lambda: ls.load_onnx(MODULE),
        lambda: ls.Trainer(MODULE, CROSS_ENTROPY),
    ],
)
def test_a_module_in_the_place_of_a_graph(call: Callable[[], Any]) -> None:
    with raises("torch.nn.modules.container.Sequential", "lockstep.from_torch(module, example_inputs)") as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_module_and_nothing_else() -> None:
    for call in (ls.Trainer, ls.train_step):
        with pytest.raises(
            TypeError, match=r"missing .*'loss'.*; lockstep\.from_torch\(module, example_inputs\) makes"
        ):
            call(MODULE)
    with pytest.raises(TypeError, match=r"missing .*'loss'$"):
        ls.Trainer(mlp())


def test_a_file_in_the_place_of_a_graph() -> None:
    with raises("the graph is 'lenet.onnx', expected a lockstep.Graph, which lockstep.load_onnx(file) makes"):
        ls.compile("lenet.onnx")


def test_mxnets_trainer() -> None:
    for optimizer in ("sgd", "NAG", ls.optim.SGD(0.1)):
        with raises("Trainer: the loss is", "an optimizer", "Trainer(model, loss, optimizer)", "set_optimizer"):
            ls.Trainer(MODULE.state_dict(), optimizer, {"learning_rate": 0.1})


@pytest.mark.parametrize(
    ("loss", "meant"),
    [
        ("cross_entropy", "softmax_cross_entropy"),
        (torch.nn.CrossEntropyLoss(), "softmax_cross_entropy"),
        (torch.nn.functional.mse_loss, "mean_squared_error"),
        (ls.loss.huber, "huber"),
        (None, "softmax_cross_entropy"),
    ],
)
def test_what_is_no_loss(loss: Any, meant: str) -> None:
    with raises("loss is ", f"expected one of lockstep.loss, such as lockstep.loss.{meant}()"):
        ls.train_step(mlp(), loss, SGD)


def test_optimizers_of_pytorch() -> None:
    with raises("unknown optimizer of type torch.optim.adamw.AdamW; is AdamW meant?"):
        training(torch.optim.AdamW(MODULE.parameters()))


def test_what_a_call_runs_raises_as_it_is() -> None:
    def function(module: torch.nn.Module) -> None:
        len(module.training)

    with pytest.raises(TypeError, match=r"^object of type 'bool' has no len\(\)$"):
        _with_hints(function, "function")(MODULE)


def test_functions_can_be_pickled() -> None:
    for function in (ls.compile, ls.loss.l1, ls.schedule.cosine, ls.data.batches, ls.kv.create):
        assert pickle.loads(pickle.dumps(function)) is function
