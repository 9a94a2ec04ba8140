"""A training run whose bits show the order in which gradients were added."""

from __future__ import annotations

import hashlib

import lockstep as ls
from cases import CASES, train

LENET, MLP, _ = CASES


def digest(world: ls.Communicator, virtual_ranks: int | None = None) -> str:
    # Virtual ranks send the large sums of LeNet in slices.
    case, steps = (LENET, 2) if virtual_ranks else (MLP, 8)
    _, exe = train(case, world, steps=steps, virtual_ranks=virtual_ranks)
    exe.check_replicas()
    return hashlib.sha256(b"".join(exe.state[name].tobytes() for name in sorted(exe.state))).hexdigest()
