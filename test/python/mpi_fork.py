"""One rank of test_processes: forks during a job, ends the child as argv[1] says, and continues with the others."""

import multiprocessing
import os
import sys

import lockstep as ls

mode = sys.argv[1]
world = ls.Communicator.mpi()
world.barrier()


def in_child() -> None:
    try:
        world.barrier()
    except ls.Error as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError("a child process took part in a collective")


if mode == "multiprocessing":
    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    child.join()
    status = child.exitcode
else:
    process = os.fork()
    if process == 0:
        in_child()
        if mode == "raise":
            raise ValueError("of the child alone")
        if mode == "abort":
            world.abort("of the child alone")
        del world
        sys.exit(0)  # runs everything that happens at a normal exit
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

assert status == (1 if mode == "raise" else 0), status
assert world.gather_bytes(str(world.rank).encode()) == [str(r).encode() for r in range(world.size)]
print(f"rank {world.rank} of {world.size} worked on", flush=True)
