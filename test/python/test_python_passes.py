"""Passes written in Python: what they read and change, their places, and what is wrong with them."""

from __future__ import annotations

import runpy
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep as ls
from lockstep.graph import Builder, Node, Pass
from ranks import run_in_threads
from test_errors import raises
from test_graph_builder import network, part_of, random

BATCH = {"x": random(4, 6), "label": np.array([0, 1, 2, 0])}
Change = Callable[[Builder], None]


def training(optimizer: Any = None) -> ls.Graph:
    loss = ls.loss.softmax_cross_entropy("logits", "label")
    return ls.train_step(network(), loss, ls.optim.SGD(0.5) if optimizer is None else optimizer)


def trained(passes: Sequence[Pass], ranks: int = 2, **options: Any) -> list[tuple[list[float], dict[str, Any]]]:
    """The losses of four steps and the states after them, by rank."""

    def body(world: ls.Communicator) -> tuple[list[float], dict[str, Any]]:
        exe = ls.compile(training(), world=world, passes=passes, **options)
        batch = part_of(BATCH, world) if options.get("mesh", {"data": ranks}).get("data") == ranks else BATCH
        losses = [float(exe(**batch)["loss"]) for _ in range(4)]
        return losses, {name: np.asarray(value) for name, value in exe.state.items()}

    return checked(run_in_threads(ranks, body))


def checked(results: list[Any]) -> list[Any]:
    for each in results:
        if isinstance(each, BaseException):
            raise each
    return results


def assert_same_bits(one: list[Any], other: list[Any]) -> None:
    for (losses, states), (losses_of_other, states_of_other) in zip(one, other, strict=True):
        assert losses == losses_of_other and list(states) == list(states_of_other)
        for name, value in states.items():
            np.testing.assert_array_equal(value, states_of_other[name])


def sum_in_bf16(node: Node) -> None:
    low = ls.graph.convert(node.operands[0], dtype="bf16", rounds_parts=True)
    node.replace(ls.graph.all_reduce(low, axis="data", kind="sum").to("f32"))


@ls.pass_(after="distribute", version="1")
def bf16_for_matrices(g: Builder) -> None:
    for node in g.nodes("all_reduce", axis="data", kind="sum"):
        if node.operands[0].ndim == 2:
            with g.before(node):
                sum_in_bf16(node)


@ls.pass_(before="localize")
def idle(g: Builder) -> None:
    g.nodes()


@ls.pass_(after="distribute")
def products_anew(g: Builder) -> None:
    """Computes each product by a new node of the same op, placed by its rule."""
    for node in g.nodes("matmul"):
        with g.before(node):
            node.replace(ls.graph.matmul(*node.operands, **node.attributes))
    g.remove_unused()


@ls.pass_(after="distribute")
def forgets_a_factor(g: Builder) -> None:
    for node in g.nodes("all_reduce", kind="sum"):
        with g.before(node):
            node.replace(ls.graph.all_reduce(node.operands[0] * 0.5, axis="data", kind="sum"))


@ls.pass_(after="distribute", keeps="nothing")
def halves_gradients(g: Builder) -> None:
    for node in g.nodes("all_reduce", kind="sum"):
        with g.before(node):
            node.replace(ls.graph.all_reduce(node.operands[0] * 0.5, axis="data", kind="sum"))


# What a pass does


def test_a_pass_changes_what_ranks_exchange() -> None:
    """The program is that which the same change of the distributed program makes, and nearly computes what f32 does."""
    by_hand = Builder.of(ls.distribute(training(), {"data": 2}))
    bf16_for_matrices(by_hand)
    by_hand.remove_unused()
    graph = by_hand.finish()

    def body(world: ls.Communicator) -> tuple[list[float], str, tuple[str, ...]]:
        exe = ls.compile(graph if world is None else training(), world=world, passes=[bf16_for_matrices])
        return [float(exe(**part_of(BATCH, world))["loss"]) for _ in range(4)], str(exe.graph), exe.passes

    def body_by_hand(world: ls.Communicator) -> list[float]:
        exe = ls.compile(graph, world=world)
        return [float(exe(**part_of(BATCH, world))["loss"]) for _ in range(4)]

    results = checked(run_in_threads(2, body))
    assert [losses for losses, _, _ in results] == checked(run_in_threads(2, body_by_hand))
    exact = trained([])
    np.testing.assert_allclose(results[0][0], exact[0][0], rtol=2e-2)
    assert results[0][0] != exact[0][0]
    _, text, names = results[0]
    assert "bf16" in text
    assert names[names.index("distribute") + 1] == "bf16_for_matrices"


