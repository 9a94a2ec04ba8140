"""Horovod's calls on Lockstep's communicator, for programs in PyTorch's eager mode: `import lockstep.horovod.torch as
hvd`.

docs/horovod.md lists what is the same and what differs. Only `lockstep.horovod.torch` imports torch.
"""
