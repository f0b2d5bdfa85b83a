"""What is inspected: board files, their routing rules, and pictures of components."""
