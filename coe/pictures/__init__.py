"""Finding, reading and proving image files."""
