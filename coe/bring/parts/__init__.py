"""Placement files and bills of materials of other programs, made `parts.csv`: docs/placements.md."""
