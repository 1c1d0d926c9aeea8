"""How contestants share a GPU whose clock follows the power they draw.

A contestant keeps the GPU busy for one slice of some tens of milliseconds: long enough for clock and power to settle,
short enough that all contestants see the same temperature. A round is one slice of each; every second round runs
backwards. The first part of a slice, in which the clock leaves the level of the contestant before, is not timed."""

from typing import NamedTuple

from . import stats

SAMPLE_SECONDS = 4e-3  # one timed batch of launches; hides the cost of its events
MOST_LAUNCHES = 256    # in one batch
SETTLE = 0.25          # of a slice is not timed


class Plan(NamedTuple):
    launches: int  # of a batch
    settle: int    # batches before the timed ones
    samples: int   # timed batches


class Slice(NamedTuple):
    samples: list  # seconds of a launch, one a batch
    reading: object = None  # of the machine, in the middle of the slice; None if unknown

    @property
    def mean(self):
        return stats.mean(self.samples)


def plan(seconds, slice_seconds, sets=1):
    """The plan of a contestant whose launch takes `seconds` and that rotates through `sets` input sets."""
    launches = min(max(1, round(SAMPLE_SECONDS / seconds)), MOST_LAUNCHES)
    launches = -(-launches // sets) * sets
    batches = max(1, round(slice_seconds / (launches * seconds)))
    settle = int(SETTLE * batches)
    return Plan(launches, settle, batches - settle)


def alternate(contestants, rounds, warm_up=0):
    """contestants: {name: object with slice()}. Returns {name: [Slice of every round]}, warm-up rounds left out."""
    slices = {name: [] for name in contestants}
    for number in range(-warm_up, rounds):
        for name in list(contestants)[::1 if number % 2 == 0 else -1]:
            made = contestants[name].slice()
            if number >= 0:
                slices[name].append(made)
    return slices
