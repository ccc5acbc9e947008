"""Coverage of intervals, and error rates of verdicts, by simulation: 10,000 draws for each case.

    python -m benchmarks.coverage                      # all cases, on 2 cores
    python -m benchmarks.coverage --only 'agreement*'
    python -m benchmarks.coverage --draws 500

Each case draws samples from a distribution whose true score is known. Its limit is the true score itself,
which is the hardest limit to judge. A draw counts as covered if the true score lies within the interval. A
draw is a false pass if the whole interval meets the limit, and a false alarm if the whole interval misses it.
The cases, their seeds and the coverage asked for were fixed before the methods were chosen.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import table
from pytest_int8acc.results import Interval, Score
from pytest_int8acc.results.scores import CONFIDENCE
from pytest_int8acc.scores.metrics import METRICS
from pytest_int8acc.scores.rows import AT
from pytest_int8acc.scores.statistics import interval, of_drop, of_labels

F64 = NDArray[np.float64]
#: Draws of each case.
DRAWS = 10_000
#: Coverage asked for: of exact intervals, of other intervals, and of limits on the worst sample. Intervals
#: have a nominal coverage of 95 %.
EXACT, OTHER, TAIL = 0.94, 0.93, 0.90
#: Differences up to this are rounding errors of the means.
ROUNDING = 1e-12
#: Other intervals are asked to cover only where at least this many samples, or groups, disagree.
LEAST_DISAGREEING = 10


class Draw(NamedTuple):
    """The samples of one draw."""

    rows: F64
    """The rows of a metric of outputs, [samples, columns]; or of labels, [samples, 2]: the value of each
    sample in the baseline and in the candidate."""
    truth: float
    """The true score. For a limit on the worst sample: the score of as many other samples."""
    groups: NDArray[np.intp] | None = None
    """The group of each sample, [samples]; None: samples are independent."""


@dataclass(frozen=True)
class Case:
    """A distribution of samples, the metric that judges them, and the coverage asked for."""

    metric: str
    """A metric of outputs; ``drop`` for the mean of a metric of labels against the baseline."""
    draw: Callable[[np.random.Generator], Draw]
    asked: float


def _agreement(samples: int, share: float) -> Callable[[np.random.Generator], Draw]:
    """Top-1 agreement: each sample disagrees with probability ``share``."""

    def draw(rng: np.random.Generator) -> Draw:
        agrees = (rng.random(samples) >= share).astype(float)
        return Draw(np.stack([agrees, np.ones(samples), np.ones(samples)], axis=1), 1 - share)

    return draw


def _videos(videos: int, frames: int, share: float, correlation: float) -> Callable[..., Draw]:
    """Agreement of frames, one sample each. Frames of one video are alike: a beta-binomial distribution."""
    scale = 1 / correlation - 1

    def draw(rng: np.random.Generator) -> Draw:
        chance = rng.beta(share * scale, (1 - share) * scale, videos).repeat(frames)
        agrees = (rng.random(videos * frames) >= chance).astype(float)
        ones = np.ones(videos * frames)
        groups = np.arange(videos).repeat(frames)
        return Draw(np.stack([agrees, ones, ones], axis=1), 1 - share, groups)

    return draw


def _pixels(images: int, pixels: int, share: float, correlation: float) -> Callable[..., Draw]:
    """Agreement of pixels. A sample is an image, whose pixels are alike: a beta-binomial distribution."""
    scale = 1 / correlation - 1

    def draw(rng: np.random.Generator) -> Draw:
        chance = rng.beta(share * scale, (1 - share) * scale, images)
        agrees = (pixels - rng.binomial(pixels, chance)).astype(float)
        counted = np.full(images, float(pixels))
        return Draw(np.stack([agrees, counted, counted], axis=1), 1 - share)

    return draw


def _sqnr(samples: int, spread: float, each: int = 1) -> Callable[[np.random.Generator], Draw]:
    """SQNR over all samples; error power is lognormal, and its logarithm has this standard deviation.

    With ``each`` above 1, half of the variance is that of a group of so many samples.
    """
    part = spread * np.sqrt(0.5 if each > 1 else 1.0)

    def draw(rng: np.random.Generator) -> Draw:
        rows = np.zeros((samples, len(AT)))
        signal, error = rng.normal(0, 0.3, samples), rng.normal(0, part, samples)
        groups = None
        if each > 1:
            groups = np.arange(samples) // each
            error += rng.normal(0, part, samples // each).repeat(each)
        rows[:, AT["bb"]], rows[:, AT["ee"]] = np.exp(signal), np.exp(error) / 100
        rows[:, AT["elements"]] = 1
        truth = 10 * np.log10(100 * np.exp(0.3**2 / 2) / np.exp(spread**2 / 2))
        return Draw(rows, float(truth), groups)

    return draw


def _mean_abs(samples: int, spread: float) -> Callable[[np.random.Generator], Draw]:
    """Mean absolute error; that of a sample is lognormal."""

    def draw(rng: np.random.Generator) -> Draw:
        rows = np.zeros((samples, len(AT)))
        rows[:, AT["elements"]], rows[:, AT["absolute"]] = 1, np.exp(rng.normal(0, spread, samples))
        return Draw(rows, float(np.exp(spread**2 / 2)))

    return draw


def _paired(samples: int, lost: float, gained: float) -> Callable[[np.random.Generator], Draw]:
    """Right or wrong by labels: the candidate loses and gains samples with these probabilities."""

    def draw(rng: np.random.Generator) -> Draw:
        chance = rng.random(samples)
        right = (rng.random(samples) < 0.8).astype(float)
        before = np.where(chance < lost, 1.0, np.where(chance < lost + gained, 0.0, right))
        after = np.where(chance < lost + gained, 1 - before, before)
        return Draw(np.stack([before, after], axis=1), gained - lost)

    return draw


def _differences(samples: int, kind: str, ties: float = 0.0) -> Callable[[np.random.Generator], Draw]:
    """A metric of labels with a number for each sample, like PSNR; the candidate loses 1 in the mean.

    ``ties`` is the share of samples on which baseline and candidate are equal.
    """

    def draw(rng: np.random.Generator) -> Draw:
        before = rng.normal(30, 3, samples)
        if kind == "normal":
            loss = rng.normal(1, 1, samples)
        elif kind == "exponential":
            loss = rng.exponential(1, samples)
        else:  # heavy tails, symmetric
            loss = 1 + rng.standard_t(3, samples)
        loss = np.where(rng.random(samples) < ties, 0.0, loss)
        return Draw(np.stack([before, before - loss], axis=1), -(1 - ties))

    return draw


def _worst(samples: int, kind: str) -> Callable[[np.random.Generator], Draw]:
    """A limit on the worst sample: the greatest absolute error. The truth is that of other samples."""

    def draw(rng: np.random.Generator) -> Draw:
        errors = {
            "normal": lambda: np.abs(rng.normal(size=2 * samples)),
            "exponential": lambda: rng.exponential(size=2 * samples),
            "lognormal": lambda: np.exp(rng.normal(size=2 * samples)),
            "pareto": lambda: rng.pareto(3, 2 * samples) + 1,
            "heavy pareto": lambda: rng.pareto(1.5, 2 * samples) + 1,
        }[kind]()
        rows = np.zeros((samples, len(AT)))
        rows[:, AT["elements"]], rows[:, AT["max_error"]] = 1, errors[:samples]
        return Draw(rows, float(errors[samples:].max()))

    return draw


CASES: Mapping[str, Case] = {
    "agreement, 50 samples, none disagrees": Case("top1_agreement", _agreement(50, 0.0), EXACT),
    "agreement, 100 samples, 1 %": Case("top1_agreement", _agreement(100, 0.01), EXACT),
    "agreement, 397 samples, 1 %": Case("top1_agreement", _agreement(397, 0.01), EXACT),
    "agreement, 1000 samples, 0.5 %": Case("top1_agreement", _agreement(1000, 0.005), EXACT),
    "agreement, 100 samples, 10 %": Case("top1_agreement", _agreement(100, 0.1), EXACT),
    "drop, 200 samples, 2 % lost, 2 % gained": Case("drop", _paired(200, 0.02, 0.02), EXACT),
    "drop, 200 samples, 3 % lost, 1 % gained": Case("drop", _paired(200, 0.03, 0.01), EXACT),
    "drop, 1000 samples, 1 % lost, 0.2 % gained": Case("drop", _paired(1000, 0.01, 0.002), EXACT),
    "drop, 100 samples, 10 % lost, 5 % gained": Case("drop", _paired(100, 0.1, 0.05), EXACT),
    "drop, 2000 samples, 0.2 % lost, none gained": Case("drop", _paired(2000, 0.002, 0.0), EXACT),
    "agreement, 40 videos of 25 frames, 5 %": Case("top1_agreement", _videos(40, 25, 0.05, 0.3), OTHER),
    "agreement, 100 videos of 10 frames, 10 %": Case("top1_agreement", _videos(100, 10, 0.1, 0.5), OTHER),
    "agreement, 64 images of 1000 pixels, 5 %": Case("top1_agreement", _pixels(64, 1000, 0.05, 0.1), OTHER),
    "agreement, 200 images of 50 pixels, 0.5 %": Case("top1_agreement", _pixels(200, 50, 0.005, 0.1), OTHER),
    "sqnr_db, 32 samples, spread 0.5": Case("sqnr_db", _sqnr(32, 0.5), OTHER),
    "sqnr_db, 100 samples, spread 0.5": Case("sqnr_db", _sqnr(100, 0.5), OTHER),
    "sqnr_db, 32 samples, spread 1": Case("sqnr_db", _sqnr(32, 1.0), OTHER),
    "sqnr_db, 100 samples, spread 1": Case("sqnr_db", _sqnr(100, 1.0), OTHER),
    "sqnr_db, 1000 samples, spread 1": Case("sqnr_db", _sqnr(1000, 1.0), OTHER),
    "sqnr_db, 100 samples, spread 1.5": Case("sqnr_db", _sqnr(100, 1.5), OTHER),
    "sqnr_db, 64 groups of 8, spread 1": Case("sqnr_db", _sqnr(512, 1.0, each=8), OTHER),
    "mean_abs, 20 samples, spread 0.5": Case("mean_abs", _mean_abs(20, 0.5), OTHER),
    "mean_abs, 100 samples, spread 1": Case("mean_abs", _mean_abs(100, 1.0), OTHER),
    "difference, 20 samples, normal": Case("drop", _differences(20, "normal"), OTHER),
    "difference, 50 samples, exponential": Case("drop", _differences(50, "exponential"), OTHER),
    "difference, 50 samples, heavy tails": Case("drop", _differences(50, "heavy"), OTHER),
    "difference, 100 samples, 70 % ties": Case("drop", _differences(100, "exponential", 0.7), OTHER),
    "worst of 10, exponential": Case("max_abs", _worst(10, "exponential"), TAIL),
    "worst of 64, normal": Case("max_abs", _worst(64, "normal"), TAIL),
    "worst of 64, exponential": Case("max_abs", _worst(64, "exponential"), TAIL),
    "worst of 64, lognormal": Case("max_abs", _worst(64, "lognormal"), TAIL),
    "worst of 64, pareto": Case("max_abs", _worst(64, "pareto"), TAIL),
    "worst of 397, normal": Case("max_abs", _worst(397, "normal"), TAIL),
    "worst of 397, lognormal": Case("max_abs", _worst(397, "lognormal"), TAIL),
    "worst of 397, pareto": Case("max_abs", _worst(397, "pareto"), TAIL),
    "worst of 397, heavy pareto": Case("max_abs", _worst(397, "heavy pareto"), TAIL),
}


@dataclass(frozen=True)
class Rates:
    """What became of the draws of one case."""

    counted: int
    """Draws that are asked to cover."""
    covered: float
    """The share of them that covers, 0 to 1; so are the others."""
    false_passes: float
    false_alarms: float
    none: float
    """No interval was made: the score counts as certain."""
    undecided: float
    """The interval is said to hold anything, because the samples are too few."""


def interval_of(case: Case, draw: Draw) -> tuple[Score, Interval | None]:
    """The score of a draw whose limit is the truth, and its interval."""
    if case.metric == "drop":
        before, after = draw.rows.T
        reference = float(before.mean())
        score = Score("psnr", "psnr", float(after.mean()), reference + draw.truth, baseline=reference)

        if case.asked == EXACT:
            lost, gained = int((before > after).sum()), int((before < after).sum())
            return score, of_drop(score, lost, gained, len(before))

        def value(samples: Sequence[int]) -> float:
            chosen = list(samples)
            return float(after[chosen].mean() - before[chosen].mean() + reference)

        return score, of_labels(score, len(before), value)
    metric = METRICS[case.metric]
    score = Score("y", metric.name, metric(draw.rows), draw.truth, metric.bound)
    return score, interval(score, draw.rows, metric, CONFIDENCE, draw.groups)


def rates(name: str, draws: int) -> Rates:
    """Draw one case so many times."""
    case, rng = CASES[name], np.random.default_rng(zlib.crc32(name.encode()))
    found = np.array(list(filter(None, (_one(case, case.draw(rng)) for _ in range(draws)))), np.float64)
    return Rates(len(found), *(found.mean(axis=0).tolist() if len(found) else [np.nan] * 5))


def _one(case: Case, draw: Draw) -> tuple[bool, bool, bool, bool, bool] | None:
    """What became of one draw, as in ``Rates``; None if it is not asked to cover."""
    if case.asked == OTHER and _disagreeing(case, draw) < LEAST_DISAGREEING:
        return None
    score, found = interval_of(case, draw)
    truth = score.limit or 0.0
    if found is None:
        same = score.value == truth
        return same, score.passed and not same, not score.passed, True, False
    covered = found.low - ROUNDING <= truth <= found.high + ROUNDING
    return (
        covered,
        not covered and score.passed,
        not covered and not score.passed,
        False,
        covered and not np.isfinite(found.high - found.low),
    )


def _disagreeing(case: Case, draw: Draw) -> int:
    """How many samples, or groups, disagree between baseline and candidate."""
    if case.metric == "drop":
        return int((draw.rows[:, 0] != draw.rows[:, 1]).sum())
    if case.metric != "top1_agreement":
        return len(draw.rows)
    differs = draw.rows[:, 0] < draw.rows[:, 1]
    return int(differs.sum()) if draw.groups is None else len(np.unique(draw.groups[differs]))


def lines(found: Mapping[str, Rates]) -> Iterator[list[str]]:
    """The rows of the table; a case whose coverage is below what is asked for ends in ``missed``."""
    for name, seen in found.items():
        asked = CASES[name].asked
        yield [
            name,
            f"{asked:.0%}",
            f"{seen.covered:.1%}" + ("" if seen.covered >= asked else " missed"),
            f"{seen.false_passes:.1%}",
            f"{seen.false_alarms:.1%}",
            f"{seen.none:.1%}",
            f"{seen.undecided:.1%}",
            f"{seen.counted}",
        ]


HEADER = ["case", "asked", "covered", "false passes", "false alarms", "no interval", "too few", "draws"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=["*"], help="names of cases, or patterns")
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    names = [name for name in CASES if any(fnmatchcase(name, pattern) for pattern in options.only)]
    found: dict[str, Rates] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name, seen in zip(names, pool.map(rates, names, [options.draws] * len(names)), strict=True):
            found[name] = seen
            print(f"{name}: {seen.covered:.1%}", file=sys.stderr)
    print(table(HEADER, lines(found)))


if __name__ == "__main__":
    main()
