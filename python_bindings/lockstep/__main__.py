"""`python -m lockstep`: the program `lockstep`."""

import sys

from ._command import main

sys.exit(main())
