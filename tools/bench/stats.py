"""The statistics of the reports."""

import math


def quantile(values, fraction):
    """Linear between the order statistics; `values` is not empty."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def spread(values):
    """(median, p10, p90)."""
    return tuple(quantile(values, fraction) for fraction in (0.5, 0.1, 0.9))


def mean(values):
    return math.fsum(values) / len(values)


def geometric_mean(values):
    return math.exp(mean([math.log(value) for value in values]))


def paired_ratios(above, below):
    """Round by round, so that a clock that drifts from round to round cancels."""
    return [x / y for x, y in zip(above, below, strict=True)]


def interpolate(points, x):
    """The value at `x` on the polyline through `points`, a dict; None outside of them."""
    left = max((key for key in points if key <= x), default=None)
    right = min((key for key in points if key >= x), default=None)
    if left is None or right is None:
        return None
    if left == right:
        return points[left]
    return points[left] + (points[right] - points[left]) * (x - left) / (right - left)
