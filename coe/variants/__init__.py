"""The forms in which an expert runs: its parts, int8 and q8, and how far each agrees with fp32."""
