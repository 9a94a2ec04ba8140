"""The options of compile come from their table. A strategy is a value that can be printed, parsed and compared."""

from __future__ import annotations

import importlib.util
import inspect
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from lockstep._compile import options as _options
from ranks import errors_of, run_in_threads

ROOT = Path(__file__).parents[2]
MODEL = """graph @mlp(%x: f32[8,16] split(0), state %w1: f32[16,16], state %w2: f32[16,4]) -> (logits: f32[8,4]) {
  %1 = matmul %x, %w1 : f32[8,16]
  %2 = relu %1 : f32[8,16]
  %3 = matmul %2, %w2 : f32[8,4]
  return %3
}"""


def step() -> ls.Graph:
    return ls.train_step(ls.parse(MODEL), ls.loss.softmax_cross_entropy("logits", "label"), ls.optim.SGD(0.1))


def error_of(**options: Any) -> str:
    with pytest.raises(ls.Error) as raised:
        ls.compile(step(), **options)
    return str(raised.value)


# --- The table


def test_the_signature_is_that_of_the_table() -> None:
    parameters = inspect.signature(ls.compile).parameters
    assert list(parameters)[:5] == ["graph", "backend", "world", "passes", "mesh"]
    assert list(parameters)[4:] == list(_options.TABLE)
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in _options.TABLE)
    assert (parameters["check_every"].default, parameters["check_every"].annotation) == (512, "int")
    assert (parameters["strategy"].default, parameters["strategy"].annotation) == ("all_reduce", "str | Strategy")
    assert (parameters["wire"].default, parameters["optimize"].default) == (None, True)
    own = inspect.unwrap(ls.compile).__code__
    assert own.co_argcount + own.co_kwonlyargcount <= 8


def test_the_documentation_is_that_of_the_table() -> None:
    doc = inspect.getdoc(ls.compile) or ""
    for name, option in _options.TABLE.items():
        assert f"\n  {name}: {' '.join(option['doc'].split())[:40]}" in doc
    assert doc.index("\n  world: ") < doc.index("\n  mesh: ") < doc.index("\n  profile: ") < doc.index("\nReturns:")
    assert max(map(len, _options.documentation(_options.TABLE).splitlines())) <= 114


def test_the_page_of_options_is_current() -> None:
    spec = importlib.util.spec_from_file_location("options_document", ROOT / "tools" / "options_document.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PATH.read_text() == module.document(), "docs/options.md is not current: run `make docs`"
    assert "### `check_every: int = 512`" in module.document()


def test_an_unknown_option_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(
        TypeError, match=r"compile\(\) has no option 'bucket_byte'; is bucket_bytes meant\? It has: graph"
    ):
        ls.compile(step(), bucket_byte=1)
    with pytest.raises(TypeError, match=r"Strategy\(\) has no option 'wires'; is wire meant\?"):
        ls.Strategy(wires="bf16")
    with pytest.raises(TypeError, match=r"Strategy\(\) has no option 'threads'"):
        ls.Strategy(threads=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimize": "no"}, "compile: optimize is 'no', expected True or False"),
        ({"tf32": None}, "compile: tf32 is None, expected True or False"),
        ({"threads": 0}, "compile: threads is 0, expected at least 1"),
        ({"threads": 4096}, "compile: threads is 4096, expected at least 1 and at most 1024"),
        ({"check_every": -1}, "compile: check_every is -1, expected at least 0"),
        ({"bucket_bytes": 1.5}, "compile: bucket_bytes is 1.5, expected a whole number"),
        ({"virtual_ranks": 0}, "compile: virtual_ranks is 0, expected at least 1"),
        ({"virtual_ranks": 6}, "compile: virtual_ranks=6 is not a power of two"),
        ({"memory_limit": 0}, "compile: memory_limit is 0, expected at least 1"),
        ({"isa": 5}, "compile: isa is 5, expected text"),
        ({"wire": "f16"}, 'compile: wire is \'f16\', expected None or "bf16" or "int8"'),
        ({"mesh": {"data": 0}}, "compile: mesh axis data has size 0, expected at least 1"),
        ({"buckets": "a report"}, "compile: buckets is 'a report', expected a report() of an executable"),
    ],
)
def test_a_value_that_an_option_cannot_have(options: dict[str, Any], message: str) -> None:
    assert error_of(**options).startswith(message)


def test_a_rank_with_an_unknown_option_is_named_to_the_others() -> None:
    def body(world: ls.Communicator) -> None:
        ls.compile(step(), world=world, **({"wires": "bf16"} if world.rank == 1 else {}))

    found = run_in_threads(2, body)
    assert isinstance(found[1], TypeError)
    assert "rank 1" in str(found[0]) and "compile() has no option 'wires'; is wire meant?" in str(found[0])


# --- A strategy

