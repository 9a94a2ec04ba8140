"""Not supported: the import raises an Error."""

from .._base.errors import Error

raise Error(
    "lockstep.horovod has PyTorch's part of Horovod alone, lockstep.horovod.torch; models of TensorFlow and Keras are trained "
    "from ONNX files: docs/frameworks.md"
)
