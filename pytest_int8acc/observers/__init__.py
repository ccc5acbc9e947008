"""What tensors hold, and the scales that follow from it."""
