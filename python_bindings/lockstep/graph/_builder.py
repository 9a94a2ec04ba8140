"""The graph under construction: its inputs, states, settings and results."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from .. import _lockstep
from .._base import checks, names
from .._base.errors import Error
from .._lockstep import Graph
from ._values import Value, as_array, constant, dtype_named, extents, insert

Initializer: TypeAlias = "Callable[[tuple[int, ...], np.random.Generator], np.ndarray]"  # of shape and numbers


class Node:
    """A node of a graph: an op with its operands and attributes, and the values that it computes."""

    op: str
    results: tuple[Value, ...]
    source: str  # the origin in the model, such as "onnx:/fc1/MatMul" or "python:fc1/model.py:12"; may be empty

    def __init__(self, op: str, results: tuple[Value, ...], attributes: dict[str, Any], source: str) -> None:
        self.op, self.results, self.source, self._attributes = op, results, source, attributes

    def __repr__(self) -> str:
        return f"<lockstep.graph.Node {self.op} of {self.results[0]!r}>"

    @property
    def operands(self) -> tuple[Value, ...]:
        """The operands as they are now, without those that are numbers of attributes."""
        return self._operands()[: -self._count or None]

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes by name. A number that is an operand, such as a setting, is its value."""
        values = self._operands()
        return {name: values[each[0]] if isinstance(each, tuple) else each for name, each in self._attributes.items()}

    def replace(self, *by: Value) -> None:
        """All uses of the results, in their order, become uses of these values, as by `Builder.replace`."""
        if len(by) != len(self.results):
            raise Error(f"replace: {len(by)} values for {self!r}, which has {len(self.results)} results")
        for result, value in zip(self.results, by, strict=True):
            result.graph.replace(result, value)

    def _is_chosen(self, source: str | None, placement: Mapping[str, str], attributes: Mapping[str, Any]) -> bool:
        placements, own = self.results[0].placements, self._attributes
        return (
            (source is None or fnmatchcase(self.source, source))
            and all(fnmatchcase(placements.get(axis, "replicated"), each) for axis, each in placement.items())
            and all(name in own and _are_equal(own[name], each) for name, each in attributes.items())
        )

    @property
    def _count(self) -> int:
        return sum(isinstance(each, tuple) for each in self._attributes.values())

    def _operands(self) -> tuple[Value, ...]:
        graph = self.results[0].graph
        graph._check_open("operands")
        return tuple(Value(graph, each) for each in graph._native.operands(self.results[0]._index))


