"""One rank of test_checkpoint_ranks.py: runs the mode of the first argument, and writes the outcome to
<folder>/<rank>.json.
"""

import ctypes
import json
import os
import resource
import sys
from pathlib import Path

import lockstep as ls
from lockstep._base import atomic
from test_checkpoint import compiled, run
from test_mesh import digests_of

mode, folder, path = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
world = ls.Communicator.mpi()
exe = compiled(world)
report: dict[str, object] = {"size": world.size}


def attempt(body: object) -> str:
    try:
        body()  # type: ignore[operator]
    except ls.Error as error:
        return str(error)
    return ""


if mode == "train":  # saves halfway
    run(exe, 0, 3)
    exe.save(path, step=3, metadata={"note": "half"}, background=True)
    run(exe, 3, 6)
    exe.saved()
elif mode == "resume":
    report["metadata"] = exe.load(path)
    run(exe, 3, 6)
elif mode == "full":  # a full disk
    if world.rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    report["errors"] = [
        attempt(lambda: exe.save(path)),
        attempt(lambda: exe.save(path, background=True) or exe.saved()),
    ]
elif mode == "forbidden":  # a folder in which rank 0 may not write
    write, libc = atomic.write, ctypes.CDLL(None)

    def as_nobody(*arguments: object) -> None:
        # Only for the writing thread, and so that peers may still open the process' shared memory (PR_SET_DUMPABLE).
        libc.setfsuid(65534)
        libc.prctl(4, 1)
        write(*arguments)  # type: ignore[arg-type]

    atomic.write = as_nobody
    report["errors"] = [attempt(lambda: exe.save(path))]
elif mode == "hidden":  # rank 1 is in another folder, where the relative path does not exist
    if world.rank == 1:
        os.chdir("/")
    report["errors"] = [attempt(lambda: exe.load(os.path.basename(path)))]
run(exe, 6, 7)  # training continues
exe.check_replicas()
report["digests"] = digests_of(exe)
(folder / f"{world.rank}.json").write_text(json.dumps(report))
