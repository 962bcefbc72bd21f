"""``mainspring worker``: run workers of the tasks in a file."""


def worker() -> int:
    """Run workers of the tasks in a file."""
    return 1
