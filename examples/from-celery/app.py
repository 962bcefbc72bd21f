"""The App of the shop: its tasks are in the modules of the package `shop`.

mainspring run app.py
"""

from __future__ import annotations

from mainspring import App

app = App()  # submits to MAINSPRING_SERVER
app.include("shop")  # as Celery's `include=[…]`: workers import the modules with tasks
