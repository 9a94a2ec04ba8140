"""A training run whose bits show the order in which gradients were added."""

from __future__ import annotations

import hashlib

import lockstep as ls
from cases import CASES, train

LENET, MLP, _ = CASES


def digest(world: ls.Communicator, virtual_ranks: int | None = None) -> str:
    # Virtual ranks send the large sums of LeNet in slices.
    _, exe = train(LENET if virtual_ranks else MLP, world, steps=8, virtual_ranks=virtual_ranks)
    exe.check_replicas()
    return hashlib.sha256(b"".join(exe.state[name].tobytes() for name in sorted(exe.state))).hexdigest()
