"""Export: one graph for each stage and each head, for runtimes without PyTorch."""

from anytime.export.quantization import int8
from anytime.export.write import executorch, onnx

__all__ = ["executorch", "int8", "onnx"]
