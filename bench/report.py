"""The results as a table for people and as a file for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from measure import Outcome

HEADINGS = ("measure", "required", "measured: median (min-max)", "compared with", "ratio", "met?")


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a Markdown table, aligned for reading as plain text."""
    rows = [HEADINGS, *map(_row, outcomes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def write_json(path: Path, outcomes: Sequence[Outcome], header: dict[str, Any]) -> None:
    path.write_text(json.dumps({**header, "cells": [_as_json(outcome) for outcome in outcomes]}, indent=1) + "\n")


def _row(outcome: Outcome) -> tuple[str, ...]:
    cell = outcome.cell
    measured = [_figures(outcome, side) for side in range(len(cell.sides))]
    against = [f"{side.label} {text}" for side, text in zip(cell.sides[1:], measured[1:], strict=True)]
    ratio = f"{outcome.ratio:.3g}" if outcome.ratio is not None else ""
    met = {True: "yes", False: "NO", None: "FAILED" if outcome.failed else ""}[outcome.met]
    return (cell.measure, cell.required or "-", measured[0], "; ".join(against), ratio, met)


def _figures(outcome: Outcome, side: int) -> str:
    median = outcome.median(side)
    if median is None:
        return outcome.problems.get(side, "not measured").strip().splitlines()[-1].replace("|", "/")[-80:]
    figures = [run.figure for run in outcome.runs[side]]
    spread = f" ({_number(min(figures))}-{_number(max(figures))})" if len(figures) > 1 else ""
    return f"{_number(median)} {outcome.cell.unit}{spread}"


def _number(value: float) -> str:
    """Return a number with three significant digits, and thousands as k: 1.21k, 98.4k, 0.53."""
    for limit, divisor, suffix in ((1e6, 1e6, "M"), (1e3, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / divisor:.3g}{suffix}"
    return f"{value:.3g}"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    cell = outcome.cell
    return {
        "key": cell.key,
        "measure": cell.measure,
        "required": cell.required,
        "unit": cell.unit,
        "ratio": outcome.ratio,
        "met": outcome.met,
        "sides": [
            {
                "label": side.label,
                "server": side.contestant.command,
                "median": outcome.median(index),
                "problem": outcome.problems.get(index),
                "figures": [run.figure for run in runs],
                "runs": [run.details for run in runs],
            }
            for index, (side, runs) in enumerate(zip(cell.sides, outcome.runs, strict=True))
        ],
    }
