"""The values that pass between the front end, the tasks and the workflows."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Item(BaseModel):
    """Some pieces of a product."""

    product: str = Field(min_length=1)
    pieces: int = Field(default=1, gt=0)


class Order(BaseModel):
    """The order of a customer."""

    number: int = Field(gt=0)
    email: str
    items: list[Item] = Field(min_length=1)
    cents: int = Field(gt=0)


class Receipt(BaseModel):
    """The end of an order."""

    number: int
    payment: str
    parcel: str
    packed_by: str


class Packed(BaseModel):
    """The signal of the warehouse: the goods are in a box."""

    by: str


class Decision(BaseModel):
    """The signal of the staff: whether a return is accepted."""

    accepted: bool
    by: str


class Delivery(BaseModel):
    """The end of a supplier's delivery."""

    product: str
    pieces: int
