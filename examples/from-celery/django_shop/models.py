"""The site's own orders."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """A customer's order."""

    product = models.CharField(max_length=100)
    amount = models.PositiveIntegerField()

    class Meta:
        constraints = (models.CheckConstraint(condition=models.Q(amount__lte=10), name="at_most_ten"),)

    def __str__(self) -> str:
        return f"{self.amount} x {self.product}"
