"""How a picture and its references are brought onto each other, and where they differ."""
