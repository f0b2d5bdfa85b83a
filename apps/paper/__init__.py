"""Code for the figures of the CoServe paper only; `python -m apps.paper --help` lists the commands."""

from coe.surroundings import quiet_matplotlib

quiet_matplotlib()  # before any module here imports it
