"""What a picture shows."""

from pathlib import Path

import matplotlib.image
import numpy as np


def pixels(picture: Path, colour: str) -> int:
    """How many pixels of a PNG have a colour, #rrggbb."""
    own = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return int((np.abs(matplotlib.image.imread(picture)[..., :3] - own).max(axis=2) < 0.02).sum())
