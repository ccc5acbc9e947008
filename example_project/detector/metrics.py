import numpy as np

SIDE = 64


def found(outputs, labels):
    """Share of digits in whose cell the detector sees an object, of the right class, at 50 % overlap."""
    hits = [_hit(outputs, scene, box) for scene, boxes in enumerate(labels) for box in boxes if box[3] >= 0]
    return np.mean(hits)


def _hit(outputs, scene, box):
    *center, side, digit = box
    level = outputs["small" if side < 20 else "large"][scene]
    step = SIDE / level.shape[-1]
    column, row = (int(c // step) for c in center)
    objectness, x, y, size, _, *classes = level[:, row, column]
    middles = np.array([center, [(column + x) * step, (row + y) * step]])
    sides = np.array([side, 16 * 2**size])
    corners = middles[:, None] + np.array([[-0.5], [0.5]]) * sides[:, None, None]  # box, low or high, axis
    common = np.maximum(corners[:, 1].min(0) - corners[:, 0].max(0), 0).prod()
    overlap = common / ((sides**2).sum() - common)
    return objectness > 0 and np.argmax(classes) == digit and overlap >= 0.5
