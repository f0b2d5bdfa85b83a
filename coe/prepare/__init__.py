"""Preparing experts: folding, laying out, measuring how far each variant agrees with fp32."""
