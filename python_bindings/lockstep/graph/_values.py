"""Values of a graph under construction: operators, methods and indexing, which insert ops of core/ops into the graph."""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._base import checks, names
from .._base.errors import Error

if TYPE_CHECKING:
    from ._builder import Builder

DTYPES = ("f64", "f32", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool")
_FLOATS = frozenset(("f64", "f32", "f16", "bf16"))
_FLOAT_KINDS = "fV"  # of NumPy's dtypes; V is that of bfloat16
# The methods of PyTorch and NumPy that have other names here.
_ELSEWHERE = {
    "view": "reshape", "permute": "transpose", "size": "shape", "unsqueeze": "reshape", "squeeze": "reshape",
    "astype": "to", "expand": "broadcast_to", "dim": "ndim", "t": "T",
}  # fmt: skip
# Folders whose lines are no source of a node: the line of their caller is.
_PACKAGE = tuple(str(Path(__file__).parents[1] / folder) for folder in ("graph", "_graph", "_base", "_exchange"))

Operand: TypeAlias = "Value | float | np.ndarray | np.generic"


def dtype_named(what: str, value: Any) -> str:
    """Returns the name of a dtype, given as such or as NumPy's: "f32", numpy.float32, "float32"."""
    if isinstance(value, str) and value in DTYPES:
        return value
    try:
        name = np.dtype(value).name if value is not None else ""
    except (TypeError, ValueError):
        name = ""
    for long, short in (("float", "f"), ("uint", "u"), ("int", "i")):
        name = name.replace(long, short)
    if name not in DTYPES:
        raise Error(f"{what} is {checks.shown(value)}, expected one of {', '.join(DTYPES)}")
    return name


def extents(what: str, value: Any, low: int | None = None) -> list[int]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise Error(f"{what} is {checks.shown(value)}, expected a tuple of whole numbers")
    return [checks.integer(f"{what}: an extent", each, low) for each in value]


def source(graph: Builder) -> str:
    """The line outside of this package that is running, after the graph's scope: "python:conv1/model.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"python:{graph._scope}{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Value:
    """A typed value of a graph under construction. Operators and methods insert ops, at the line that calls them.

    `+ - * / % ** @ & | ^ ~`, comparisons and indexing mean what they mean in NumPy. Numbers and arrays are constants
    in the dtype of the other operand, and shapes are broadcast. Two values of different dtypes are an error: `to`
    converts. docs/graphs_in_python.md has the exceptions.

    Example:
      >>> hidden = lockstep.graph.relu(x @ w.T + b)
      >>> heads = hidden.reshape(8, -1, 4, 16)[:, :, 0]
    """

    __array_ufunc__ = None  # NumPy's arrays then call __radd__ and the like of this class
    __slots__ = ("_index", "dtype", "graph", "name", "placements", "shape")

    graph: Builder
    name: str  # in the text of the graph; generated unless it is an input's
    dtype: str  # "f32", "i64", …
    shape: tuple[int, ...]
    placements: dict[str, str]  # by mesh axis, such as {"data": "split(0)"}; without those that are replicated

    def __init__(self, graph: Builder, index: int) -> None:
        self.graph, self._index = graph, index
        self.name, self.dtype, shape, self.placements = graph._native.describe(index)
        self.shape = tuple(shape)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = [each for each in dir(type(self)) if not each.startswith("_")]
            hint = "" if name.startswith("_") else names.suggest(name, known, _ELSEWHERE).rstrip(".")
            raise AttributeError(f"a lockstep.graph.Value has no {name!r}{hint}")

    def __repr__(self) -> str:
        return f"<lockstep.graph.Value %{self.name}: {self._type()} of @{self.graph.name}>"

    def _type(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in _FLOATS

    # Operators

    def __add__(self, other: Any) -> Value:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return _binary("div", self._for_division(), other)

    def __rtruediv__(self, other: Any) -> Value:
        return _binary("div", other, self._for_division())

    def __mod__(self, other: Any) -> Value:
        return _binary("remainder", self, other)

    def __rmod__(self, other: Any) -> Value:
        return _binary("remainder", other, self)

    def __pow__(self, other: Any) -> Value:
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return _binary("pow", other, self)

    def __and__(self, other: Any) -> Value:
        return _binary("and", self, other)

    def __rand__(self, other: Any) -> Value:
        return _binary("and", other, self)

    def __or__(self, other: Any) -> Value:
        return _binary("or", self, other)

    def __ror__(self, other: Any) -> Value:
        return _binary("or", other, self)

    def __xor__(self, other: Any) -> Value:
        return _binary("xor", self, other)

    def __rxor__(self, other: Any) -> Value:
        return _binary("xor", other, self)

    def __matmul__(self, other: Any) -> Value:
        return _matmul(self, other)

    def __rmatmul__(self, other: Any) -> Value:
        return _matmul(other, self)

    def __neg__(self) -> Value:
        return insert("neg", [self])[0]

    def __abs__(self) -> Value:
        return insert("abs", [self])[0]

    def __invert__(self) -> Value:
        return insert("not", [self])[0]

    def __lt__(self, other: Any) -> Value:
        return _binary("compare", self, other, direction="lt")

    def __le__(self, other: Any) -> Value:
        return _binary("compare", self, other, direction="le")

    def __gt__(self, other: Any) -> Value:
        return _binary("compare", self, other, direction="gt")

    def __ge__(self, other: Any) -> Value:
        return _binary("compare", self, other, direction="ge")

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return _binary("compare", self, other, direction="eq")

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return _binary("compare", self, other, direction="ne")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise Error(f"{self!r} has no truth value while the graph is built: lockstep.graph.select chooses by values")

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise Error(f"{self!r} has no elements while the graph is built, so NumPy cannot compute with it")

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self!r} is a scalar, without a length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Value]:
        return (self[i] for i in range(len(self)))

    # Shapes and dtypes

    @property
    def T(self) -> Value:
        """This value with its dimensions in the opposite order."""
        return self.transpose()

    def transpose(self, *permutation: int | Sequence[int]) -> Value:
        """Result dimension i is dimension permutation[i] of this value. Without a permutation, this is T."""
        dims = extents("transpose", _one_or_several(permutation)) if permutation else reversed(range(self.ndim))
        return insert("transpose", [self], permutation=[self._dim(dim) for dim in dims])[0]

    def reshape(self, *shape: int | Sequence[int]) -> Value:
        """The same elements in row-major order under another shape. One extent may be -1: the one that fits."""
        wanted = extents("reshape", _one_or_several(shape))
        if wanted.count(-1) == 1:
            rest = -math.prod(wanted)
            wanted[wanted.index(-1)] = math.prod(self.shape) // rest if rest > 0 else 0
        return self if tuple(wanted) == self.shape else insert("reshape", [self], shape=wanted)[0]

    def flatten(self, start: int = 0) -> Value:
        """The dimensions from `start` on as one."""
        kept = self.shape[: self._dim(start)]
        return self.reshape(*kept, math.prod(self.shape[len(kept) :]))

    def broadcast_to(self, shape: Sequence[int]) -> Value:
        """This value repeated to the shape, as numpy.broadcast_to."""
        return _broadcast("broadcast_to", self, tuple(extents("broadcast_to: the shape", shape)))

    def to(self, dtype: Any) -> Value:
        """This value in another dtype. Floats to integers truncate toward zero."""
        name = dtype_named("to: the dtype", dtype)
        return self if name == self.dtype else insert("convert", [self], dtype=name)[0]

    def _dim(self, dim: int) -> int:
        """The dimension, which counts from the end if it is negative."""
        number = checks.integer("a dimension", dim)
        if not -self.ndim <= number < self.ndim:
            raise Error(f"dimension {number} of {self!r} does not exist")
        return number % self.ndim

    # Reductions

    def sum(self, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """The sum over dims, or over all dimensions."""
        return self._reduce("reduce_sum", dims, keepdims)

    def max(self, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        return self._reduce("reduce_max", dims, keepdims)

    def min(self, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        return self._reduce("reduce_min", dims, keepdims)

    def mean(self, dims: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """The mean over dims, or over all dimensions. 16-bit floats are added in f32."""
        count = math.prod(self.shape[dim] for dim in self._dims(dims))
        return (self._wide().sum(dims, keepdims) / max(count, 1)).to(self.dtype)

    def _wide(self) -> Value:
        """This value, in f32 if it is of 16-bit floats."""
        return self.to("f32") if self.dtype in ("f16", "bf16") else self

    def _dims(self, dims: int | Sequence[int] | None) -> list[int]:
        if dims is None:
            return list(range(self.ndim))
        return sorted(self._dim(dim) for dim in (dims if isinstance(dims, Sequence) else [dims]))

    def _reduce(self, op: str, dims: int | Sequence[int] | None, keepdims: bool) -> Value:
        over = self._dims(dims)
        result = insert(op, [self], dims=over)[0] if over else self
        kept = [1 if i in over else extent for i, extent in enumerate(self.shape)]
        return result.reshape(*kept) if checks.flag("keepdims", keepdims) else result

    def _for_division(self) -> Value:
        if not self.is_float:
            raise Error(f"/ divides floats, and {self!r} has none: convert it by .to(), or use lockstep.graph.div")
        return self

    def __getitem__(self, key: Any) -> Value:
        """Basic indexing, as NumPy's: integers, slices, None and `...`. An array of integers, or a value of them, is
        allowed as the whole index: x[indices] has the rows of x at the indices.
        """
        if isinstance(key, (Value, np.ndarray)):
            return insert("gather", [self, key], dim=0)[0]
        return _index(self, key if isinstance(key, tuple) else (key,))


def _index(x: Value, key: tuple[Any, ...]) -> Value:
    taken = sum(each is not None and each is not Ellipsis for each in key)
    places = [i for i, each in enumerate(key) if each is Ellipsis]
    if taken > x.ndim or len(places) > 1:
        raise Error(f"{x!r} is indexed by {taken} numbers and slices, and {len(places)} times ...")
    dots = places[0] if places else len(key)
    whole = (slice(None),) * (x.ndim - taken)
    start, limit, stride, shape, backwards = [], [], [], [], []
    for each in (*key[:dots], *whole, *key[dots + 1 :]):
        if each is None:
            shape.append(1)
            continue
        extent = x.shape[len(start)]
        taken_range = _range(x, each, extent)
        if taken_range.step < 0:
            backwards.append(len(start))
            taken_range = taken_range[::-1]
        start.append(taken_range.start if taken_range else 0)
        limit.append(taken_range[-1] + 1 if taken_range else 0)
        stride.append(taken_range.step)
        if isinstance(each, slice):
            shape.append(len(taken_range))
    if (start, limit, stride) != ([0] * x.ndim, list(x.shape), [1] * x.ndim):
        x = insert("slice", [x], start=start, limit=limit, stride=stride)[0]
    return (insert("reverse", [x], dims=backwards)[0] if backwards else x).reshape(*shape)


def _range(x: Value, each: Any, extent: int) -> range:
    """The positions along a dimension that an integer or a slice takes."""
    if isinstance(each, slice):
        return range(*each.indices(extent))
    if isinstance(each, (bool, EllipsisType)) or not hasattr(each, "__index__"):
        raise Error(f"{x!r} is indexed by {checks.shown(each)}, expected integers, slices, None or ...")
    if not -extent <= each.__index__() < extent:
        raise Error(f"index {each} of {x!r} is outside of the extent {extent}")
    return range(each.__index__() % extent, each.__index__() % extent + 1)


def insert(
    op: str,
    operands: Sequence[Any],
    refs: Mapping[str, Value] | None = None,
    graph: Builder | None = None,
    broadcast: bool = False,
    **attributes: Any,
) -> list[Value]:
    """Inserts a node, and returns its results.

    Args:
      operands: values of one graph; numbers and arrays become constants.
      refs: operands that are the numbers of attributes.
      graph: needed by an op without operands.
      broadcast: the shapes of the operands are broadcast to one, and constants get the dtype of the other operand.
    """
    extra = list((refs or {}).values())
    graph = graph or _graph_of(op, [*operands, *extra])
    values = _lifted(graph, op, operands, broadcast)
    if broadcast:
        shape = _common_shape(op, values)
        values = [_broadcast(op, value, shape) for value in values]
    places = {name: len(values) + i for i, name in enumerate(refs or {})}
    values += extra
    try:
        indices = graph._native.op(op, [value._index for value in values], attributes, places, source(graph))
    except Error as error:
        advice = ""
        if "the mesh {} has no axis" in str(error):
            advice = f"; @{graph.name} has no mesh: Builder(…, mesh={{{attributes['axis']!r}: 4}}) has one"
        raise Error(f"{error}{_with_types(values)}{advice}") from None
    return [Value(graph, index) for index in indices]


def _with_types(values: Sequence[Value]) -> str:
    return f"; operands: {', '.join(f'%{each.name}: {each._type()}' for each in values)}" if values else ""


def _graph_of(op: str, operands: Sequence[Any]) -> Builder:
    """The graph of the operands, which must be one that is not finished."""
    values = [each for each in operands if isinstance(each, Value)]
    if not values:
        raise Error(f"{op}: no operand is a lockstep.graph.Value, which would say to which graph the op belongs")
    graph = values[0].graph
    for value in values:
        value.graph._check_open(op)
        if value.graph is not graph:
            raise Error(f"{op}: the operands are of two graphs: {values[0]!r} and {value!r}")
    return graph


def _lifted(graph: Builder, op: str, operands: Sequence[Any], broadcast: bool) -> list[Value]:
    """The operands with numbers and arrays as constants, in the dtype of the last value; for an op whose operands may
    have several dtypes, only floats get that of the first float.
    """
    values = [each for each in operands if isinstance(each, Value)]
    floats = [each.dtype for each in values if each.is_float]

    def lifted(operand: Any) -> Value:
        if isinstance(operand, Value):
            return operand
        array = as_array(f"{op}: an operand", operand, "a lockstep.graph.Value, a number or an array")
        if broadcast and values[-1].dtype == "bool" and array.dtype.kind != "b":
            advice = "make a number a value: g.constant(1.0, 'f32')" if op == "select" else "convert that by .to()"
            raise Error(f"{op}: {checks.shown(operand)} would be a bool, as {values[-1]!r} is: {advice}")
        if broadcast:
            return constant(graph, array, values[-1].dtype)
        return constant(graph, array, floats[0] if floats and array.dtype.kind in _FLOAT_KINDS else None)

    return [lifted(each) for each in operands]


def _one_or_several(given: tuple[Any, ...]) -> Any:
    """The numbers of reshape(2, 3), or of reshape((2, 3))."""
    return given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given


def as_array(what: str, value: Any, expected: str = "a number or an array") -> np.ndarray:
    """A number or an array as a NumPy array of a dtype that graphs have."""
    is_array = hasattr(value, "__array__") and not isinstance(value, type)
    array = np.asarray(value) if is_array or isinstance(value, numbers.Real) else None
    if array is None or not (array.dtype.kind in "fiub" or array.dtype.name == "bfloat16"):
        raise Error(f"{what} is {checks.shown(value)}, expected {expected}")
    return array


def constant(graph: Builder, array: np.ndarray, dtype: str | None = None) -> Value:
    """A constant in the dtype, which must represent the numbers exactly if it is not a float."""
    return Value(graph, graph._native.constant(array, dtype or "", source(graph)))


def _common_shape(op: str, values: Sequence[Value], without: int = 0) -> tuple[int, ...]:
    """The shape to which the shapes of the values are broadcast, without their last dimensions."""
    try:
        return np.broadcast_shapes(*(value.shape[: value.ndim - without] for value in values))
    except ValueError:
        place = source(values[0].graph)
        raise Error(f"{op}: the shapes cannot be broadcast to one, at {place}{_with_types(values)}") from None


def _broadcast(op: str, x: Value, shape: tuple[int, ...]) -> Value:
    if x.shape == shape:
        return x
    more = len(shape) - x.ndim
    kept = [dim for dim in range(x.ndim) if more >= 0 and x.shape[dim] == shape[more + dim]]
    if more < 0 or any(x.shape[dim] != 1 for dim in range(x.ndim) if dim not in kept):
        raise Error(f"{op}: {x!r} cannot be broadcast to {list(shape)}, at {source(x.graph)}")
    plain = x.reshape(*(x.shape[dim] for dim in kept))
    return insert("broadcast", [plain], shape=list(shape), dims=[more + dim for dim in kept])[0]


def _binary(op: str, x: Any, y: Any, **attributes: Any) -> Value:
    return insert(op, [x, y], broadcast=True, **attributes)[0]


def _matmul(x: Any, y: Any) -> Value:
    """The product as numpy.matmul: vectors are a row or a column, and leading dimensions are broadcast."""
    graph = _graph_of("@", [x, y])
    x, y = _lifted(graph, "@", [x, y], broadcast=True)
    if x.ndim == 0 or y.ndim == 0:
        raise Error(f"@: a scalar is multiplied by *{_with_types([x, y])}")
    left = x.reshape(1, x.shape[0]) if x.ndim == 1 else x
    right = y.reshape(y.shape[0], 1) if y.ndim == 1 else y
    if right.ndim > 2:
        leading = _common_shape("@", [left, right], without=2)
        left = _broadcast("@", left, (*leading, *left.shape[-2:]))
        right = _broadcast("@", right, (*leading, *right.shape[-2:]))
    result = insert("matmul", [left, right])[0]
    shape = list(result.shape)
    if x.ndim == 1:
        del shape[-2]
    if y.ndim == 1:
        del shape[-1]
    return result.reshape(*shape)


def gradients_of(loss: Value, wrt: Sequence[Value]) -> list[Value]:
    """See lockstep.gradients."""
    for value in wrt:
        checks.instance("gradients: a value", value, Value, "a lockstep.graph.Value")
    graph = _graph_of("gradients", [loss, *wrt])
    indices = graph._native.gradients(loss._index, [value._index for value in wrt])
    for value, index in zip(wrt, indices, strict=True):
        if index is None:
            raise Error(f"gradients: {loss!r} does not depend on {value!r} through floats")
    return [Value(graph, index) for index in indices]
