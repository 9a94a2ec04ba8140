"""Tells the extension module the library folders of Python's nvidia-* packages, which it
searches when a GPU is first used."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable

from .. import _lockstep


def library_folders(roots: Iterable[str]) -> list[str]:
    """The folders nvidia/<package>/lib below the roots of the package `nvidia`, sorted. Opens none of their files."""
    folders = []
    for root in roots:
        try:
            packages = sorted(os.listdir(root))
        except OSError:
            continue
        folders += [os.path.join(root, package, "lib") for package in packages]
    return [folder for folder in folders if os.path.isdir(folder)]


def _roots() -> list[str]:
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):  # a hand-made module `nvidia`
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


_lockstep._set_cuda_folders([os.fsencode(folder) for folder in library_folders(_roots())])
