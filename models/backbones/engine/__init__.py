"""Frozen towers as graphs that ONNX Runtime compiles for the CPU. Nothing here imports torch or transformers."""
