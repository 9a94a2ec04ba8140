"""Tests use the package of this checkout, and share what torch's exporter would build for each module. In
`make test-everything` all run, else some of those that are similar.
"""

from __future__ import annotations

import copy
import functools
import gc
import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

EXPORTER = "torch.onnx._internal.exporter._registration"

# Otherwise .venv decides, which may belong to another checkout. Processes that tests start inherit the environment.
PACKAGES = str(Path(__file__).resolve().parents[2] / "python_bindings")
sys.path.insert(0, PACKAGES)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGES, os.environ.get("PYTHONPATH")]))

NUMBERS_OF_RANKS = ("n", "ranks")  # names of parameters


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "everything: a case similar to others; only `make test-everything` runs it")


def ranks_of(item: pytest.Item) -> tuple[str, int] | None:
    """Returns the test that an item is a case of, and its number of ranks; None if it has no such parameter."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    for name in NUMBERS_OF_RANKS:
        number = parameters.get(name)
        if isinstance(number, int) and number > 0:
            return item.nodeid.partition("[")[0], number
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Runs a test that has cases for several numbers of ranks for one only: three, because few sizes divide by it, else
    two.
    """
    if "LOCKSTEP_TEST_EVERYTHING" in os.environ:
        return
    numbers: dict[str, set[int]] = defaultdict(set)
    for case in filter(None, map(ranks_of, items)):
        numbers[case[0]].add(case[1])
    chosen = {test: next((n for n in (3, 2) if n in of_test), min(of_test)) for test, of_test in numbers.items()}

    def is_left_out(item: pytest.Item) -> bool:
        case = ranks_of(item)
        return item.get_closest_marker("everything") is not None or (case is not None and case[1] != chosen[case[0]])

    left_out = [item for item in items if is_left_out(item)]
    items[:] = [item for item in items if not is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Lets the garbage collector ignore what stays until the end: the modules of torch and the collected tests. It takes
    a tenth of the time of tests that export modules."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Lets exports share torch's table of operators, as making the table takes most of the time to export a small module."""
    exporter = sys.modules.get(EXPORTER)
    if exporter is None or isinstance(vars(exporter.ONNXRegistry)["from_torchlib"], staticmethod):
        return
    make = functools.cache(exporter.ONNXRegistry.from_torchlib)

    def from_torchlib(**options: int) -> object:
        registry = copy.copy(make(**options))
        registry.functions = {operator: list(functions) for operator, functions in registry.functions.items()}
        return registry

    exporter.ONNXRegistry.from_torchlib = staticmethod(from_torchlib)


@pytest.fixture(params=["local", "direct"])
def how(request: pytest.FixtureRequest) -> str:
    """Launchers of ranks on this host: by mpirun, and without it."""
    return request.param
