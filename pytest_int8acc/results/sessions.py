"""How results differ between a default and an exact session of ONNX Runtime, and which optimizers cause it.

An exact session leaves Q/DQ unfused. A default session is what users deploy: optimizers fuse Q/DQ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_int8acc.results.scores import Score

#: The level of ONNX Runtime's optimizers. Each level includes the levels before it.
Level = Literal["none", "basic", "extended", "all"]
#: How the results in a default session of ONNX Runtime differ from those in an exact session, in which Q/DQ
#: stays unfused. ``refused``: the model does not run in the default session.
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
    """Whether the spec names ONNX Runtime as backend. Users then deploy the model in a default session."""
    samples: int
    """The number of samples of the batch."""
    exact: Score | None = None
    """A score that differs between the sessions: its value in the exact session, against the baseline. None
    if no score differs."""
    default: Score | None = None
    """The same score as ``exact`` in the default session, against the baseline. For the kind ``differs``: a
    score of the default session against the exact session."""
    problem: str = ""
    """The reason why the default session gives no score, such as NaN or an error of ONNX Runtime."""
    level: Level | None = None
    """The lowest level of the optimizers at which the results of both sessions differ. ``none`` means that
    they differ even without optimizers. None means that the level was not determined."""
    optimizers: tuple[str, ...] = ()
    """The optimizers that must all be switched off, so that the results of both sessions agree.

    Empty if they are not known.
    """
    without_kernels: bool = False
    """Whether the default session was compared without its INT8 kernels, because those of this processor
    saturate."""

    @property
    def is_caution(self) -> bool:
        """Whether users deploy a default session that fails: it does not run, or misses limits.

        The exact session meets these limits.
        """
        return self.is_target and self.kind in ("refused", "fails")
