"""`python -m lockstep doctor`."""

import sys

from .doctor import main

sys.exit(main())
