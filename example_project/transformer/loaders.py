from pathlib import Path

import numpy as np

DIGITS = np.load(Path(__file__).parent / "data" / "digits.npz")


def _feeds(images):
    for start in range(0, len(images), 64):
        yield {"image": images[start : start + 64].astype(np.float32)}


def calibration():
    """128 training images, scaled from 0..16 to 0..1 as in training."""
    return _feeds(DIGITS["calibration"] / 16)


def not_scaled():
    """The same without the scaling: a slip that is easily made."""
    return _feeds(DIGITS["calibration"])


def validation():
    """200 images that the network has not seen."""
    return _feeds(DIGITS["validation"] / 16)


def labels():
    """Their digits."""
    return DIGITS["labels"]
