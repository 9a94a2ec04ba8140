"""Runs a program and kills it with SIGKILL as soon as a folder contains a file of this name or a later one.

python killed.py <folder> <file> <program> [arguments]
"""

import os
import runpy
import signal
import sys
import threading
import time


def watch(folder: str, file: str) -> None:
    while not any(name >= file for name in (os.listdir(folder) if os.path.isdir(folder) else ())):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


folder, file, *sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
threading.Thread(target=watch, args=(folder, file), daemon=True).start()
runpy.run_path(sys.argv[0], run_name="__main__")
