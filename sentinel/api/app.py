"""The API's application: all routes, without a socket."""

from __future__ import annotations

from fastapi import FastAPI

from sentinel.api import bodies, openapi, page
from sentinel.api.compat import routes as compat
from sentinel.api.compat.readings import Monitoring
from sentinel.api.context import ApiContext
from sentinel.api.routes import (
    allocations,
    burnin,
    control,
    history,
    metrics,
    reservations,
    sessions,
    settings,
    status,
    streams,
    wrong_results,
)

#: In the order of the OpenAPI document.
_ROUTES = (
    status,
    control,
    wrong_results,
    reservations,
    allocations,
    burnin,
    settings,
    sessions,
    streams,
    compat,
    history,
    metrics,
    openapi,
    page,
)


def make_app(context: ApiContext | None = None) -> FastAPI:
    """Build the application; without a context, only its OpenAPI document can be read."""
    app = FastAPI(
        title="sentinel",
        version="1",
        openapi_url=None,  # FastAPI's own document has another format of errors
        redirect_slashes=False,
    )
    app.state.context = context
    app.state.monitoring = Monitoring()
    bodies.install(app, {compat.PREFIX: compat.encode_error})
    for module in _ROUTES:
        app.include_router(module.router)
    return app
