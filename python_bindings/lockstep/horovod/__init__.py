"""Horovod's calls for PyTorch's eager mode on Lockstep's communicator: `import lockstep.horovod.torch as hvd`.

docs/horovod.md lists what is the same and what differs. Only `lockstep.horovod.torch` imports torch.
"""
