"""Codecs for schedules, their states and the rows of their fire times in stores whose values are bytes."""

from __future__ import annotations

from typing import Final

import msgspec

from mainspring.schedules.model import Fire, Schedule, ScheduleState

encode: Final = msgspec.msgpack.Encoder().encode
decode_schedule: Final = msgspec.msgpack.Decoder(Schedule).decode
decode_state: Final = msgspec.msgpack.Decoder(ScheduleState).decode
decode_fire: Final = msgspec.msgpack.Decoder(Fire).decode
