"""The lists in docs/reference/http-api.md: ``python -m tests.docs.http_api`` writes them from the routes."""

from __future__ import annotations

import re

from mainspring.faces.rest.problems import KINDS
from mainspring.faces.rest.routes import ROUTES
from mainspring.faces.rest.routes.documents import with_document

from .pages import ROOT

PAGE = ROOT / "docs" / "reference" / "http-api.md"


def problems() -> str:
    rows = [f"| `{one.code}` | {one.status} | {one.title} |" for one in KINDS.values()]
    return "\n".join(["| type after `urn:mainspring:problem:` | status | title |", "|---|---|---|", *rows])


def paths() -> str:
    rows = [
        f"| {one.method} | `{one.path.removeprefix('/api/v1')}` | `{one.permission.value}` | {one.summary} |"
        for one in sorted(with_document(ROUTES, version=""), key=lambda one: (one.path, one.method))
    ]
    return "\n".join(["| method | path after `/api/v1` | permission | |", "|---|---|---|---|", *rows])


def written(text: str) -> str:
    """Return the page with today's lists."""
    for name, content in (("problems", problems()), ("paths", paths())):
        pattern = rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, new=content: f"{found[1]}{new}\n{found[2]}", text, flags=re.DOTALL)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
