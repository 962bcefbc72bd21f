"""A view that stores an order and submits a job for it.  Celery: `transaction.on_commit(partial(task.delay, pk))`, the same."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from django.db import IntegrityError, transaction
from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from django_shop.models import Order
from shop.orders import charge

if TYPE_CHECKING:
    from django.http import HttpRequest


@csrf_exempt  # the example has no forms
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Store an order; the chain of its jobs starts after the order's transaction has committed."""
    try:
        with transaction.atomic():
            order = Order(product=request.POST["product"], amount=int(request.POST["amount"]))
            transaction.on_commit(partial(submit_charge, order))
            order.save()
    except IntegrityError:
        return JsonResponse({"error": "at most ten of a product"}, status=400)
    return JsonResponse({"order": order.pk}, status=201)


def submit_charge(order: Order) -> None:
    """Submit the first step of the chain."""
    charge.submit(order.pk)
