"""One rank: runs the Python program argv[2:], and writes its exit code to <argv[1]>/<rank>."""

import os
import subprocess
import sys
from pathlib import Path

code = subprocess.run([sys.executable, *sys.argv[2:]], check=False).returncode
(Path(sys.argv[1]) / os.environ["OMPI_COMM_WORLD_RANK"]).write_text(str(code))
