"""Runs workflow code in a worker: activates it with the events of its history and collects its commands.

`instance` is one run in a worker, without I/O; `loop` is its event loop, `api` is what its code calls. `matching` compares a
replay with the history. `guards` and `lint` find code that a replay cannot repeat.
"""
