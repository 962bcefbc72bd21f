"""All routes of the HTTP API: those of requests that declare their place (`api.declaration.Http`), and `special_routes`."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mainspring.api import (
    access,
    functions,
    jobs,
    namespaces,
    nodes,
    operations,
    schedules,
    submitting,
    workflows,
)
from mainspring.api.request import Code, Touches, answer_type, requests_of, summary_of
from mainspring.faces.rest import special_routes
from mainspring.faces.rest.idempotency import version_of
from mainspring.faces.rest.registry import BODY_LIMIT, ROOT, N, Route, path_in
from mainspring.faces.rest.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from mainspring.api.declaration import Http
    from mainspring.api.request import Request

SUBJECTS: Final = (access, functions, jobs, namespaces, nodes, operations, schedules, submitting, workflows)
"""The modules with requests."""
REVISION: Final = "revision"
"""The field of an answer with the version of its object, and of a request with the one that it changes."""
_FIELD: Final = re.compile(r"\{([a-z_]+)\}")


def routes_of(subject: ModuleType) -> Iterator[Route]:
    """Return the routes of the requests of a module, in their order."""
    return (route_of(kind) for kind in requests_of(subject) if kind.http is not None)


def route_of(kind: type[Request[Any]]) -> Route:
    """Return the route of a request that declares one."""
    http = kind.http
    assert http is not None
    answer = answer_type(kind)
    if answer is type(None):
        answer = None
    # Changes make functions that do not exist.
    found = None if kind.touches is None or kind.touches is Touches.FUNCTION else kind.touches.code
    takes_version = http.method in {"PUT", "PATCH", "DELETE"} and REVISION in kind.__struct_fields__
    return Route(
        method=http.method,
        path=ROOT + http.path if http.path.startswith("/") else f"{N}/{http.path}",
        request=kind,
        answer=answer,
        summary=http.summary or summary_of(kind),
        name=http.name,
        status=http.status,
        others=http.others,
        reply=partial(_reply_with_place, http) if http.location else None,
        problems=(
            *((found,) if found is not None else ()),
            *http.problems,
            *((Code.CHANGED, "precondition_required") if takes_version else ()),
        ),
        if_match=REVISION if takes_version else "",
        version=version_of if REVISION in getattr(answer, "__struct_fields__", ()) else None,
        example=http.example,
        answered=http.answered,
        limit=BODY_LIMIT if http.limit is None else http.limit,
        shows_secret=http.secret,
        stream=http.stream,
        resume=http.resume,
    )


def _reply_with_place(http: Http, answer: Any, request: Request[Any]) -> Any:
    """Return the answer to a request that makes something, with its place."""
    names = _FIELD.findall(http.location)
    if any(getattr(answer, name) is None for name in names):
        return Reply(answer, 200)
    segments = [
        str(getattr(answer, part[1:-1])) if _FIELD.fullmatch(part) else part for part in http.location.split("/")
    ]
    status = 200 if getattr(answer, "joined", False) else http.status
    return Reply(answer, status, {"Location": path_in(request.namespace, *segments)})


ROUTES: Final = (*(route for subject in SUBJECTS for route in routes_of(subject)), *special_routes.ROUTES)
