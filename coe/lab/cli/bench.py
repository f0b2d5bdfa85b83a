"""`coe-bench`: compares strategies on a board by speed, switches and memory."""

from __future__ import annotations

from functools import partial

from coe.cli.common import application, run
from coe.cli.options import add
from coe.lab.cli.bench_resident import Resident
from coe.lab.cli.bench_run import Run
from coe.lab.cli.bench_scale import Scale
from coe.lab.cli.bench_serve import Serve
from coe.lab.cli.bench_sim import Sim
from coe.lab.cli.bench_switch import Switch

app = application("Compare strategies in virtual time or on this machine, and measure parts of CoE.")
add(app, Sim, Run, Scale, Serve, Switch, Resident)
main = partial(run, app)
