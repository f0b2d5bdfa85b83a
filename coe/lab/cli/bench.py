"""`coe-bench`: compares strategies on a board by speed, switches and memory."""

from __future__ import annotations

from functools import partial

from coe.cli.common import application, run
from coe.lab.cli import bench_resident, bench_run, bench_scale, bench_serve, bench_sim, bench_switch

app = application("Compare strategies: in virtual time, or on this machine with real weights files.")
app.command("sim")(bench_sim.sim)
app.command("run")(bench_run.run)
app.command("scale")(bench_scale.scale)
app.command("serve")(bench_serve.serve)
app.command("switch")(bench_switch.switch)
app.command("resident")(bench_resident.resident)


main = partial(run, app)
