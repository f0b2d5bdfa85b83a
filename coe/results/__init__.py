"""Verdicts as records: metrics, files that survive a kill, summaries, reports, traces."""
