"""The ASGI application and its routes."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from anytime.serving import inference
from anytime.serving.embedded import samples, samples_for
from anytime.serving.guard import Guard
from anytime.serving.labels import labels, monitor
from anytime.serving.metrics import CONTENT_TYPE
from anytime.serving.predict import predict, stream
from anytime.serving.replies import explain, json_reply
from anytime.serving.rush import rush
from anytime.serving.service import Service

PAGE = Path(__file__).with_name("page")
OPENAPI = Path(__file__).with_name("openapi.json")
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-cache",
}


def create_app(service: Service, token: str | None = None, hosts: Iterable[str] = ()) -> Guard:
    """The application of a server.

    Args:
        service: its models and limits.
        token: that clients must send; None: nobody must.
        hosts: names by which it may be called; empty: any.
    """
    v2, model = "/v2", "/v2/models/{model}"
    routes = [
        Route("/", _file("index.html")),
        Route("/page/{name}", _page_file),
        Route("/models", _models),
        Route("/metrics", _metrics),
        Route("/openapi.json", _openapi),
        Route("/predict", predict, methods=["POST"]),
        Route("/stream", stream, methods=["POST"]),
        Route("/rush", rush, methods=["POST"]),
        Route("/labels", labels, methods=["POST"]),
        Route("/monitor", monitor),
        Route(v2, inference.server),
        Route(f"{v2}/health/live", inference.live),
        Route(f"{v2}/health/ready", inference.ready),
        Route(f"{v2}/repository/index", inference.index, methods=["POST"]),
        Route(f"{v2}/repository/models/{{model}}/load", inference.load, methods=["POST"]),
    ]
    for path in (model, f"{model}/versions/{{version}}"):
        routes += [
            Route(path, inference.metadata),
            Route(f"{path}/ready", inference.ready),
            Route(f"{path}/infer", inference.infer, methods=["POST"]),
        ]
    return Guard(App(service, routes), token, hosts)


class App:
    """Routes each request to the endpoint of its path; exceptions become error replies.

    Args:
        service: available to endpoints as ``request.scope["service"]``.
        routes: the paths; those without parameters are looked up first.
    """

    def __init__(self, service: Service, routes: list[Route]) -> None:
        self.service, self.routes = service, routes
        self._plain = {route.path: route for route in routes if not route.param_convertors}
        self._others = [route for route in routes if route.param_convertors]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["service"] = self.service
        request = Request(scope, receive)
        try:
            try:
                reply = await self._route(scope).endpoint(request)
            except Exception as error:
                reply = explain(request, error)
            await reply(scope, receive, send)
        finally:
            if "exchange" in scope:
                self.service.end(scope["exchange"], request)

    def _route(self, scope: Scope) -> Route:
        path, method = scope["path"], scope["method"]
        route = self._plain.get(path)
        if route is None:
            for route in self._others:
                if match := route.path_regex.match(path):
                    scope["path_params"] = match.groupdict()
                    break
            else:
                raise HTTPException(404, "unknown path; /openapi.json lists all paths")
        methods = route.methods or set()
        if method not in methods:
            raise HTTPException(405, f"{method[:20]} is not allowed here", {"Allow": ", ".join(sorted(methods))})
        return route


def _files() -> dict[str, tuple[bytes, str]]:
    """All static files, read once: no name from a client is ever looked up on disk."""
    paths = [path for path in PAGE.iterdir() if path.suffix in TYPES]
    return {path.name: (path.read_bytes(), TYPES[path.suffix]) for path in [*paths, *samples()]}


FILES = _files()


def _file(name: str):
    async def endpoint(request: Request) -> Response:  # noqa: ARG001
        return _reply(name)

    return endpoint


async def _page_file(request: Request) -> Response:
    return _reply(request.path_params["name"])


def _reply(name: str) -> Response:
    if name not in FILES:
        raise HTTPException(404, "there is no such file")
    content, media_type = FILES[name]
    return Response(content, media_type=media_type, headers=PAGE_HEADERS)


async def _models(request: Request) -> Response:
    service: Service = request.scope["service"]
    models = [
        {**served.about(), "samples": [path.name for path in samples_for(served.loaded.classes)]}
        for served in service.models.values()
    ]
    return json_reply({"models": models, "rush": service.rush, "longest_deadline": service.limits.deadline})


async def _metrics(request: Request) -> Response:
    service: Service = request.scope["service"]
    return Response(service.metrics.text(), media_type=CONTENT_TYPE)


async def _openapi(request: Request) -> Response:
    document = msgspec.json.decode(OPENAPI.read_bytes())
    document["info"]["version"] = request.scope["service"].version
    return json_reply(document)