STRATEGIES: dict[str, dict[str, Any]] = {
    "": {"wire": None, "optimize": True, "shard_optimizer": False, "strategy": "all_reduce", "asynchronous": False},
    "mesh={data=2,model=2},split={fc1.weight={model=0}},wire=bf16": {
        "mesh": {"data": 2, "model": 2},
        "split": {"fc1.weight": {"model": 0}},
        "wire": "bf16",
    },
    'split={a={},"b,c=d"={data=0,model=1}}': {
        "placements": {"a": ls.replicated(), "b,c=d": ls.split(0, "data") & ls.split(1, "model")}
    },
    "split={w={model=0}}": {
        "split": {"w": {"model": 0}},
        "placements": {"w": ls.replicated()},
    },  # the first entry counts
    "shard_optimizer=true,shared_weights=true": {"shared_weights": True},
    "strategy=parameter_server,asynchronous=true,max_staleness=0,bigarray_bound=10": {
        "strategy": "parameter_server",
        "asynchronous": True,
        "max_staleness": 0,
        "bigarray_bound": 10,
    },
    "bucket_bytes=64,factors=true,optimize=false,replicated=true,tf32=true": {
        "bucket_bytes": 64,
        "factors": True,
        "optimize": False,
        "replicated": True,
        "tf32": True,
    },
    "virtual_ranks=8,bucket_bytes=64": {"virtual_ranks": 8, "bucket_bytes": 64},
    "factors=false": {"factors": False},
    "factors=0.5": {"factors": 0.5},
    "factors=12345678.25": {"factors": 12345678.25},
}


@pytest.mark.parametrize("text", STRATEGIES)
def test_a_strategy_prints_parses_and_compares(text: str) -> None:
    strategy = ls.Strategy(**STRATEGIES[text])
    assert str(strategy) == text
    assert repr(strategy) == f"Strategy.parse({text!r})"
    again = ls.Strategy.parse(text)
    assert again == strategy and hash(again) == hash(strategy)
    assert ls.Strategy(**strategy.options) == strategy
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert (strategy == ls.Strategy(bucket_bytes=7)) is False


def test_the_order_and_spaces_of_a_text_do_not_count() -> None:
    text = " wire = bf16 , asynchronous=true, strategy=parameter_server, mesh={ data=2 }"
    assert str(ls.Strategy.parse(text)) == "mesh={data=2},strategy=parameter_server,asynchronous=true,wire=bf16"
    assert ls.Strategy.parse("placements={w={model=0}}") == ls.Strategy.parse("split={w={model=0}}")
    assert ls.Strategy.parse("optimize=true,wire=bf16").options == {"wire": "bf16"}


def test_a_strategy_is_immutable() -> None:
    with pytest.raises(AttributeError):
        ls.Strategy()._text = "wire=bf16"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wires=bf16", "strategy: there is no option 'wires'; is wire meant? There are asynchronous, bigarray_bound"),
        ("wire=f16", "strategy: wire is 'f16', expected bf16 or int8"),
        ("wire", "strategy: 'wire' is not of the form name=value"),
        ("wire=bf16,wire=int8", "strategy: 'wire' is given twice"),
        ("mesh={data=2", "strategy: 'mesh={data=2' has no closing brace"),
        ("mesh={data=two}", "strategy: mesh: data is 'two', expected a whole number"),
        ("mesh=2", "strategy: mesh is '2', expected names and values in braces"),
        ("split={w={model=x}}", "strategy: split: w: model is 'x', expected a whole number"),
        ("optimize=True", "strategy: optimize is 'True', expected true or false"),
        ("bucket_bytes=0", "strategy: bucket_bytes is 0, expected at least 1"),
        ("factors=-1", "strategy: factors is -1, expected true, false, or operations per byte, more than 0"),
        ("threads=2", "strategy: threads concerns one rank and its machine, and is not part of a strategy"),
        ("max_staleness=1", 'strategy: max_staleness requires strategy="parameter_server"'),
        ("strategy=parameter_server,max_staleness=1", "strategy: max_staleness requires asynchronous=True"),
        ("strategy=servers", "strategy: strategy is 'servers', expected all_reduce or parameter_server"),
        ("buckets={costs={data={16=20,8=5}}}", "strategy: buckets: costs of data has 8 bytes after 16"),
        ("buckets={gradients={g={done=1}}}", "strategy: buckets: g: there is no option 'done'"),
    ],
)
def test_what_is_wrong_in_a_text_is_named(text: str, message: str) -> None:
    with pytest.raises(ls.Error) as raised:
        ls.Strategy.parse(text)
    assert str(raised.value).startswith(message)
    if "=" in text:
        assert error_of(strategy=text) == str(raised.value)


def test_a_strategy_of_a_plan_has_its_mesh() -> None:
    plan = ls.plan(step(), {"data": 1, "model": 2})
    strategy = ls.Strategy(placements=plan)
    assert strategy.options["mesh"] == {"data": 1, "model": 2}


def test_a_report_is_for_compile() -> None:
    exe = ls.compile(step(), threads=1)
    exe(x=np.ones((8, 16), np.float32), label=np.zeros(8, np.int64))
    report = exe.report()
    with pytest.raises(
        ls.Error, match="Strategy: buckets cannot be a report, because ranks must measure with it: pass it to compile"
    ):
        ls.Strategy(buckets=report)


# --- A strategy in compile