OPTIONS: list[dict[str, Any]] = [
    {}, {"optimize": False}, {"shard_optimizer": True}, {"shared_weights": True}, {"wire": "int8"}, {"virtual_ranks": 4},
    {"mesh": {"stage": 2}}, {"mesh": {"model": 2, "data": 1}, "split": {"w1": {"model": 0}}}, {"factors": True},
    {"check_numerics": True}, {"verify_hardware": 2}, {"verify": True}, {"bucket_bytes": 64}, {"replicated": True},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=[",".join(each) or "none" for each in OPTIONS])
def test_a_pass_that_computes_the_same_keeps_all_bits(options: dict[str, Any]) -> None:
    assert_same_bits(trained([products_anew, idle], **options), trained([], **options))


def test_a_collective_that_was_replaced_is_not_sent() -> None:
    """Where no pass removes unused nodes before collectives are merged."""

    @ls.pass_(before="merge-collectives")
    def anew(g: Builder) -> None:
        for node in g.nodes("all_reduce"):
            with g.before(node):
                node.replace(ls.graph.all_reduce(node.operands[0], axis="data", kind="sum"))

    def body(world: ls.Communicator) -> list[Any]:
        exes = [ls.compile(training(), world=world, passes=passes) for passes in ([anew], [])]
        return [exe.collectives for exe in exes]

    for changed, own in checked(run_in_threads(2, body)):
        assert changed == own and changed


def test_one_rank() -> None:
    assert_same_bits(trained([products_anew, bf16_for_matrices], ranks=1), trained([], ranks=1))


def test_passes_run_at_their_places_in_order() -> None:
    seen: list[str] = []

    def noting(name: str, **place: str) -> Pass:
        def note(g: Builder) -> None:
            seen.append(f"{name}: {len(g.nodes('all_reduce'))}")

        note.__name__ = name
        return ls.pass_(**place)(note)

    passes = [noting("third", after="distribute"), noting("first", before="split-inputs"),
              noting("fourth", after="distribute"), noting("second", before="distribute")]  # fmt: skip

    def body(world: ls.Communicator) -> tuple[str, ...]:
        return ls.compile(training(), world=world, mesh={"data": 1}, passes=passes).passes

    (names,) = checked(run_in_threads(1, body))
    assert [each.split(":")[0] for each in seen] == ["first", "second", "third", "fourth"]
    at = names.index("distribute")
    assert names[0] == "first" and names[at - 1 : at + 3] == ("second", "distribute", "third", "fourth")
    seen.clear()
    ls.verify(training(), 2, passes=passes)
    assert seen == ["first: 0", "second: 0", "third: 3", "fourth: 3"]  # of the loss and two weights


def test_a_pass_adds_states_results_and_settings() -> None:
    """The momentum of a weight, as another result; its factor is a setting."""

    @ls.pass_(after="check-shares")
    def track(g: Builder) -> None:
        with g.before(g.nodes("sgd")[0]):
            average = g.state("average", g.value("w1").shape)
            factor = g.setting("factor", 0.5, least=0, most=1)
            following = average + factor.to("f32") * (g.value("w1") - average)
        g.next_state("average", following)
        g.result("average", following)

    exe = ls.compile(training(), passes=[track])
    weight = np.asarray(exe.state["w1"])
    np.testing.assert_array_equal(exe(**BATCH)["average"], 0.5 * weight)
    exe.settings["factor"] = 1
    later = np.asarray(exe.state["w1"])
    exe(**BATCH)
    np.testing.assert_allclose(exe.state["average"], later, rtol=1e-6)
    assert ls.verify(training(), passes=[track]) is not None


