"""Real models out of wheels: what the plugin reports of each, and whether plain ONNX Runtime agrees."""
