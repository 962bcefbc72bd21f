"""Failed assertions inside the shipped suite show their values, as they do in test modules."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("mainspring.testing.conformance")
