"""Loads the extension module so that it and its libraries find their own symbols before those of the process.

TensorFlow exports the symbols of its LLVM and its oneDNN to every library that is loaded later. Without isolation, our
libraries would call a mixture of both copies and crash.
"""

from __future__ import annotations

import os
import sys

PYTHON = (3, 11)  # bazel/setup.sh reads this line; another version lacks symbols that the extension module needs
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# That of a wheel for 3.12 and later has a name that only these look for.
_STABLE = os.path.exists(os.path.join(_PACKAGE, "_lockstep.abi3.so")) and sys.version_info >= (3, 12)
if sys.version_info[:2] != PYTHON and not _STABLE:
    raise ImportError(
        "lockstep is built for Python {}.{}, this is Python {}.{} ({}): use .venv/bin/python of the checkout, which "
        "`make setup` makes".format(*PYTHON, *sys.version_info[:2], sys.executable)
    )

_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | getattr(os, "RTLD_DEEPBIND", 0))
try:
    from .. import _lockstep  # noqa: F401
except ImportError as error:
    doctor = os.path.join(_PACKAGE, "doctor.py")
    error.add_note(f"`python {doctor} doctor` says what is missing, and what installs it.")
    raise
finally:
    sys.setdlopenflags(_flags)