class Builder:
    """A graph under construction. `input`, `state` and `setting` return values, functions of `lockstep.graph` and
    operators make values of values, and `result` names those that a call returns.

    Args:
      name: of the graph.
      seed: of the initial values of states. Those of a state depend on the seed, its name and its shape only.
      mesh: axes with their sizes, such as {"data": 4}. Collectives are ops of a graph with a mesh. It is then the
        program that `lockstep.distribute` returns: shapes are those of whole values, and each value has a placement.

    Example:
      >>> g = lockstep.graph.Builder("linear")
      >>> x = g.input("x", "f32", (128, 784), split=0)
      >>> w = g.state("weight", (10, 784), init=lockstep.graph.init.kaiming_uniform())
      >>> g.result("logits", x @ w.T)
      >>> model = g.finish()
    """

    def __init__(self, name: str = "main", seed: int = 0, mesh: Mapping[str, int] | None = None) -> None:
        axes = checks.extents("mesh", {} if mesh is None else mesh)
        native = _lockstep._GraphBuilder(checks.text("the name of the graph", name), list(axes.items()))
        self._start(native, name, seed, {})

    def _start(self, native: _lockstep._GraphBuilder, name: str, seed: int, schedules: dict[str, Any]) -> None:
        self._native, self.name, self._schedules = native, name, schedules
        self._seed = checks.integer("seed", seed, low=0)
        self._place: int | None = None  # the value before whose node ops are inserted
        self._scope = ""  # "blocks/0/"

    @classmethod
    def of(cls, graph: Graph, seed: int = 0) -> Builder:
        """Returns a builder of a copy of `graph`, to read and change it: a model, a training step, or the program that
        `lockstep.distribute` returns, with its collectives. `finish` returns the changed graph, with the values of its
        states.

        Args:
          seed: of the initial values of states that are added.

        Example:
          >>> g = lockstep.graph.Builder.of(model)
          >>> for node in g.nodes("relu"):
          ...     with g.before(node):
          ...         g.replace(node.results[0], lockstep.graph.nn.gelu(node.operands[0]))
          >>> g.remove_unused()
          >>> model = g.finish()
        """
        builder = cls.__new__(cls)
        native = _lockstep._GraphBuilder(checks.graph("the graph", graph))
        builder._start(native, graph.name, seed, getattr(graph, "_schedules", {}))
        return builder

    def __repr__(self) -> str:
        return f"<lockstep.graph.Builder @{self.name}{', finished' if self._native.is_finished else ''}>"

    def __str__(self) -> str:
        """The text of the graph so far."""
        self._check_open("str()")
        return str(self._native)

    def input(self, name: str, dtype: Any, shape: Sequence[int], split: int | Mapping[str, int] | None = None) -> Value:
        """Adds an input, which each call passes.

        Args:
          shape: of the whole batch, of which each rank passes its part.
          split: the dimension that the ranks divide among them, usually 0, the batch. With other axes than `data`, the
            dimension by axis: {"model": 1}. None: all ranks have the whole.
        """
        self._check_open("input")
        name = checks.text("the name of an input", name)
        if split is not None and not isinstance(split, Mapping):
            split = {"data": checks.integer(f"input {name}: split", split)}
        splits = checks.extents(f"input {name}: split", {} if split is None else split)
        dims = extents(f"the shape of input {name}", shape, low=0)
        return Value(self, self._native.input(name, dtype_named(f"input {name}", dtype), dims, splits))

    def state(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        init: Initializer | np.ndarray | float | None = None,
        trained: bool = True,
    ) -> Value:
        """Adds a state, which lives as long as the executable: a weight, or a statistic.

        Args:
          name: in a scope, below that: `weight` in the scope `conv1` is the state `conv1.weight`.
          shape, dtype: by default those of the array `init`; otherwise a scalar and f32.
          init: the initial value: an array, a number for all elements, or a function of the shape and a
            numpy.random.Generator, such as those of `lockstep.graph.init`. None: zeros.
          trained: False: `lockstep.train_step` does not train it, as no gradient flows to the returned value. States
            of other dtypes than floats, those with a next value, and the running statistics of nn.batch_norm are not
            trained anyway.
        """
        self._check_open("state")
        name, trained = self._state_name(name), checks.flag("trained", trained)
        array = None if init is None or callable(init) else as_array(f"the initial value of state {name}", init)
        own = array is not None and (array.ndim > 0 or isinstance(init, np.ndarray))
        if array is not None and own:
            shape, dtype = array.shape if shape is None else shape, array.dtype if dtype is None else dtype
        dims = extents(f"the shape of state {name}", () if shape is None else shape, low=0)
        wanted = dtype_named(f"state {name}", "f32" if dtype is None else dtype)
        if callable(init):
            if getattr(init, "__module__", "") == f"{__package__}.init" and "." not in init.__qualname__:
                raise Error(f"the initial value of state {name} is the function {init.__name__}: call it")
            array = as_array(f"the initial value of state {name}", init(tuple(dims), self._random(name)))
        elif array is not None and not own:
            array = np.broadcast_to(array, dims)
        state = Value(self, self._native.state(name, wanted, dims, array, {}))
        return state if trained or not state.is_float else insert("stop_gradient", [state])[0]

    def _of_ranks(self, name: str, dtype: Any, shape: Sequence[int], axis: str, terms: bool) -> Value:
        """Adds an input of which each rank of the axis has a term, whose sum is the whole value, or its own."""
        dims = extents(name, shape, low=0)
        return Value(self, self._native.of_ranks(name, dtype_named(name, dtype), dims, axis, terms))

    def _stacked_state(self, name: str, shape: Sequence[int], dtype: Any, axis: str) -> Value:
        """Adds a state of zeros of which each rank of the axis has a slice along the first dimension."""
        wanted = dtype_named(f"state {name}", "f32" if dtype is None else dtype)
        dims = extents(f"the shape of state {name}", shape, low=0)
        return Value(self, self._native.state(name, wanted, dims, None, {axis: 0}))

    def setting(self, name: str, value: float, least: float = -math.inf, most: float = math.inf) -> Value:
        """Adds a setting, a number f64[] from `least` to `most` that may change between calls: `exe.settings[name]`."""
        self._check_open("setting")
        name = checks.text("the name of a setting", name)
        numbers = [checks.number(f"setting {name}", each) for each in (value, least, most)]
        return Value(self, self._native.setting(name, *numbers))

    def constant(self, value: Any, dtype: Any = None) -> Value:
        """Adds a constant, in the dtype of the number or array unless another is given."""
        self._check_open("constant")
        return constant(
            self, as_array("constant: the value", value), None if dtype is None else dtype_named("constant", dtype)
        )

    def result(self, name: str, value: Value) -> None:
        """Names a value that a call returns. In a graph with a mesh it may be split, but not partial or local."""
        if not checks.text("the name of a result", name):
            raise Error(f"a result of graph @{self.name} has no name")
        self._native.result(name, self._own(f"result {name}", value))

    def next_state(self, name: str, value: Value) -> None:
        """The state has this value, of its type, after a call. In a scope, the name is below that, as for `state`."""
        self._native.next_state(self._state_name(name), self._own(f"next_state {name}", value))

    def value(self, name: str) -> Value:
        """The value of that name in the text of the graph: an input, a state, or a result of a node."""
        self._check_open("value")
        return Value(self, self._native.named(checks.text("the name of a value", name)))

    def nodes(
        self,
        op: str | None = None,
        *,
        source: str | None = None,
        placement: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> list[Node]:
        """The nodes of the graph so far, in order: all, or those for which everything that is given holds.

        Args:
          op: the name of the op.
          source: a shell pattern of the source, such as "*/fc1/*" or "python:model.py:*".
          placement: shell patterns of the first result's placements by mesh axis: {"data": "partial(*)"}. Without a
            placement along an axis, a value is "replicated".
          attributes: values of the op's attributes: axis="data", dims=[0].

        Example:
          >>> sums = g.nodes("all_reduce", axis="data", kind="sum")
        """
        self._check_open("nodes")
        _check_names(op, attributes)
        pattern = None if source is None else checks.text("nodes: source", source)
        placements = _patterns("nodes: placement", placement)
        nodes = [
            Node(each, tuple(Value(self, result) for result in results), own, origin)
            for each, results, own, origin in self._native.nodes()
            if op in (None, each)
        ]
        return [node for node in nodes if node._is_chosen(pattern, placements, attributes)]

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """What is added in the `with` block belongs to the layer of that name, below the layers of outer blocks.

        Summaries and reports have a row for each layer, as for those of an imported model, and the names of states begin
        with it. Inputs, settings and results keep their names.

        Example:
          >>> with g.scope("blocks"), g.scope("0"):
          ...     weight = g.state("weight", (4, 4))  # blocks.0.weight
          ...     y = x @ weight  # of the layer blocks/0
        """
        self._check_open("scope")
        if "" in checks.text("the name of a scope", name).split("/"):
            raise Error(f"scope: the name is {name!r}, expected one or several, such as 'blocks/0'")
        with self._in_scope(f"{self._scope}{name}/"):
            yield

    @contextmanager
    def _in_scope(self, scope: str) -> Iterator[None]:
        outer, self._scope = self._scope, scope
        try:
            yield
        finally:
            self._scope = outer

    @contextmanager
    def before(self, node: Node) -> Iterator[None]:
        """Ops are inserted before the node in the `with` block, instead of at the end."""
        checks.instance("before", node, Node, "one of Builder.nodes")
        outer, place = self._place, self._own("before", node.results[0])
        self._native.insert_before(place)
        self._place = place
        try:
            yield
        finally:
            self._place = outer
            if not self._native.is_finished:
                self._native.insert_before(outer)

    def replace(self, value: Value, by: Value) -> None:
        """All uses of `value` become uses of `by`, of the same type, except those from which `by` is computed.

        `by` takes over the name, such as "grad/fc1.weight", unless either is an input or `by` has one of its own.
        """
        self._native.replace(self._own("replace", value), self._own("replace: by", by))
        for each in (value, by):
            each.name = self._native.describe(each._index)[0]

    def remove_unused(self) -> None:
        """Removes the nodes on which no result depends. Their values cannot be used any more."""
        self._check_open("remove_unused")
        self._native.remove_unused()

    def finish(self) -> Graph:
        """Verifies the graph and returns it. The builder and its values cannot be used any more."""
        self._check_open("finish")
        try:
            graph = self._native.finish()
        except Error as error:
            if "before it is defined" not in str(error):
                raise
            advice = "an op is inserted at the end: write it in `with g.before(node)`, and after what it uses"
            raise Error(f"{error}; {advice}") from None
        if self._schedules:
            graph._schedules = self._schedules
        return graph

    def _state_name(self, name: str) -> str:
        own = checks.text("the name of a state", name)
        return own and self._scope.replace("/", ".") + own

    def _own(self, what: str, value: Any) -> int:
        self._check_open(what)
        checks.instance(what, value, Value, "a lockstep.graph.Value")
        if value.graph is not self:
            raise Error(f"{what}: {value!r} is not a value of @{self.name}")
        return value._index

    def _check_open(self, what: str) -> None:
        if self._native.is_finished:
            raise Error(f"{what}: the graph @{self.name} is finished, and its values cannot be used any more")

    def _random(self, name: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._seed, zlib.crc32(name.encode())]))


