"""Documents are printed by an office's print server; each job has a printer for itself, and holds no worker while it prints."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from mainspring import App, Retry, current_job
from mainspring.elsewhere import HttpMeta, HttpRefusedError, HttpWork

app = App()
printers = app.resource("printer", items={"p1": {"colour"}, "p2": set()})
retry = Retry(max_attempts=3, initial="2s", never=(HttpRefusedError,))


@dataclass
class Document:
    file: str
    pages: int = 1


class PrintServer(HttpWork):
    """Sends a document to the printer that its job holds."""

    def __init__(self) -> None:
        super().__init__(
            os.environ.get("PRINTERS", "http://127.0.0.1:8080"),
            submit="POST /jobs",
            status="GET /jobs/{id}",
            cancel="DELETE /jobs/{id}",
            running=("printing",),
            networks=("127.0.0.0/8",),
        )

    async def submit(self, args: Document, key: str) -> HttpMeta:
        held = current_job().resource(printers)
        return await super().submit({**asdict(args), "printer": held.item}, key)


letter = app.external(name="letter", every="200ms", timeout="1h", retry=retry, uses={printers: 1})(PrintServer)
poster = app.external(name="poster", every="200ms", timeout="1h", retry=retry, uses={printers["colour"]: 1})(
    PrintServer
)
