from pathlib import Path

import numpy as np

SCENES = np.load(Path(__file__).parent / "data" / "scenes.npz")


def _feeds(pixels):
    for start in range(0, len(pixels), 32):
        yield {"image": pixels[start : start + 32].astype(np.float32) / 255}


def calibration():
    """64 scenes of training digits, scaled to one."""
    return _feeds(SCENES["calibration"])


def validation():
    """128 scenes of digits that the network has not seen."""
    return _feeds(SCENES["validation"])


def labels():
    """Per scene up to three digits: x, y, side in pixels, and class; -1 where there is none."""
    return SCENES["labels"]
