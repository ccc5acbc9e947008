"""Where the engines of a case come from: ONNX Runtime or TensorRT, behind one protocol."""
