"""TensorRT 8.6 to 11 and TensorRT-RTX through Polygraphy: engines are built in child processes."""
