"""How people see colours: contrast by WCAG, the lack of one kind of cones by Machado, differences by CIEDE2000."""

from __future__ import annotations

from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt
from typing import Final

Triple = tuple[float, float, float]
Matrix = tuple[Triple, Triple, Triple]

EYES: Final[dict[str, Matrix]] = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""Machado, Oliveira, Fernandes 2009, severity 1: linear RGB to linear RGB."""
_XYZ: Final[Matrix] = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE: Final = (0.95047, 1.0, 1.08883)


def linear(colour: str) -> Triple:
    """Return linear red, green and blue of ``#rrggbb``, or of ``#rgb``."""
    digits = colour.removeprefix("#")
    if len(digits) == len("rgb"):
        digits = "".join(digit * 2 for digit in digits)
    red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
    return _linear(red), _linear(green), _linear(blue)


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it: 1 to 21."""
    dark, light = sorted(sum(part * by for part, by in zip(linear(c), _XYZ[1], strict=True)) for c in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(colour: str, eye: str = "all cones") -> Triple:
    """Return a colour in CIE L*a*b*, as an eye of `EYES` sees it."""
    seen = [min(max(part, 0.0), 1.0) for part in _times(EYES[eye], linear(colour))]
    x, y, z = (_cube_root(part / white) for part, white in zip(_times(_XYZ, seen), _WHITE, strict=True))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _times(matrix: Matrix, vector: Triple | list[float]) -> list[float]:
    return [sum(by * part for by, part in zip(row, vector, strict=True)) for row in matrix]


def _cube_root(part: float) -> float:
    return part ** (1 / 3) if part > (6 / 29) ** 3 else part / (3 * (6 / 29) ** 2) + 4 / 29


def difference(one: Triple, other: Triple) -> float:
    """Return CIEDE2000 of two colours in L*a*b*."""
    l1, a1, b1 = one
    l2, a2, b2 = other
    g = 0.5 * (1 - _seventh((hypot(a1, b1) + hypot(a2, b2)) / 2))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = hypot(a1, b1), hypot(a2, b2)
    h1, h2 = degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    turn, h = 0.0, h1 + h2
    if c1 * c2:
        turn = (h2 - h1 + 180) % 360 - 180
        h = (h1 + turn / 2) % 360
    c, l_mean = (c1 + c2) / 2, (l1 + l2) / 2
    t = (
        1
        - 0.17 * cos(radians(h - 30))
        + 0.24 * cos(radians(2 * h))
        + 0.32 * cos(radians(3 * h + 6))
        - 0.20 * cos(radians(4 * h - 63))
    )
    by_l = (l2 - l1) / (1 + 0.015 * (l_mean - 50) ** 2 / sqrt(20 + (l_mean - 50) ** 2))
    by_c = (c2 - c1) / (1 + 0.045 * c)
    by_h = 2 * sqrt(c1 * c2) * sin(radians(turn / 2)) / (1 + 0.015 * c * t)
    rotation = -2 * _seventh(c) * sin(radians(60 * exp(-(((h - 275) / 25) ** 2))))
    return sqrt(by_l**2 + by_c**2 + by_h**2 + rotation * by_c * by_h)


def _seventh(chroma: float) -> float:
    return sqrt(chroma**7 / (chroma**7 + 25**7))
