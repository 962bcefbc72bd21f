from __future__ import annotations

from mainspring.cli.display import did_you_mean


def test_near_names() -> None:
    assert did_you_mean("resise", ["resize", "mail"]) == "; did you mean 'resize'?"
    assert did_you_mean("resise", ["resizes", "resize", "mail"], most=3) == "; did you mean 'resize' or 'resizes'?"
    assert did_you_mean("aab", ["aac", "aad", "aae"], most=3).count("'") == 6
    assert did_you_mean("resise", ["mail"]) == ""
    assert did_you_mean("resise", []) == ""
