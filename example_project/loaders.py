from pathlib import Path

import numpy as np

DATA = Path(__file__).parent / "data"


def load_data():
    """Yields feed dicts of up to 64 validation images, as Polygraphy's --data-loader-script wants them."""
    images = np.load(DATA / "validation.npz")["image"]
    for start in range(0, len(images), 64):
        yield {"image": images[start : start + 64]}
