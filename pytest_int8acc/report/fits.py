"""What the straight line between INT8 and the baseline means, as sentences."""

from __future__ import annotations

from pytest_int8acc.results import LineFit


def fit_note(fit: LineFit) -> str:
    """What a slope far from 1, or a shift, suggests; empty where INT8 lies near the baseline."""
    if "constant" in fit.meanings:
        return (
            f"INT8 is {fit.offset:.4g} everywhere while the baseline varies: a tensor on the way to this "
            f"output is quantized to a single value, its scale is far too wide or it is cut off entirely"
        )
    parts = [fit.told] if fit.told else []
    if "small" in fit.meanings:
        parts.append(
            f"INT8 values are {fit.slope:.3g} of the baseline's throughout: a scale is wrong for all "
            f"samples, either a dynamic range too narrow, which cuts values off, or one far too wide, which "
            f"rounds small values to 0"
        )
    if "large" in fit.meanings:
        parts.append(
            f"INT8 values are {fit.slope:.3g} times the baseline's throughout: a scale is wrong for all "
            f"samples, look for a dynamic range far from what its tensor holds"
        )
    if "shifted" in fit.meanings:
        parts.append(
            f"INT8 values are shifted by {fit.shift:.3g} on average ({abs(fit.shift) / fit.deviation:.2g} of "
            f"the baseline's standard deviation): values cut off on one side only, or a wrong bias or zero "
            f"point"
        )
    return "; ".join(parts)


def fit_phrase(output: str, fit: LineFit | None, before: str) -> str:
    """Slope and shift of an output against ``before``; empty where it lies near that, or on no line."""
    if fit is None or not fit.meanings:
        return ""
    if "constant" in fit.meanings:
        return f"'{output}' comes out as one value throughout"
    scaled = "small" in fit.meanings or "large" in fit.meanings
    how = [f"{fit.slope:.3g} times what {before} gives"] if scaled else []
    how += [f"shifted by {fit.offset:.3g}"] if "shifted" in fit.meanings else []
    return f"'{output}' comes out {' and '.join(how)}"