def test_a_trainer_and_find_nan_run_passes() -> None:
    """The sum of a gradient becomes infinite on purpose: the node is the one that the pass wrote."""

    @ls.pass_(after="merge-collectives", keeps="nothing")
    def overflows(g: Builder) -> None:
        product = g.nodes("matmul")[0]
        with g.before(g.nodes("relu")[0]):
            huge = product.results[0] * 1e38 * 1e38
        g.replace(product.results[0], huge)

    trainer = ls.Trainer(network(), ls.loss.softmax_cross_entropy("logits", "label"), "sgd", passes=[overflows])
    exe = trainer.executable
    assert "overflows" in exe.passes
    report = ls.find_nan(exe, **BATCH)
    assert "test_python_passes.py" in str(report)


def test_the_evaluation_of_a_trainer_has_no_passes() -> None:
    results: list[list[str]] = []

    @ls.pass_(after="distribute")
    def note(g: Builder) -> None:
        results.append([node.op for node in g.nodes("sgd")])

    trainer = ls.Trainer(network(), ls.loss.softmax_cross_entropy("logits", "label"), "sgd", passes=[note])
    trainer.evaluate((BATCH["x"], BATCH["label"]))
    assert results == [["sgd", "sgd"]]


def test_a_dump_has_the_graph_after_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DUMP", str(tmp_path))
    ls.compile(training(), passes=[products_anew, idle])
    names = [file.name[4:] for file in sorted(tmp_path.glob("*/*.ir"))]
    assert "products_anew.ir" in names and "idle.ir" not in names  # only passes that changed the graph


# What a pass selects


def placed_graph() -> Builder:
    return Builder.of(ls.distribute(training(), {"data": 2}))


def test_nodes_are_chosen_by_op_attribute_placement_and_source() -> None:
    g = placed_graph()
    line = g.nodes("matmul")[0].source
    assert line.startswith("python:test_graph_builder.py:")

    def chosen(*args: Any, **kwargs: Any) -> list[str]:
        return [node.results[0].name for node in g.nodes(*args, **kwargs)]

    def expected(is_chosen: Callable[[Node], bool]) -> list[str]:
        found = [node.results[0].name for node in g.nodes() if is_chosen(node)]
        assert 0 < len(found) < len(g.nodes())
        return found

    assert chosen(source=line) == expected(lambda node: node.source == line)
    assert chosen(source="python:test_graph*") == expected(lambda node: node.source.startswith("python:test_graph"))
    placements = expected(lambda node: node.results[0].placements == {"data": "partial(sum)"})
    assert chosen(placement={"data": "partial(*)"}) == placements
    assert chosen(placement={"data": "replicated"}) == expected(lambda node: not node.results[0].placements)
    assert chosen(axis="data") == expected(lambda node: node.attributes.get("axis") == "data")
    transposed = expected(lambda node: node.op == "matmul" and node.attributes["transpose_a"])
    assert chosen("matmul", transpose_a=True) == transposed
    assert chosen("matmul", transpose_a=True, placement={"data": "split(0)"}) == []
    assert chosen(learning_rate=0.5) == chosen(learning_rate=g.value("x")) == []  # an operand, not a number


def test_lists_and_arrays_are_compared_as_attributes() -> None:
    g = Builder("attributes")
    x = g.input("x", "f32", (2, 3))
    moved = x.T + g.constant(np.arange(6.0).reshape(3, 2), "f32")
    assert [node.results[0].name for node in g.nodes(permutation=(1, 0))] == [g.nodes("transpose")[0].results[0].name]
    assert len(g.nodes(permutation=np.array([1, 0]))) == 1 and g.nodes(permutation=[0, 1]) == []
    assert len(g.nodes("constant", value=np.arange(6.0, dtype=np.float32).reshape(3, 2))) == 1
    assert g.nodes("constant", value=0) == [] and moved.shape == (3, 2)


def test_names_that_no_node_can_have_are_errors() -> None:
    g = placed_graph()
    with raises("nodes: there is no op 'all_reduced'; is all_reduce meant?"):
        g.nodes("all_reduced")
    with raises("nodes: all_reduce has no attribute 'axes'; is axis meant?"):
        g.nodes("all_reduce", axes="data")
    with raises("nodes: no op has an attribute 'axes'; is axis meant?"):
        g.nodes(axes="data")


