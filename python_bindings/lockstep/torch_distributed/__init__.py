"""A backend of torch.distributed: PyTorch's own programs on CPUs, over the collectives of this engine.

    import lockstep.torch_distributed
    torch.distributed.init_process_group("lockstep")

After the import, "lockstep" is a backend like "gloo", for tensors in the CPU's memory. DistributedDataParallel, FSDP,
DTensor and what is built on them need no other change. The ranks meet as PyTorch's do, by the store that
`init_process_group` makes, and each group has collectives of its own (`docs/torch_distributed.md`).

Importing this module imports torch.
"""

from __future__ import annotations

from torch import distributed as _distributed

from ._group import Group

if not hasattr(_distributed.Backend, "LOCKSTEP"):
    _distributed.Backend.register_backend("lockstep", Group.create, extended_api=True, devices=["cpu"])

__all__ = ["Group"]