def learn(world: ls.Communicator, **options: Any) -> tuple[list[float], str]:
    random = np.random.default_rng(0)
    weights = {"w1": random.standard_normal((16, 16)) / 4, "w2": random.standard_normal((16, 4)) / 4}
    exe = ls.compile(step(), world=world, threads=1, **options)
    for name, value in weights.items():
        exe.state[name] = value.astype(np.float32)
    x, label = random.standard_normal((8, 16)).astype(np.float32), random.integers(0, 4, 8)
    share = slice(4 * world.rank, 4 * world.rank + 4)
    return [float(exe(x=x[share], label=label[share])["loss"]) for _ in range(3)], str(exe.strategy)


@pytest.mark.parametrize(
    "options",
    [{"wire": "bf16", "bucket_bytes": 64}, {"split": {"w1": {"data": 0}}}, {"shard_optimizer": True}],
)
def test_a_strategy_is_as_its_options(options: dict[str, Any]) -> None:
    strategy = ls.Strategy(**options)
    expected = run_in_threads(2, lambda world: learn(world, **options))
    assert expected[0][1] == f"mesh={{data=2}},{strategy}"
    assert expected == run_in_threads(2, lambda world: learn(world, strategy=strategy))
    assert expected == run_in_threads(2, lambda world: learn(world, strategy=str(strategy)))
    assert expected == run_in_threads(2, lambda world: learn(world, strategy=expected[0][1]))
    assert expected == run_in_threads(2, lambda world: learn(world, strategy=str(strategy), tf32=False))


def test_an_executable_says_what_it_was_compiled_with() -> None:
    assert ls.compile(step()).strategy == ls.Strategy(mesh={"data": 1})
    assert ls.compile(step(), optimize=False, memory_limit=1 << 24).strategy.options == {
        "mesh": {"data": 1},
        "optimize": False,
    }


def test_a_pipeline_has_an_axis_for_its_batches() -> None:
    for found in run_in_threads(2, lambda world: ls.compile(step(), world=world, threads=1, mesh={"stage": 2})):
        assert str(found.strategy) == "mesh={data=1,stage=2}"


def test_a_strategy_has_the_buckets_that_a_report_gave() -> None:
    def body(world: ls.Communicator) -> tuple[str, list[str], list[str]]:
        first = ls.compile(step(), world=world, threads=1)
        first(x=np.ones((4, 16), np.float32), label=np.zeros(4, np.int64))
        measured = ls.compile(step(), world=world, threads=1, buckets=first.report())
        again = ls.compile(step(), world=world, threads=1, strategy=measured.strategy)
        assert again.strategy == measured.strategy
        return str(measured.strategy), measured.steps, again.steps

    found = run_in_threads(2, body)
    assert found[0] == found[1]
    text, steps, same_steps = found[0]
    assert steps == same_steps
    assert text in ("mesh={data=2}",) or text.startswith("mesh={data=2},buckets={gradients={")


def test_keywords_beside_a_strategy() -> None:
    text = "wire=bf16,split={w1={data=0}}"
    assert error_of(strategy=text, wire="int8") == (
        "compile: wire='int8' is given, and strategy='split={w1={data=0}},wire=bf16' also sets wire: give it once"
    )
    message = error_of(strategy=text, placements={"w2": ls.replicated()})
    assert message.startswith("compile: placements={") and message.endswith("also sets split: give it once")
    assert 'expected "all_reduce" or "parameter_server", or options such as' in error_of(strategy="ring")
    assert error_of(strategy=5).startswith("compile: strategy is 5, expected")
    exe = ls.compile(step(), strategy="bucket_bytes=64", wire="bf16", threads=1)
    assert str(exe.strategy) == "mesh={data=1},bucket_bytes=64,wire=bf16"
    exe = ls.compile(step(), strategy="wire=bf16", wire=None, threads=1)  # None is no second value
    assert str(exe.strategy) == "mesh={data=1},wire=bf16"
    assert ls.compile(step(), strategy=str(ls.Strategy()), threads=1).strategy == ls.Strategy(mesh={"data": 1})


def test_ranks_compare_their_strategies() -> None:
    def body(world: ls.Communicator) -> None:
        ls.compile(step(), world=world, **({"strategy": "wire=bf16"} if world.rank == 1 else {}))

    for message in errors_of(2, body):
        assert "different versions of the options of compile" in message
        assert "\n  on rank 0: mesh={data=2}\n  on rank 1: mesh={data=2},wire=bf16\n" in message


def test_a_trainer_takes_a_strategy() -> None:
    x, label = np.ones((8, 16), np.float32), np.zeros(8, np.int64)
    trainer = ls.Trainer(ls.parse(MODEL), ls.loss.softmax_cross_entropy("logits", "label"), strategy="bucket_bytes=64")
    trainer.fit((x, label), progress=False)
    assert str(trainer.executable.strategy) == "mesh={data=1},bucket_bytes=64"
    with pytest.raises(ls.Error, match="uneven=True does not go with strategy=.parameter_server."):
        loss = ls.loss.softmax_cross_entropy("logits", "label")
        ls.Trainer(ls.parse(MODEL), loss, uneven=True, strategy=ls.Strategy(strategy="parameter_server"))
