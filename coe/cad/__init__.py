"""Files of CAD programs and placement machines: placement files and bills of materials, read by dialects."""
