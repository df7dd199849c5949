"""ASGI middleware that counts and times requests for Prometheus."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from api.response_status import StatusRecorder, route_template
from service.library import prometheus_metrics

__all__ = ["RequestMetricsMiddleware"]


class RequestMetricsMiddleware:
    """Records requests by route template, so that ids do not become labels."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, recorder = time.perf_counter(), StatusRecorder(send)
        try:
            await self.app(scope, receive, recorder)
        finally:
            route = route_template(scope)
            prometheus_metrics.REQUESTS.labels(scope["method"], route, recorder.status or 500).inc()
            prometheus_metrics.REQUEST_SECONDS.labels(route).observe(time.perf_counter() - start)
