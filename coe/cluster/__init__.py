"""Several boxes as one line: the head in the process of the line, a box on each machine, and Ray between them."""
