"""How a default session of ONNX Runtime differs from an exact one, and the optimizers that are the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_int8acc.results.scores import Score

#: The level of ONNX Runtime's optimizers. Each level includes the levels before it.
Level = Literal["none", "basic", "extended", "all"]
#: How the results in a default session differ. ``refused``: the model does not run in the default session.
#: ``fails``: the model misses limits that it meets in an exact session. ``passes``: the model meets limits
#: that it misses in an exact session. ``differs``: both verdicts are equal, but compared with each other the
#: results miss the limits. ``saturates``: the results differ only because the INT8 kernels of this processor
#: saturate.
Difference = Literal["refused", "fails", "passes", "differs", "saturates"]


@dataclass(frozen=True)
class DefaultSession:
    """A default session of ONNX Runtime whose results differ from those of an exact session, on one batch."""

    kind: Difference
    is_target: bool
    """Whether the case names ONNX Runtime as its backend, so that users deploy the model in a default
    session."""
    samples: int
    """The number of samples of the batch."""
    exact: Score | None = None
    """A score of the exact session against the baseline; None if no score differs between the sessions."""
    default: Score | None = None
    """The same score of the default session. For ``differs``: a score of the default against the exact
    session."""
    problem: str = ""
    """The reason why the default session gives no score, such as NaN or an error of ONNX Runtime."""
    level: Level | None = None
    """The lowest level at which the results differ; ``none`` if they differ without any optimizer."""
    optimizers: tuple[str, ...] = ()
    """The optimizers without which the results agree. If there are several, all must be switched off.

    Empty if they are not known.
    """
    without_kernels: bool = False
    """Whether the INT8 kernels of this processor saturate, so that they were left out of the comparison."""

    @property
    def is_caution(self) -> bool:
        """Whether the session that users deploy misses limits or does not run, while the exact one passes."""
        return self.is_target and self.kind in ("refused", "fails")
