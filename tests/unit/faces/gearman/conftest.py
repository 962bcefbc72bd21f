from __future__ import annotations

import pytest

from .a_face import Node


@pytest.fixture
def node() -> Node:
    return Node()
