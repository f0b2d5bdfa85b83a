"""`GET /metrics` for Prometheus. Law: figures come from the database at each scrape, so that no restart resets them.

docs/serve.md lists the names.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from sqlalchemy import Connection
from starlette.responses import Response

from coe.serve.clock import SECOND_US
from coe.serve.database import board_rows, call_rows, event_log, fault_log, hourly, outbox, states
from coe.serve.enums import Intake
from coe.serve.gate.operation_routes import ANY, Router, Visit

router = Router()


@router.add("GET", "/metrics", ANY, answers={200: "text"})
async def get_metrics(visit: Visit) -> Response:
    """Figures for Prometheus."""
    now_us = visit.gate.now_us()
    families = await visit.gate.read(lambda connection: list(_metrics(connection, now_us)))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(families))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Collected:
    """Metrics that are already computed, in the form in which the library collects them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def _metrics(connection: Connection, now_us: int) -> Iterator[Metric]:
    decided = CounterMetricFamily("coe_boards_decided", "Boards by the verdict of their decision.", labels=["verdict"])
    for verdict, number in hourly.decisions(connection).items():
        decided.add_metric([verdict.value], number)
    yield decided
    yield GaugeMetricFamily(
        "coe_boards_undecided", "Boards that wait for their decision.", board_rows.count_undecided(connection)
    )
    yield GaugeMetricFamily("coe_calls_open", "Calls that nobody has answered.", call_rows.count_open(connection))
    yield GaugeMetricFamily("coe_faults_open", "Open faults.", len(fault_log.open_faults(connection)))
    yield CounterMetricFamily("coe_events", "Events that were appended.", event_log.newest_id(connection))
    intake = GaugeMetricFamily("coe_intake_open", "1 if boards are accepted.")
    intake.add_metric([], states.intake(connection) is Intake.OPEN)
    yield intake
    line = GaugeMetricFamily("coe_line_state", "1 for the state of the line.", labels=["state"])
    line.add_metric([states.line(connection).value], 1)
    yield line
    waiting = GaugeMetricFamily("coe_outbox_waiting", "Events that a sink has not been told.", labels=["sink"])
    oldest = GaugeMetricFamily("coe_outbox_oldest_seconds", "Age of the oldest such event.", labels=["sink"])
    for queue in outbox.queues(connection):
        waiting.add_metric([queue.sink], queue.waiting)
        oldest.add_metric([queue.sink], (now_us - queue.oldest_us) / SECOND_US if queue.oldest_us else 0.0)
    yield waiting
    yield oldest
    beats = GaugeMetricFamily(
        "coe_heartbeat_age_seconds", "Time since a process gave a sign of life.", labels=["process"]
    )
    for process, beat in states.heartbeats(connection).items():
        beats.add_metric([process.value], (now_us - beat.beat_us) / SECOND_US)
    yield beats
