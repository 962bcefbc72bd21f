"""Documents are printed by an office's print server; each has a printer for itself, and no worker waits while it is printed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mainspring import App, Retry
from mainspring.elsewhere import HttpMeta, HttpRefusedError, HttpWork

app = App()
printers = app.resource("printer", items={"p1": {"colour"}, "p2": set()})


@dataclass
class Document:
    file: str
    pages: int = 1


@dataclass
class Order:
    """A document for a printer."""

    file: str
    pages: int
    printer: str


class PrintServer(HttpWork):
    """Prints a document; it says what is to be printed where, and the print server does the rest."""

    def __init__(self) -> None:
        super().__init__(
            os.environ.get("PRINTERS", "http://127.0.0.1:8080"),
            submit="POST /jobs",
            status="GET /jobs/{id}",
            cancel="DELETE /jobs/{id}",
            running=("printing",),
            networks=("127.0.0.0/8",),
        )

    async def submit(self, args: Order, key: str) -> HttpMeta:
        return await super().submit(args, key)


retry = Retry(max_attempts=3, initial="2s", never=(HttpRefusedError,))
printing = app.external(name="printing", every="200ms", timeout="1h", retry=retry)(PrintServer)


@app.workflow(timeout="1d")
async def letter(document: Document) -> str:
    """Print on any printer."""
    async with printers.hold() as held:
        return str(await printing.submit(Order(document.file, document.pages, held.item)))


@app.workflow(timeout="1d")
async def poster(document: Document) -> str:
    """Print in colour."""
    async with printers.hold(where={"colour"}, timeout="2h") as held:
        return str(await printing.submit(Order(document.file, document.pages, held.item)))
