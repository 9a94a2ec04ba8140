"""The ranks, as the body of an exchange sees them: collectives, and states that steps keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import graph as _graph
from .._base import checks
from .._base.errors import Error

if TYPE_CHECKING:
    from ..graph import Builder, Value
    from ..graph._builder import Initializer


class State:
    """A value that an exchange keeps from step to step. `value` is that of the last step; assign `next`."""

    def __init__(self, ranks: Ranks, name: str, value: Value, equal: bool) -> None:
        self.value = value
        self._ranks, self._name, self._equal = ranks, name, equal
        self._next: Value | None = None

    @property
    def next(self) -> Value:
        """The value after this step, of the same type."""
        return self.value if self._next is None else self._next

    @next.setter
    def next(self, value: Value) -> None:
        ranks = self._ranks
        what = f"the next value of state {self._name}"
        checks.instance(what, value, _graph.Value, "a lockstep.graph.Value")
        if (value.dtype, value.shape) != (self.value.dtype, self.value.shape):
            raise Error(f"{what} is {value._type()}, expected {self.value._type()}")
        if self._equal and ranks.axis in value.placements:
            raise Error(
                f"{what} is {value.placements[ranks.axis]}, but the state is equal on all ranks: a collective is missing, or equal=True is wrong"
            )
        self._next = value

    def _finish(self, builder: Builder) -> None:
        if self._next is None:
            raise Error(f"state {self._name} has no next value: assign its `next`")
        value = self._next if self._equal else self._ranks._stacked(self._next)
        with builder._in_scope(""):
            builder.next_state(self._name, value)


class Ranks:
    """The ranks of an axis of the mesh, among which a gradient is exchanged.

    A value of the body is either *local*, each rank's own, or *replicated*, equal on all ranks: `placements` of a value
    says which. What is computed from a local value is local. The methods of this class bring local values together.
    """

    def __init__(self, builder: Builder, axis: str, count: int) -> None:
        self.count = count
        self.axis = axis
        self._builder = builder
        self._states: dict[str, State] = {}
        self._due: dict[int, str] = {}  # by the index of a value of `every`, the name of its setting
        self._terms: dict[int, Value] = {}  # by the index of the local value, the terms that it is made of

    def __repr__(self) -> str:
        return f"<{self.count} ranks of axis {self.axis}>"

    def index(self) -> Value:
        """This rank's number along the axis: local, i64[]."""
        value: Value = _graph.axis_index(self._builder, axis=self.axis)
        return value

    def every(self, steps: int, offset: int = 0) -> Value:
        """True in every `steps`-th step, bool[], the same on all ranks; `offset` steps later with that. It follows the
        number of the step, `exe.step`, through the setting `exchange/due/<steps>/<offset>`: 1 in steps that are due."""
        steps = checks.integer("every: steps", steps, 1)
        name = f"exchange/due/{steps}/{checks.integer('every: offset', offset) % steps}"
        found = next((index for index, each in self._due.items() if each == name), None)
        if found is not None:
            return _graph.Value(self._builder, found)
        due = self._builder.setting(name, 0, least=0, most=1) > 0
        self._due[due._index] = name
        return due

    def sum(self, x: Value, when: Value | None = None) -> Value:
        """The sum of all ranks' x, replicated: an all_reduce, of as many bytes as x has.

        Args:
          when: a value of `every`. In other steps nothing travels, and the result is zeros.
        """
        return self._reduced(x, "sum", when)

    def mean(self, x: Value, when: Value | None = None) -> Value:
        """The mean of all ranks' x, replicated: an all_reduce. `when` is as for `sum`."""
        return self._reduced(x, "mean", when)

    def max(self, x: Value, when: Value | None = None) -> Value:
        """The largest of all ranks' x, element by element, replicated: an all_reduce. `when` is as for `sum`."""
        return self._reduced(x, "max", when)

    def gather(self, x: Value) -> Value:
        """All ranks' x, stacked along a new first dimension, replicated: an all_gather. Each rank receives x of all."""
        value: Value = _graph.all_gather(self._stacked(self._local("gather", x)), axis=self.axis, dim=0)
        return value

    def transpose(self, x: Value) -> Value:
        """Row r of each rank's x[count, ...] goes to rank r. Row s of the result, which is local, came from rank s: an
        all_to_all."""
        self._local("transpose", x)
        if x.ndim == 0 or x.shape[0] != self.count:
            raise Error(f"transpose: the value is {x._type()}, expected {self.count} rows, one for each rank")
        value: Value = _graph.all_to_all(x, axis=self.axis, split_dim=0, concat_dim=0)
        return value

    def shift(self, x: Value, by: int = 1) -> Value:
        """The x of the rank that is `by` ranks before this one, around a ring: local, a collective_permute."""
        steps = checks.integer("shift: by", by) % self.count
        sources = list(range(self.count))
        targets = [(rank + steps) % self.count for rank in sources]
        value: Value = _graph.collective_permute(
            self._local("shift", x), axis=self.axis, sources=sources, targets=targets
        )
        return value

    def state(
        self,
        name: str,
        like: Value | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        dtype: Any = None,
        init: Initializer | float | None = None,
        equal: bool = False,
    ) -> State:
        """A value that is kept from step to step, and in checkpoints: each rank's own, or with `equal` the same on all.

        Args:
          like: a value of the same dtype and shape. Otherwise `shape`, and `dtype`, f32 by default.
          init: the first value, for a state that is equal on all ranks, as in Builder.state. None: zeros.
          equal: the next value must be replicated. It is a state of each rank otherwise, which checkpoints have for all
            of them.
        """
        name = checks.text("the name of a state", name)
        if name in self._states:
            raise Error(f"there are two states {name}")
        if like is not None:
            shape, dtype = like.shape, like.dtype
        if shape is None:
            raise Error(f"state {name}: give `like`, a value of its type, or `shape`")
        if not checks.flag("equal", equal) and init is not None:
            raise Error(f"state {name}: init needs equal=True; each rank's own states begin as zeros")
        builder = self._builder
        if equal:
            with builder._in_scope(""):  # the name in the program is below that of the weight
                value = builder.state(name, shape, dtype, init=init)
        else:
            stored = builder._stacked_state(name, (self.count, *shape), dtype, self.axis)
            value = _graph.own_part(stored, axis=self.axis)
        made = self._states[name] = State(self, name, value, equal)
        return made

    def _reduced(self, x: Value, kind: str, when: Value | None) -> Value:
        x = self._local(kind, x)
        if when is None:
            terms = self._terms.get(x._index) if kind == "sum" else None
            value: Value = _graph.all_reduce(x if terms is None else terms, axis=self.axis, kind=kind)
            return value
        checks.instance(f"{kind}: when", when, _graph.Value, "a value of ranks.every")
        if when._index not in self._due:
            raise Error(f"{kind}: when is {when!r}, expected a value of ranks.every, which all ranks know to be equal")
        reduced = _graph.all_reduce(x, axis=self.axis, kind=kind, when=self._due[when._index])
        chosen: Value = _graph.select(when, reduced, 0)
        return chosen

    def _local(self, what: str, x: Value) -> Value:
        checks.instance(f"{what}: the value", x, _graph.Value, "a lockstep.graph.Value")
        if x.placements.get(self.axis) != "local":
            raise Error(f"{what}: {x!r} is equal on all ranks already, at {where(x)}")
        return x

    def _own(self, terms: Value) -> Value:
        """This rank's term of a value that is partial."""
        value: Value = _graph.own_part(self._stacked(terms), axis=self.axis)
        self._terms[value._index] = terms
        return value

    def _stacked(self, x: Value) -> Value:
        value: Value = _graph.parts(x, axis=self.axis, shape=[self.count, *x.shape])
        return value


