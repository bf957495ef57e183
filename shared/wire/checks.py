"""Range checks of values that came over the wire."""

import math

from shared.errors import InvalidRequestError


def number(value: float, *, param: str, low: float, high: float, low_open: bool = False) -> float:
    """Returns `value` when it is finite and in range.

    Raises:
        InvalidRequestError: NaN, infinite, or outside [low, high] ((low, high] with `low_open`).
    """
    inside = low < value <= high if low_open else low <= value <= high
    if not math.isfinite(value) or not inside:
        left = "(" if low_open else "["
        raise InvalidRequestError(
            f"{param} is {value}, outside {left}{low:g}, {high:g}]; "
            "send a finite number in that range",
            param=param,
        )
    return value
