"""ASGI middleware that counts and times requests for Prometheus."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        start, status = time.perf_counter(), 500

        async def track_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, track_status)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            prometheus_metrics.REQUESTS.labels(scope["method"], route, status).inc()
            prometheus_metrics.REQUEST_SECONDS.labels(route).observe(time.perf_counter() - start)
