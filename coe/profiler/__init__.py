"""`coe-profile`: measures a machine once, and finds the configuration that suits a board on it."""

from coe.helpers.surroundings import quiet_matplotlib

quiet_matplotlib()  # before any module here imports it
