"""``/metrics``, ``/healthz`` and ``/readyz`` of a node, for monitoring and load balancers, in front of everything else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mainspring.faces.http.figures import Distribution, Measure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send


HEALTH: Final = ("/healthz", "/readyz")
"""The paths of health checks."""
MONITORING: Final = frozenset({"/metrics", *HEALTH})


class NodeView(Protocol):
    """The state of a node that these pages show. The methods return at once."""

    def healthy(self) -> bool:
        """Return whether the node works at all; False requests a restart."""

    def ready(self) -> bool:
        """Return whether the node accepts new work: False while it starts or drains, or its store refuses writes."""


Figures = Callable[[], "Iterable[Measure | Distribution]"]
"""Returns the current figures, at once."""


Guard = Callable[["Scope", "Receive", "Send", "ASGIApp"], Awaitable[None]]
"""Passes a request to an application, or refuses it."""


def http_app(
    view: NodeView, figures: Figures, *, version: str, others: ASGIApp | None = None, guard: Guard | None = None
) -> ASGIApp:
    """Return the ASGI application of a node's monitoring pages; ``version`` is the server's.

    ``others`` answers all other paths. ``guard`` decides who sees ``/metrics``; by default everybody does.
    """
    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(_NodeCollector(figures, version))

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def healthz(_request: Request) -> Response:
        return _verdict(view.healthy(), "ok", "unhealthy")

    async def readyz(_request: Request) -> Response:
        return _verdict(view.ready(), "ready", "not ready")

    pages = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)])
    if others is None:
        return pages

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path not in MONITORING:
            await others(scope, receive, send)
        elif guard is not None and path not in HEALTH:
            await guard(scope, receive, send, pages)
        else:
            await pages(scope, receive, send)

    return either


def _verdict(good: bool, yes: str, no: str) -> Response:
    headers = {"Cache-Control": "no-store"}
    return PlainTextResponse(f"{yes if good else no}\n", status_code=200 if good else 503, headers=headers)


class _NodeCollector:
    """Converts a node's figures to Prometheus' metric families at each scrape."""

    def __init__(self, figures: Figures, version: str) -> None:
        self._figures = figures
        self._version = version

    def collect(self) -> Iterator[Metric]:
        build = InfoMetricFamily("mainspring_build", "Version of the server.")
        build.add_metric([], {"version": self._version})
        yield build
        for measure in self._figures():
            if isinstance(measure, Distribution):
                yield _histogram(measure)
                continue
            kind = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
            family = kind(measure.name, measure.help, labels=[])
            for (
                labels,
                value,
            ) in measure.samples:  # not `add_metric`, which takes the same labels for all: some have a namespace
                family.add_sample(measure.name, dict(labels), value)
            yield family


def _histogram(measure: Distribution) -> Metric:
    family = HistogramMetricFamily(measure.name, measure.help, labels=[])
    bounds = [*(str(float(bound)) for bound in measure.bounds), "+Inf"]
    for labels, counts, total in measure.samples:
        number = 0
        for bound, number in zip(bounds, accumulate(counts), strict=True):
            family.add_sample(f"{measure.name}_bucket", {**labels, "le": bound}, number)
        family.add_sample(f"{measure.name}_count", dict(labels), number)
        family.add_sample(f"{measure.name}_sum", dict(labels), total)
    return family
