"""Export: one graph for each stage and each head, for runtimes without PyTorch."""

from anytime.export.write import onnx

__all__ = ["onnx"]
