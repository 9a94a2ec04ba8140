"""Not supported: the import raises an Error."""

from .._base.errors import Error

raise Error(
    "lockstep.horovod has only PyTorch's part of Horovod, lockstep.horovod.torch; train models of TensorFlow and Keras "
    "from ONNX files: docs/frameworks.md"
)
