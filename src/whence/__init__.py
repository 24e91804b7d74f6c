"""whence: which tasks help, which hurt, which work together, what another subset would give, and which one to use.

Everything is a set function on tasks. The flow, and where each step lives::

    design ──draws──▶ subsets ──outcome function──▶ outcomes ──fit──▶ surrogate ──▶ attribution · interactions
                                                                                   prediction · selection · suggestion

    designs/         who is in which run: Bernoulli, FixedSize, LeaveOneOut, …; Dirichlet for mixtures
    measuring/       measure: outcome function × design → Outcomes; a journal that loses nothing, engines, progress
    models/          Problem (a model, its tasks and targets) and Recipe: what every estimator and baseline takes
    estimators/      outcome functions of a Problem: retraining is true; task vectors, GradEx and one step are estimates
    gradients/       a model linearised once: projections, routes to its features, their store, all subsets solved
    baselines/       influence functions, TracIn, TRAK, SOURCE, BIF: one score per task; of a joint run, to be fused
    ladder/          all of these in one table: what each costs here, how near it came, which to take
    hf/              fine-tuning of language models: sources of text as tasks, adapters as what is trained
    icl/             outcome functions of prompts: demonstrations as tasks, true and estimated; their order and choice
    rl/              outcome functions of agents: environments as tasks, judged by whole episodes
    outcomes/        Outcomes, the table of runs: its formats on disk, what is refused, what deserves a look
    surrogates/      scikit-learn regressors on that table, and fit, which makes one of runs and estimates
    answers/         what each task does, what pairs do together, which subset to use, which runs to make next
    evaluation/      how far to trust all this: scores, baselines, noise ceiling, learning curve, repeated splits
    searching/       search: a budget → runs, each chosen by those before it → the answer; ask and tell
    display/         answers as words, tables, pictures and a page that predicts in the browser
    datasets/        recorded runs of our own, and the leaderboard on them
    cli/             the same verbs on files         demo/            all of it on a set function whose truth is known

A user's session::

    runs  = whence.read_outcomes("runs.csv", outcomes=["loss"])
    model = whence.fit(runs)
    whence.attribute(model).to_frame()
    whence.select(model, size=4)

Names are loaded when first used, so that ``import whence`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whence.answers.attribution import attribute as attribute
    from whence.answers.interactions import interactions as interactions
    from whence.answers.pareto import pareto as pareto
    from whence.answers.prediction import predictions as predictions
    from whence.answers.selection import select as select
    from whence.answers.suggestion import suggest as suggest
    from whence.baselines.joint import JointScores as JointScores
    from whence.designs import Balanced as Balanced
    from whence.designs import Bernoulli as Bernoulli
    from whence.designs import Dirichlet as Dirichlet
    from whence.designs import Exhaustive as Exhaustive
    from whence.designs import FixedSize as FixedSize
    from whence.designs import LeaveOneOut as LeaveOneOut
    from whence.designs import LeaveTwoOut as LeaveTwoOut
    from whence.display.report import report as report
    from whence.errors import DataWarning as DataWarning
    from whence.errors import InputError as InputError
    from whence.estimators.gradex import GradEx as GradEx
    from whence.estimators.merge import TaskVectors as TaskVectors
    from whence.estimators.onestep import OneStep as OneStep
    from whence.estimators.refit import Refit as Refit
    from whence.estimators.retrain import Retrain as Retrain
    from whence.evaluation import lds as lds
    from whence.gradients.linearize import Features as Features
    from whence.measuring import measure as measure
    from whence.models.problem import Problem as Problem
    from whence.models.recipe import Recipe as Recipe
    from whence.outcomes import Outcomes as Outcomes
    from whence.outcomes import read_outcomes as read_outcomes
    from whence.outcomes.subset import Subset as Subset
    from whence.searching import Search as Search
    from whence.searching import search as search
    from whence.surrogates.additive import AdditiveSurrogate as AdditiveSurrogate
    from whence.surrogates.combined import CombinedSurrogate as CombinedSurrogate
    from whence.surrogates.fit import fit as fit
    from whence.surrogates.kernel import KernelSurrogate as KernelSurrogate
    from whence.surrogates.model import Model as Model
    from whence.surrogates.saving import load as load

__version__ = "0.2.0"

_HOME = {
    "AdditiveSurrogate": "surrogates.additive",
    "Balanced": "designs",
    "Bernoulli": "designs",
    "CombinedSurrogate": "surrogates.combined",
    "DataWarning": "errors",
    "Dirichlet": "designs",
    "Exhaustive": "designs",
    "Features": "gradients.linearize",
    "FixedSize": "designs",
    "GradEx": "estimators.gradex",
    "InputError": "errors",
    "JointScores": "baselines.joint",
    "KernelSurrogate": "surrogates.kernel",
    "LeaveOneOut": "designs",
    "LeaveTwoOut": "designs",
    "Model": "surrogates.model",
    "OneStep": "estimators.onestep",
    "Outcomes": "outcomes",
    "Problem": "models.problem",
    "Recipe": "models.recipe",
    "Refit": "estimators.refit",
    "Retrain": "estimators.retrain",
    "Search": "searching",
    "Subset": "outcomes.subset",
    "TaskVectors": "estimators.merge",
    "attribute": "answers.attribution",
    "fit": "surrogates.fit",
    "interactions": "answers.interactions",
    "lds": "evaluation",
    "load": "surrogates.saving",
    "measure": "measuring",
    "pareto": "answers.pareto",
    "predictions": "answers.prediction",
    "read_outcomes": "outcomes",
    "report": "display.report",
    "search": "searching",
    "select": "answers.selection",
    "suggest": "answers.suggestion",
}
_MODULES = {name: name for name in ("baselines", "datasets", "evaluation", "hf", "icl", "rl")} | {
    "plots": "display.plots"
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module 'whence' has no attribute {name!r}")
    try:
        value = import_module(f"whence.{_HOME.get(name) or _MODULES[name]}")
        if name in _HOME:
            value = getattr(value, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from whence.errors import InputError

        extra = "hf" if name in ("hf", "icl") else "torch"
        raise InputError(f'whence.{name} needs PyTorch: pip install "whence[{extra}]".') from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
