"""Loads the extension module so that it and its libraries find their own symbols before those of the process.

TensorFlow offers its LLVM and its oneDNN to every library that is loaded after it: ours would be half of the one, half of the
other, and crash.
"""

from __future__ import annotations

import os
import sys

_flags = sys.getdlopenflags()
sys.setdlopenflags(_flags | getattr(os, "RTLD_DEEPBIND", 0))
try:
    from . import _lockstep  # noqa: F401
finally:
    sys.setdlopenflags(_flags)
