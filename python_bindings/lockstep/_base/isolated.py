"""Loads the extension module so that it and its libraries find their own symbols before those of the process.

TensorFlow offers its LLVM and its oneDNN to every library that is loaded after it: ours would be half of the one, half of the
other, and crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

_PYTHON = (3, 11)  # as in bazel/setup.sh; another one would not find symbols that the extension module wants
if sys.version_info[:2] != _PYTHON:
    raise ImportError(
        "lockstep is built for Python {}.{}, this is Python {}.{} ({}): use .venv/bin/python of the checkout, which "
        "`make setup` makes".format(*_PYTHON, *sys.version_info[:2], sys.executable)
    )

# MPI is loaded as other libraries are. With symbols of its own it would have another `environ` than a Python that holds a
# copy of it, as Debian's does, and free what is not its own in MPI_Init.
with contextlib.suppress(OSError):
    ctypes.CDLL("libmpi.so.40")

_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | getattr(os, "RTLD_DEEPBIND", 0))
try:
    from .. import _lockstep  # noqa: F401
except ImportError as error:
    doctor = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "doctor.py")
    error.add_note(f"`python {doctor} doctor` says what is missing, and what installs it.")
    raise
finally:
    sys.setdlopenflags(_flags)
