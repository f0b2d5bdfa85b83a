"""What decides about several boxes: where experts are at home, and which box takes each stage."""