def test_what_replaces_a_value_takes_over_its_name() -> None:
    """Later passes know a gradient by its name: they send it in int8."""

    def body(world: ls.Communicator) -> list[str]:
        exe = ls.compile(training(), world=world, passes=[products_anew], wire="int8")
        return sorted(each for each in exe.state if "residual" in each)

    assert checked(run_in_threads(2, body)) == [["w1/residual/data", "w2/residual/data"]] * 2
    g = placed_graph()
    node = next(each for each in g.nodes("all_reduce") if each.results[0].name == "grad/w1.1")
    gradient, other = node.results[0], g.value("w1")
    name = gradient.name
    with g.before(node):
        by = node.operands[0] * 1
        node.replace(by)
    assert by.name == name == g.value(name).name != gradient.name and g.value(gradient.name).shape == gradient.shape
    g.replace(by, other)
    assert other.name == "w1" and by.name == name


def test_all_results_of_a_node_are_replaced() -> None:
    g = Builder("best")
    x = g.input("x", "f32", (3, 4))
    values, places = ls.graph.top_k(x, dim=1, k=2)
    g.result("values", values)
    g.result("places", places)
    (node,) = g.nodes("top_k")
    with raises("replace: 1 values for <lockstep.graph.Node top_k", "which has 2 results"):
        node.replace(values)
    other = ls.graph.top_k(-x, dim=1, k=2)
    node.replace(-other[0], other[1])
    given = random(3, 4)
    (results,) = ls.interpret(g.finish(), [{"x": given}])
    np.testing.assert_array_equal(results["values"], np.sort(given, axis=1)[:, :2])
    np.testing.assert_array_equal(results["places"], np.argsort(given, axis=1)[:, :2])


# What is wrong


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_an_exception_names_the_pass_and_the_line() -> None:
    @ls.pass_(after="distribute")
    def divides(g: Builder) -> None:
        assert g.nodes()
        divide(0)

    def divide(number: int) -> float:
        return 1 / number

    line = line_of("return 1 / number")
    with raises(f"pass divides: ZeroDivisionError: division by zero, at test_python_passes.py:{line}") as caught:
        ls.compile(training(), passes=[idle, divides])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with raises(f"pass divides: ZeroDivisionError: division by zero, at test_python_passes.py:{line}") as caught:
        ls.verify(training(), passes=[divides])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_an_op_names_the_line_once() -> None:
    @ls.pass_(after="distribute")
    def multiplies(g: Builder) -> None:
        g.value("x") @ g.value("x")

    with raises("pass multiplies: matmul (C", "operands: %x: f32[4,6], %x: f32[4,6]") as caught:
        ls.compile(training(), passes=[multiplies])
    line = line_of('g.value("x") @')
    assert str(caught.value).count(f"test_python_passes.py:{line}") == 1
    assert isinstance(caught.value.__cause__, ls.Error)


def test_a_graph_that_is_wrong_names_the_pass_and_the_node() -> None:
    @ls.pass_(after="distribute")
    def at_the_end(g: Builder) -> None:
        node = g.nodes("relu")[0]
        node.replace(ls.graph.tanh(node.operands[0]))

    @ls.pass_(after="distribute")
    def not_summed(g: Builder) -> None:
        node = next(each for each in g.nodes("all_reduce") if each.results[0].name == "grad/w1.1")
        node.replace(node.operands[0])

    with raises(
        "pass at_the_end: matmul %3 (at python:test_graph_builder.py:",
        "before it is defined",
        "write it in `with g.before(node)`",
    ):
        ls.compile(training(), passes=[at_the_end])
    results = run_in_threads(2, lambda world: ls.compile(training(), world=world, passes=[not_summed]))
    for each in results:
        assert isinstance(each, ls.Error)
        assert "pass not_summed: " in str(each) and "w1" in str(each)


