"""Units: which texts are units, and how they convert."""

# ruff: noqa: SIM905 - a table of words reads better as one text

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["COUNTED", "SCALES", "known_unit", "unit_key"]

# key -> (dimension, factor to the unit of that dimension)
_TABLE: dict[str, tuple[str, Fraction]] = {}


def _add(dimension: str, factor: Fraction | int | str, *names: str) -> None:
    for name in names:
        _TABLE[name] = (dimension, Fraction(factor))


_add("length", "0.001", "mm", "millimeter", "millimetre")
_add("length", "0.01", "cm", "centimeter", "centimetre")
_add("length", "0.1", "dm", "decimeter", "decimetre")
_add("length", 1, "m", "meter", "metre")
_add("length", 1000, "km", "kilometer", "kilometre")
_add("length", "0.0254", "in", "inch", "inches")
_add("length", "0.3048", "ft", "foot", "feet")
_add("length", "0.9144", "yd", "yard")
_add("length", "1609.344", "mi", "mile")
_add("mass", "0.000001", "mg", "milligram")
_add("mass", "0.001", "g", "gram")
_add("mass", 1, "kg", "kilogram")
_add("mass", 1000, "tonne")
_add("mass", "0.45359237", "lb", "lbs", "pound")
_add("mass", "0.028349523125", "oz", "ounce")
_add("time", 1, "s", "sec", "second")
_add("time", "0.001", "ms", "millisecond")
_add("time", 60, "min", "minute")
_add("time", 3600, "h", "hr", "hrs", "hour")
_add("time", 86400, "day")
_add("time", 604800, "week")
_add("months", 1, "month")
_add("months", 12, "yr", "year")
_add("volume", 1, "l", "liter", "litre")
_add("volume", "0.001", "ml", "milliliter", "millilitre")
_add("volume", "3.785411784", "gallon", "gal")
_add("money", 1, "$", "dollar", "usd")
_add("money", "0.01", "cent", "¢")
_add("euro", 1, "€", "euro", "eur")
_add("sterling", 1, "£", "gbp")
_add("rupee", 1, "₹", "rupee", "rs")
_add("yuan", 1, "yuan", "rmb")
_add("angle", 1, "degree", "deg", "°")
_add("radian", 1, "radian", "rad")
_add("percent", 1, "%", "percent", "pct")
_add("speed", Fraction(1000, 3600), "kph", "kmph")
_add("speed", Fraction("1609.344") / 3600, "mph")
_add("frequency", 1, "hz", "hertz")
_add("energy", 1, "j", "joule")
_add("force", 1, "n", "newton")
_add("power", 1, "w", "watt")
_add("charge", 1, "v", "volt")
_add("temperature", 1, "celsius", "°c")
_add("fahrenheit", 1, "fahrenheit", "°f")
_add("units", 1, "unit")

COUNTED = frozenset(
    "apple ball book bottle box boy bag candy card car cat chair chicken child children coin cookie cow cup digit dog "
    "edge egg face flower friend game girl hat house integer item kid letter marble match men man minute mile number "
    "orange page pair partition path pen pencil people person piece player point prime rectangle row school "
    "side sock solution square step student subset team ticket tile time toy tree triangle trip value vertex vertices "
    "vote way week win woman women word worker year zero zeros bird fish sheep slice sandwich crayon sticker shirt "
    "color pencils glass muffin cupcake cake pizza penny pennies nickel dime quarter seat table guest lamp".split()
)
"""Nouns that may follow a count without changing it."""

SCALES = {
    "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip
"""Words that multiply what they follow."""

_ABBREVIATIONS_KEEP_CASE = frozenset({"mW", "MW", "Mg", "PA", "Ms"})
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}


def _singular(word: str) -> str | None:
    for candidate in (word, word.removesuffix("."), word.removesuffix("s"), word.removesuffix("es")):
        if candidate in _TABLE:
            return candidate
    return None


def known_unit(text: str) -> tuple[tuple[tuple[str, int], ...], Fraction] | None:
    """Dimension (as sorted powers of base dimensions) and factor of a unit text such as `km/h` or `square feet`.

    None when it is no unit we know. A counted noun has no dimension and factor 1.
    """
    if text in _ABBREVIATIONS_KEEP_CASE:
        return None
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    sign, pending = 1, 1
    pieces = re.findall(r"[^\W\d_]+\.?|[$%°¢€£₹]|/|\^ ?\{? ?-?[0-9] ?\}?|[·*]", text.strip().lower())
    if not pieces or "".join(pieces).replace(" ", "") != re.sub(r"\s+", "", text.strip().lower()):
        return None
    last: tuple[str, Fraction] | None = None
    for piece in pieces:
        if piece in ("/", "per"):
            sign, last = -1, None
        elif piece in ("·", "*"):
            last = None
        elif piece.startswith("^") or piece in ("squared", "cubed"):
            power = _POWERS.get(piece) or int(re.sub(r"[^-0-9]", "", piece))
            if last is None or abs(power) > 4:
                return None
            dimensions[last[0]] = dimensions.get(last[0], 0) + sign * (power - 1)
            factor *= last[1] ** (sign * (power - 1))
        elif piece in _POWERS:
            pending = _POWERS[piece]
        else:
            name = _singular(piece)
            if name is None:
                if piece in COUNTED or piece.removesuffix("s") in COUNTED or piece.removesuffix("es") in COUNTED:
                    continue
                return None
            dimension, size = _TABLE[name]
            dimensions[dimension] = dimensions.get(dimension, 0) + sign * pending
            factor *= size ** (sign * pending)
            last, pending = (dimension, size), 1
    powers = {name: power for name, power in dimensions.items() if power and name != "units"}
    # A litre is a cubic decimetre; degrees of arc and angles stay as they are.
    if "volume" in powers:
        power = powers.pop("volume")
        powers["length"] = powers.get("length", 0) + 3 * power
        factor *= Fraction(1, 1000) ** power
    if "speed" in powers:
        power = powers.pop("speed")
        powers["length"] = powers.get("length", 0) + power
        powers["time"] = powers.get("time", 0) - power
    return tuple(sorted((name, power) for name, power in powers.items() if power)), factor


def unit_key(text: str) -> str:
    """An unknown unit in one spelling."""
    return " ".join(text.casefold().strip(" .").split())
