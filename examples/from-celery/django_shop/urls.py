"""The site's only page."""

from __future__ import annotations

from django.urls import path

from django_shop.views import place_order

urlpatterns = [path("orders", place_order)]
