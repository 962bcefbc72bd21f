"""Measure Mainspring and the projects that it is compared with, and print the table of figures and requirements.

python bench/run.py                       everything, about three quarters of an hour
python bench/run.py --quick               a smoke run of some minutes; its figures mean little
python bench/run.py --only fg --only rss  the cells whose keys begin with fg or rss; --list names all
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import cells
import elsewhere
import generator
import holds
import http_api
import limits
import machine
import pages
import postgres_cells
import python_api
import report
import servers
import starts
import viewers
import workflow_cells
import zookeeper_cells
from filled import Fill
from measure import Cell, Outcome, Scale, measure
from postgres_fleet import fleet
from scenarios import MILLION

import postgres


def main() -> int:
    """Return 0 if everything could be measured, 1 if a server or the generator failed, 2 for wrong usage."""
    options = _parse(sys.argv[1:])
    sqlite, memory = servers.mainspring(options.server_cmd)
    fill = Fill(options.jobs or Scale(options.quick).count(MILLION, 50_000), options.filled)
    every = (
        cells.cells(sqlite, memory)
        + python_api.cells(sqlite)
        + http_api.cells("http", "SQLite", sqlite, fill)
        + pages.cells("pages", "SQLite", sqlite, fill)
        + viewers.cells("viewers", "SQLite", sqlite)
        + limits.cells(sqlite, memory)
        + elsewhere.cells(sqlite)
        + holds.cells("sqlite-holds", "SQLite", sqlite)
        + holds.cells("memory-holds", "`memory://`", memory)
        + starts.cells(memory)
        + postgres_cells.cells(fill, options.server_cmd)
        + zookeeper_cells.cells(options.server_cmd)
    )
    if not options.base or (options.base / "src" / "mainspring" / "workflow.py").exists():
        every += workflow_cells.cells(sqlite)
        every += workflow_cells.on_postgres(
            postgres.mainspring(options.server_cmd), fleet(1, options.server_cmd), fleet(3, options.server_cmd)
        )
        every += workflow_cells.at_scale(postgres.mainspring(options.server_cmd), fleet(3, options.server_cmd))
    if options.base and not (options.base / "src" / "mainspring").is_dir():
        print(f"{options.base} has no src/mainspring; make it with: git archive COMMIT | tar x -C DIR", file=sys.stderr)
        return 2
    if options.base:
        every = [compared for cell in every if (compared := cell.compared_with(options.base))]
    chosen = _choose(every, options)
    if not chosen:
        print(f"no cell begins with {', '.join(options.only)}; --list names them", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{cell.key:28} {cell.measure}" for cell in chosen))
        return 0
    generator.build()
    directory = Path(options.dir)
    header = {
        "started_at": datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251 - a report's date is wall-clock time
        "command": sys.argv,
        "quick": options.quick,
        "repeat": options.repeat,
        "machine": machine.describe(directory),
    }
    started_at = time.monotonic()
    outcomes = [_measure(cell, options, directory) for cell in chosen]
    header["seconds"] = round(time.monotonic() - started_at)
    _publish(outcomes, header, Path(options.output))
    return 1 if any(outcome.failed for outcome in outcomes) else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small counts, one turn for each side")
    parser.add_argument(
        "--only", action="append", default=[], metavar="KEY", help="only cells whose key begins with KEY"
    )
    parser.add_argument("--list", action="store_true", help="name the cells and stop")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="turns for each side (default 3)")
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="jobs behind which lists are measured over HTTP (default 1,000,000)"
    )
    parser.add_argument(
        "--filled", type=Path, metavar="DIR", help="keep the stores with these jobs here, for other turns and runs"
    )
    parser.add_argument(
        "--server-cmd",
        metavar="COMMAND",
        help="measure this server in Mainspring's place; {store} {dir} {port} are filled in",
    )
    parser.add_argument(
        "--base",
        type=Path,
        metavar="DIR",
        help="compare each row of Mainspring only with the Mainspring whose sources are in DIR/src, in turns",
    )
    parser.add_argument(
        "--dir",
        default=tempfile.gettempdir(),
        metavar="DIR",
        help="where servers keep their files; on a real disk, or durability costs nothing (default %(default)s)",
    )
    parser.add_argument(
        "--output", default=str(generator.HERE / "results.json"), metavar="FILE", help="default %(default)s"
    )
    return parser.parse_args(arguments)


def _choose(all_cells: list[Cell], options: argparse.Namespace) -> list[Cell]:
    return [
        cell
        for cell in all_cells
        if (not options.only or any(cell.key.startswith(only) for only in options.only))
        and not (cell.full_only and options.quick)
    ]


def _measure(cell: Cell, options: argparse.Namespace, directory: Path) -> Outcome:
    print(cell.measure, file=sys.stderr, flush=True)
    return measure(cell, Scale(options.quick), options.repeat, directory)


def _publish(outcomes: list[Outcome], header: dict[str, object], output: Path) -> None:
    described = header["machine"]
    assert isinstance(described, dict)
    print(f"\n{report.table(outcomes)}\n")
    print("\n".join(f"{key}: {value}" for key, value in described.items()))
    if header["quick"]:
        print("\nThis was a quick run: counts are small, and the figures mean little.")
    report.write_json(output, outcomes, header)
    print(f"\nwritten to {output}")


if __name__ == "__main__":
    sys.exit(main())
