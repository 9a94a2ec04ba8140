"""Passes written in Python: functions that change a graph while `lockstep.compile` makes a program of it."""

from __future__ import annotations

import hashlib
import inspect
import re
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from .._base import checks
from .._base.errors import Error
from ._builder import Builder

if TYPE_CHECKING:
    from .._lockstep import Graph

_KEEPS = ("meaning", "nothing")


class Pass:
    """A function that changes a graph, with its place among the passes of `lockstep.compile`. `lockstep.pass_` makes it
    of a function.
    """

    name: str  # of the function
    place: str  # the pass beside which it runs
    version: str
    keeps: str

    def __init__(self, function: FunctionType, place: str, before: bool, version: str, keeps: str) -> None:
        self.name, self.place, self.version, self.keeps = function.__name__, place, version, keeps
        self._function, self._before, self._source = function, before, _hash_of_source(function)
        if not self.name.isidentifier():
            raise Error(f"pass_: the function is {self.name}, but a pass has the name of its function: write it by def")
        if not self._source and not version:
            raise Error(
                f'pass {self.name}: ranks cannot compare its source, which cannot be read: give it a version, such as "1"'
            )

    def __repr__(self) -> str:
        return f"<lockstep.graph.Pass {self.name} {'before' if self._before else 'after'} {self.place}>"

    def __call__(self, g: Builder) -> None:
        """Calls the function, for example with `Builder.of(graph)` in a test."""
        returned = self._function(g)
        if returned is not None:
            raise Error(f"it returns {checks.shown(returned)}, but a pass changes the graph that it is given")

    @property
    def _text(self) -> str:
        """What ranks compare beside the name and the place."""
        parts = [f"version {self.version}"] if self.version else []
        parts += [f"source {self._source}"] if self._source else []
        return ", ".join([*parts, f"keeps {self.keeps}"])


def pass_(
    *, before: str | None = None, after: str | None = None, version: str = "", keeps: str = "meaning"
) -> Callable[[Callable[[Builder], None]], Pass]:
    """Makes a pass of a function that changes a graph: `lockstep.compile(step, passes=[halve])` runs it among the passes
    of the compiler, and verifies the graph after it. docs/passes_in_python.md describes the rules.

    All ranks must have the same passes. They compare the function's name, place, version and source text, but not the
    source of other functions that it calls, nor values that it reads: those of another version need another `version`.

    Args:
      before, after: the pass of the compiler beside which it runs, such as "distribute": one of the two. An error
        about a place that does not exist lists them.
      version: any text. Required if the source of the function cannot be read, as of one made by exec().
      keeps: "meaning" if results stay as they are up to rounding, which `verify` then checks; "nothing" if the pass
        makes another program on purpose, with which later passes are then compared.

    Example:
      >>> @lockstep.pass_(after="distribute")
      ... def bf16_for_matrices(g: lockstep.graph.Builder) -> None:
      ...     for node in g.nodes("all_reduce", axis="data", kind="sum"):
      ...         if node.operands[0].ndim == 2:
      ...             with g.before(node):
      ...                 low = node.operands[0].to("bf16")
      ...                 node.replace(lockstep.graph.all_reduce(low, axis="data", kind="sum").to("f32"))
    """
    places = [each for each in (before, after) if each is not None]
    if len(places) != 1:
        raise Error(f"pass_: before is {before!r} and after is {after!r}, expected one of them")
    place = checks.text("pass_: " + ("after" if before is None else "before"), places[0])
    checks.text("pass_: version", version)
    checks.choice("pass_: keeps", keeps, _KEEPS)

    def made(function: Callable[[Builder], None]) -> Pass:
        checks.instance("pass_: the function", function, FunctionType, "a function of a lockstep.graph.Builder")
        return Pass(function, place, before is not None, version, keeps)  # type: ignore[arg-type]

    return made


def _hash_of_source(function: FunctionType) -> str:
    """A hash of the function's text, with its decorators; empty if the text cannot be read."""
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]


class Run:
    """A pass in one compilation."""

    def __init__(self, of: Pass) -> None:
        self.of = of
        self.failure: BaseException | None = None
        self.message = ""  # of the failure

    @property
    def native(self) -> tuple[str, str, bool, str, bool, Callable[[Graph], Graph | str]]:
        of = self.of
        return of.name, of.place, of._before, of._text, of.keeps == "nothing", self

    def __call__(self, graph: Graph) -> Graph | str:
        """Returns the changed graph, or the message of an exception, which `failure` keeps."""
        try:
            g = Builder.of(graph)
            self.of(g)
            if g._native.is_finished:
                raise Error("it calls finish() of the graph, which compile does")
            g.remove_unused()  # collectives that were replaced must not be merged with others
            return g.finish()
        except BaseException as error:  # noqa: BLE001 (no exception may pass through the compiler; `causes` raises it)
            self.failure, self.message = error, _message(error, self.of._function)
            return self.message


def _message(error: BaseException, function: Callable[..., Any]) -> str:
    """The message of an exception, with the last line in the file of the function that led to it."""
    text = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    file = inspect.unwrap(function).__code__.co_filename
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
    at = f"{Path(file).name}:{lines[-1]}" if lines else ""
    if at and not re.search(rf"{re.escape(at)}\b", text):
        text = f"{text}, at {at}"
    return text.encode(errors="backslashreplace").decode()


def runs_of(what: str, passes: Sequence[Pass]) -> list[Run]:
    """Returns the passes of one compilation. `what` takes them as an argument."""
    if isinstance(passes, Pass) or not isinstance(passes, Sequence):
        raise Error(f"{what}: passes is {checks.shown(passes)}, expected a list of functions with @lockstep.pass_")
    expected = 'a function with @lockstep.pass_(after="distribute")'
    return [Run(checks.instance(f"{what}: a pass", each, Pass, expected)) for each in passes]


@contextmanager
def causes(runs: Sequence[Run]) -> Iterator[None]:
    """Lets an Error about a failed pass have the pass's exception as its cause."""
    try:
        yield
    except Error as error:
        failure = next((each.failure for each in runs if each.failure and each.message in str(error)), None)
        if failure is None:
            raise
        if not isinstance(failure, Exception):
            raise failure from None  # such as KeyboardInterrupt
        raise error from failure
