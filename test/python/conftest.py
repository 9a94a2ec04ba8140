"""What all tests of this folder share: which of them run."""

from __future__ import annotations

import os

import pytest

EVERYTHING = "LOCKSTEP_TEST_EVERYTHING" in os.environ


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "everything: a case like others that run; left to `make test-everything`")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EVERYTHING:
        return
    left_out = [item for item in items if item.get_closest_marker("everything")]
    items[:] = [item for item in items if not item.get_closest_marker("everything")]
    config.hook.pytest_deselected(items=left_out)
