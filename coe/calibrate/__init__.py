"""`coe-experts calibrate`: thresholds and temperatures of a board's experts, from pictures whose truth is known."""

from coe.surroundings import quiet_matplotlib

quiet_matplotlib()  # before any module here imports it
