"""The App. `mainspring run shop/app.py` starts a node and a worker for all tasks, schedules and workflows of the package."""

from __future__ import annotations

from mainspring import App

app = App(name="shop")  # the name by which a server knows whose schedules these are
app.include("shop.tasks", "shop.workflows")
