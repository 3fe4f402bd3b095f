"""Puts the routes together into one application, without a socket."""

from __future__ import annotations

from fastapi import FastAPI

from sentinel.service import document, page, problems
from sentinel.service.desk import Desk
from sentinel.service.routes import (
    allocating,
    events,
    gpu_manager,
    history,
    looking,
    metrics,
    ordering,
    reserving,
    settings,
)

__all__ = ["make_app"]

_PARTS = (
    looking,
    ordering,
    reserving,
    allocating,
    settings,
    events,
    history,
    metrics,
    gpu_manager,
)


def make_app(desk: Desk | None = None) -> FastAPI:
    """Return the application; without a desk, it can only say what it would serve."""
    app = FastAPI(
        title="sentinel",
        version="1",
        openapi_url=None,  # the document is a route of ours, which says how errors really look
        redirect_slashes=False,
    )
    app.state.desk = desk
    problems.install(app)
    parts = (
        looking,
        ordering,
        reserving,
        allocating,
        settings,
        events,
        gpu_manager,
        history,
        metrics,
    )
    for part in parts:
        app.include_router(part.router)
    app.include_router(document.router)
    app.include_router(page.router)
    return app