def test_a_function_that_ends_the_graph_or_returns_one() -> None:
    @ls.pass_(after="distribute")
    def finishes(g: Builder) -> None:
        g.finish()

    @ls.pass_(after="distribute")
    def returns(g: Builder) -> Any:
        return g

    @ls.pass_(after="distribute")
    def adds(g: Builder) -> None:
        g.state("more", (2,), init=1.0)

    with raises("pass finishes: it calls finish() of the graph, which compile does"):
        ls.compile(training(), passes=[finishes])
    with raises(
        "pass returns: it returns <lockstep.graph.Builder @network", "a pass changes the graph that it is given"
    ):
        ls.compile(training(), passes=[returns])
    with raises("pass adds: it gives the state more an initial value, but states that passes add start as zeros"):
        ls.compile(training(), passes=[adds])


def test_an_interrupt_is_raised_as_it_is() -> None:
    @ls.pass_(after="distribute")
    def interrupted(g: Builder) -> None:
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            ls.compile(training(), passes=[interrupted])
    finally:
        signal.signal(signal.SIGINT, before)
    ls.compile(training())


def test_a_place_that_does_not_exist() -> None:
    def change(g: Builder) -> None:
        g.nodes()

    with raises('compile: pass change: after="distributed" is no pass of the pipeline; the places are split-inputs, '):
        ls.compile(training(), passes=[ls.pass_(after="distributed")(change)])
    with raises('pass change: before="simplify" is in the pipeline several times; the places are split-inputs, '):
        ls.verify(training(), passes=[ls.pass_(before="simplify")(change)])
    with raises('pass change: after="localize": after it graphs are local'):
        ls.compile(training(), passes=[ls.pass_(after="localize")(change)])
    twice = ls.pass_(before="localize")(change)
    with raises("pass change: another pass has this name"):
        ls.compile(training(), passes=[twice, twice])


def test_a_decorator_that_is_wrong() -> None:
    with raises("pass_: before is None and after is None, expected one of them"):
        ls.pass_()
    with raises("pass_: before is 'a' and after is 'b', expected one of them"):
        ls.pass_(before="a", after="b")
    with raises("the function is <lambda>, but a pass has the name of its function: write it by def"):
        ls.pass_(after="distribute")(lambda g: None)
    with raises('pass_: keeps is \'all\', expected "meaning" or "nothing"'):
        ls.pass_(after="distribute", keeps="all")


# What ranks compare


def made_of(text: str, folder: Path, name: str) -> Pass:
    """The pass `change` of a file with this text."""
    file = folder / f"{name}.py"
    file.write_text(f"import lockstep as ls\n\n{text}")
    return runpy.run_path(str(file))["change"]


CHANGE = '@ls.pass_(after="distribute", version="1")\ndef change(g):\n    g.nodes("relu")\n'
OTHERS = {
    "source": ('"relu"', '"tanh"'),
    "version": ('version="1"', 'version="2"'),
    "place": ("after", "before"),
    "keeps": ('version="1"', 'version="1", keeps="nothing"'),
    "name": ("change", "other"),
}


@pytest.mark.parametrize("differs", [*OTHERS, "missing"])
def test_passes_that_differ_between_ranks(differs: str, tmp_path: Path) -> None:
    one = made_of(CHANGE, tmp_path, "one")
    if differs == "missing":
        others = []
    elif differs == "name":
        text = CHANGE.replace("change", "other") + "change = other\n"
        others = [made_of(text, tmp_path, "two")]
    else:
        others = [made_of(CHANGE.replace(*OTHERS[differs]), tmp_path, "two")]

    def body(world: ls.Communicator) -> ls.Executable:
        return ls.compile(training(), world=world, passes=others if world.rank == 1 else [one])

    for each in run_in_threads(2, body):
        assert isinstance(each, ls.Error)
        message = str(each)
        assert "different versions of the options of compile" in message
        assert "on rank 0: pass change after distribute: version 1, source " in message
        on_other = {"missing": "(nothing)", "place": "pass change before", "name": "pass other after"}
        assert f"on rank 1: {on_other.get(differs, 'pass change after')}" in message


def test_the_same_text_in_other_files_is_the_same_pass(tmp_path: Path) -> None:
    """Ranks on other hosts may have the program in another folder, and indented."""
    indented = "if True:\n" + "".join(f"    {line}\n" for line in CHANGE.splitlines())
    passes = [made_of(CHANGE, tmp_path, "one"), made_of(indented, tmp_path, "two")]
    checked(run_in_threads(2, lambda world: ls.compile(training(), world=world, passes=[passes[world.rank]])))


