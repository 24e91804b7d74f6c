"""Evaluation: how well a surrogate predicts unseen runs, compared with trivial baselines and the noise ceiling.

The last step of the flow. Everything here is a pure function of a model (anything with ``predict``) or of its
predictions and of a table of held-out outcomes. A score is never read alone: `size_only` says what the number
of tasks predicts by itself, `within_size_lds` what is left of a score when it is taken away, `noise_ceiling`
what training noise leaves room for, `lds_interval` how certain a score of few runs is, `learning_curve` what
more runs would add, `runs_needed` how many it takes to see an effect of a given size, and `repeated_splits`
whether two methods differ by more than the chance of one split.

Nothing is dropped silently. Where an outcome was not measured (NaN), each target is judged on its measured
rows. A target whose measured outcome does not vary has no score: it is NaN, left out of the mean, and
counted by ``n_undefined``. A prediction that does not vary where the outcome does is a failure of the model,
and counts as a correlation of 0.
"""

from whence.evaluation.ceiling import Ceiling, noise_ceiling
from whence.evaluation.certainty import LdsInterval, lds_interval
from whence.evaluation.curve import LearningCurve, learning_curve
from whence.evaluation.power import RunsNeeded, runs_needed
from whence.evaluation.scores import (
    Score,
    coverage,
    lds,
    loo_correlation,
    residual_error,
    spearman_per_target,
    within_size_lds,
)
from whence.evaluation.size import SizeOnly, size_only
from whence.evaluation.splits import Comparison, repeated_splits, scored

__all__ = [
    "Ceiling",
    "Comparison",
    "LdsInterval",
    "LearningCurve",
    "RunsNeeded",
    "Score",
    "SizeOnly",
    "coverage",
    "lds",
    "lds_interval",
    "learning_curve",
    "loo_correlation",
    "noise_ceiling",
    "repeated_splits",
    "residual_error",
    "runs_needed",
    "scored",
    "size_only",
    "spearman_per_target",
    "within_size_lds",
]
