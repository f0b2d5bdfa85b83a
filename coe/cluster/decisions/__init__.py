"""What decides about several boxes: where experts lie, and which box takes each stage."""