def test_a_pass_without_source_needs_a_version() -> None:
    namespace: dict[str, Any] = {"ls": ls}
    exec("def change(g):\n    g.nodes()", namespace)  # noqa: S102
    with raises('pass change: ranks cannot compare its source, which cannot be read: give it a version, such as "1"'):
        ls.pass_(after="distribute")(namespace["change"])
    checked(run_in_threads(2, lambda world: ls.compile(
        training(), world=world, passes=[ls.pass_(after="distribute", version="1")(namespace["change"])]
    )))  # fmt: skip


def test_a_pass_that_fails_on_one_rank_is_an_error_of_all() -> None:
    """The world can be used afterwards."""

    def body(world: ls.Communicator) -> tuple[str, float]:
        @ls.pass_(after="distribute")
        def fails_on_one(g: Builder) -> None:
            if world.rank == 1:
                raise ValueError(f"no luck with {g.name}")

        with pytest.raises(ls.Error) as caught:
            ls.compile(training(), world=world, passes=[fails_on_one])
        is_cause = isinstance(caught.value.__cause__, ValueError)
        assert is_cause == (world.rank == 1)
        exe = ls.compile(training(), world=world)
        return str(caught.value), float(exe(**part_of(BATCH, world))["loss"])

    (first, loss), (second, _) = checked(run_in_threads(2, body))
    assert (
        first.startswith("rank 1 on host") and "gave up: pass fails_on_one: ValueError: no luck with network" in first
    )
    assert second.startswith("pass fails_on_one: ValueError: no luck with network")
    assert np.isfinite(loss)


# What verification finds


def test_a_pass_that_changes_the_meaning_is_named() -> None:
    with raises("pass forgets_a_factor: ", "on all 2 ranks differs from that of one rank"):
        ls.verify(training(), 2, passes=[idle, forgets_a_factor])
    for each in run_in_threads(
        2, lambda world: ls.compile(training(), world=world, passes=[forgets_a_factor], verify=True)
    ):
        assert isinstance(each, ls.Error)
        assert str(each).startswith(("pass forgets_a_factor: ", "rank"))
    trained([forgets_a_factor])  # nothing compares without `verify`


def test_rounding_is_no_change_of_the_meaning() -> None:
    assert ls.verify(training(), 4, passes=[bf16_for_matrices]) == ls.verify(training(), 4)


def test_a_pass_may_say_that_it_changes_the_meaning() -> None:
    """Later passes are then compared with what it made."""

    @ls.pass_(after="merge-collectives")
    def loses_more(g: Builder) -> None:
        for node in g.nodes("sgd"):
            with g.before(node):
                weight, gradient = node.operands[:2]
                node.replace(ls.graph.sgd(weight, gradient * 2, **node.attributes))

    ls.verify(training(), 2, passes=[halves_gradients])
    trained([halves_gradients], verify=True)
    with raises("pass loses_more: ", "differs from that of "):
        ls.verify(training(), 2, passes=[halves_gradients, loses_more])


def test_the_gradients_are_those_of_the_program_before_passes() -> None:
    assert ls.verify(training(ls.optim.AdamW(0.1)), 2, passes=[halves_gradients]) == ls.verify(
        training(ls.optim.AdamW(0.1)), 2
    )


def test_a_pass_sees_the_smaller_program_of_a_verification() -> None:
    g = Builder("large")
    x = g.input("x", "f32", (512, 256), split=0)
    g.result("y", ls.graph.relu(x @ g.state("w", (256, 256))))
    model, shapes = g.finish(), []

    @ls.pass_(after="distribute")
    def notes(g: Builder) -> None:
        shapes.append(g.value("x").shape)

    assert any("smaller dimensions" in each for each in ls.verify(model, 2, passes=[notes]))
    assert shapes and all(rows < 512 for rows, _ in shapes)
    ls.verify(model, 2, passes=[notes], shrink=False)
    assert shapes[-1] == (512, 256)
