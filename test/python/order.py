"""A training run whose bits show the order in which gradients were added."""

from __future__ import annotations

import hashlib

import lockstep as ls
from cases import CASES, train

MLP = next(case for case in CASES if case.name == "mlp")


def digest(world: ls.Communicator) -> str:
    _, exe = train(MLP, world, steps=8)
    exe.check_replicas()
    return hashlib.sha256(b"".join(exe.state[name].tobytes() for name in sorted(exe.state))).hexdigest()
