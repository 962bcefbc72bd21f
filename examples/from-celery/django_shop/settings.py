"""The minimal settings of a Django project."""

from __future__ import annotations

SECRET_KEY = "only-for-this-example"  # a real project reads it from its environment
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "django_shop.urls"
INSTALLED_APPS = ["django_shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