class RanksWithWeights(Ranks):
    """The ranks, as an exchange of weights sees them: each has weights of its own until they agree.

    `agreed` are the weights on which all agreed last, replicated: those that `exe.state`, checkpoints and evaluations
    have.
    """

    def __init__(self, builder: Builder, axis: str, count: int, agreed: Value, number: int, others: int) -> None:
        super().__init__(builder, axis, count)
        self.agreed = agreed
        self.number, self.others = number, others
        self._next_agreed: Value | None = None

    def agree(self, weights: Value, when: Value | None = None) -> None:
        """All ranks agree on these weights, which must be replicated; only in some steps with `when`, a value of `every`."""
        checks.instance("agree: the weights", weights, _graph.Value, "a lockstep.graph.Value")
        if (weights.dtype, weights.shape) != (self.agreed.dtype, self.agreed.shape):
            raise Error(
                f"agree: the value is {weights._type()}, expected the type of the weights, {self.agreed._type()}"
            )
        if weights.placements:
            raise Error(
                f"agree: the value is {weights.placements[self.axis]}, made at {where(weights)}: bring it together, such as by ranks.mean"
            )
        if self._next_agreed is not None:
            raise Error("agree: the ranks have agreed on other weights already")
        self._next_agreed = weights if when is None else _graph.select(when, weights, self.agreed)

    def _finish(self, own: Value) -> None:
        if self._next_agreed is None:
            raise Error("the ranks never agree on weights: call ranks.agree")
        local = own if own.placements else _graph.as_local(own, axis=self.axis)
        self._builder.result("agreed", self._next_agreed)
        self._builder.result("own", self._stacked(local - self._next_agreed))


def where(x: Value) -> str:
    """The line that made a value, as "python:power_sgd/power_sgd.py:12"."""
    return next((node.source for node in x.graph.nodes() if x.name in [each.name for each in node.results]), "an input")