@cache
def _attributes_of_ops() -> dict[str, list[str]]:
    return {op["name"]: [each["name"] for each in op["attributes"]] for op in _lockstep._ops()}


def _check_names(op: str | None, attributes: Mapping[str, Any]) -> None:
    """Raises an Error if there is no such op, or if the op, or any op if it is None, has no such attribute."""
    ops = _attributes_of_ops()
    if op is not None and checks.text("nodes: the op", op) not in ops:
        raise Error(f"nodes: there is no op {op!r}{names.suggest(op, ops)}")
    known = set(itertools.chain.from_iterable(ops.values())) if op is None else ops[op]
    for name in attributes:
        if name not in known:
            raise Error(
                f"nodes: {op or 'no op'} has {'no' if op else 'an'} attribute {name!r}{names.suggest(name, known)}"
            )


def _patterns(what: str, given: Mapping[str, str] | None) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise Error(f'{what} is {checks.shown(given)}, expected patterns by axis, such as {{"data": "partial(*)"}}')
    return {checks.text(what, axis): checks.text(f"{what} along {axis}", each) for axis, each in (given or {}).items()}


def _are_equal(own: Any, wanted: Any) -> bool:
    """Compares values of an attribute. Numbers that are operands, and graphs, equal nothing."""
    if isinstance(own, (tuple, Graph)) or isinstance(wanted, (Value, Graph)):
        return False
    return bool(np.array_equal(own, wanted))
