"""Puts the routes together into one application, without a socket."""

from __future__ import annotations

from fastapi import FastAPI

from sentinel.api import openapi, web
from sentinel.api.compat import routes
from sentinel.api.context import ApiContext
from sentinel.api.http import errors
from sentinel.api.routes import (
    allocations,
    control,
    history,
    metrics,
    reservations,
    settings,
    status,
    streams,
)

_PARTS = (
    status,
    control,
    reservations,
    allocations,
    settings,
    streams,
    history,
    metrics,
    routes,
)


def make_app(context: ApiContext | None = None) -> FastAPI:
    """Return the application; without a desk, it can only say what it would serve."""
    app = FastAPI(
        title="sentinel",
        version="1",
        openapi_url=None,  # the document is a route of ours, which says how errors really look
        redirect_slashes=False,
    )
    app.state.context = context
    errors.install(app)
    parts = (
        status,
        control,
        reservations,
        allocations,
        settings,
        streams,
        routes,
        history,
        metrics,
    )
    for part in parts:
        app.include_router(part.router)
    app.include_router(openapi.router)
    app.include_router(web.router)
    return app
