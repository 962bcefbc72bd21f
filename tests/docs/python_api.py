"""The table of methods in docs/reference/python-api.md: ``python -m tests.docs.python_api`` writes it."""

from __future__ import annotations

import importlib
import inspect
import re

from checks.operating import FILES

from .pages import ROOT

PAGE = ROOT / "docs" / "reference" / "python-api.md"
PLACES = {
    "JobActs": "job",
    "RunActs": "run",
    "Jobs": "app.jobs",
    "Runs": "app.runs",
    "Functions": "app.functions",
    "Schedules": "app.schedules",
}


def operate() -> str:
    rows = []
    for file in FILES:
        for group in file.groups:
            kind = getattr(importlib.import_module(f"mainspring.client.{file.name[:-3]}"), group.name)
            for method in group.methods:
                call = getattr(kind, method.name)
                names = [one.name for one in inspect.signature(call).parameters.values() if one.name != "self"]
                if method.fields:
                    names[-1:] = method.fields.members
                sentence = " ".join((call.__doc__ or "").split("\n\n")[0].split())
                rows.append(f"| `{PLACES[group.name]}.{method.name}({', '.join(names)})` | {sentence} |")
    return "\n".join(rows).replace("``", "`")


def written(text: str) -> str:
    """Return the page with the methods of today."""
    table = operate()
    pattern = r"(<!-- operate: [^\n]*-->\n).*?(<!-- end -->)"
    return re.sub(
        pattern, lambda found: f"{found[1]}| method | does |\n|---|---|\n{table}\n{found[2]}", text, flags=re.DOTALL
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
