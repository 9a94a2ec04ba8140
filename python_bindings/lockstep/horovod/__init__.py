"""Horovod's calls on Lockstep's communicator, for programs that keep PyTorch's eager mode: `import lockstep.horovod.torch as hvd`.

docs/horovod.md says what is the same and what is not. Nothing here imports torch; `lockstep.horovod.torch` does.
"""
