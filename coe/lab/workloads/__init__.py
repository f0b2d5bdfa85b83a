"""What a benchmark runs: tasks, trace files, recorded runs, synthetic boards and pictures."""
