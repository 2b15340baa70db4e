"""From models to the IR: ONNX files and PyTorch programs."""
