"""``mainspring run``: be a node, and run workers of the tasks in a file."""


def run() -> int:
    """Run a node and workers of the tasks in a file, in one command."""
    return 1
