"""Export: one graph for each stage and each head, for runtimes without PyTorch."""

from anytime.export.exported import ExportedNetwork, load_exported
from anytime.export.quantization import int8
from anytime.export.write import executorch, onnx

__all__ = ["ExportedNetwork", "executorch", "int8", "load_exported", "onnx"]
