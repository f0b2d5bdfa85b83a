"""Learning from photographs, choosing among kinds, and calibrating: thresholds, temperatures, limits."""

from coe.helpers.surroundings import quiet_matplotlib

quiet_matplotlib()  # before any module here imports it
