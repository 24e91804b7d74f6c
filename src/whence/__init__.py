"""whence: which tasks help, which hurt, which work together, what another subset would give, and which one to use.

Everything is a set function on tasks. The flow, and where each step lives::

    design ──draws──▶ subsets ──outcome function──▶ outcomes ──fit──▶ surrogate ──▶ attribution · interactions
                                                                                   prediction · selection · suggestion

    designs.py       who is in which run: Bernoulli, FixedSize, LeaveOneOut, LeaveTwoOut, Exhaustive, Balanced
    measuring/       measure: outcome function × design → Outcomes; a journal that loses nothing, engines, progress
    estimators/      outcome functions of models: retrain.py (PyTorch, many at once) and refit.py (scikit-learn) are
                     true, merge.py (task vectors), gradex.py and onestep.py (gradients only) are estimates;
                     ladder.py says what each costs
    gradients/       a model linearised once: projections, routes to its features, their store, all subsets solved
    icl/             outcome functions of prompts: demonstrations as tasks, true and estimated; their order and choice
    outcomes/        Outcomes, the table of runs: its formats on disk, what is refused, what deserves a look
    surrogates/      additive.py, kernel.py, combined.py: scikit-learn regressors on it; fused.py: one of few true runs
                     and many estimates; choose.py picks one (``fit``); kernels.py is the algebra that prediction,
                     tuning, attribution and interactions all read from
    effects.py       the effect of a task or a pair on any surrogate, exact where there is a closed form
    attribution.py   what each task does            interaction.py   what pairs do together
    selection.py     which subset to use            suggestion.py    which runs to make next
    baselines/       influence functions, TracIn, TRAK, SOURCE, BIF: one score per task, as an additive surrogate
    evaluation/      how far to trust all this: scores, baselines, noise ceiling, learning curve, repeated splits
    report/          all of it as one page that predicts in the browser (``Model.report``)
    plots.py         the same pictures for papers   notebook.py      the same tables for notebooks
    cli/             the same verbs on files        demo.py          all of it on a set function whose truth is known

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
    from whence.attribution import attribute as attribute
    from whence.designs import Balanced as Balanced
    from whence.designs import Bernoulli as Bernoulli
    from whence.designs import Exhaustive as Exhaustive
    from whence.designs import FixedSize as FixedSize
    from whence.designs import LeaveOneOut as LeaveOneOut
    from whence.designs import LeaveTwoOut as LeaveTwoOut
    from whence.errors import DataWarning as DataWarning
    from whence.errors import InputError as InputError
    from whence.estimators.gradex import GradEx as GradEx
    from whence.estimators.merge import TaskVectors as TaskVectors
    from whence.estimators.onestep import OneStep as OneStep
    from whence.estimators.recipe import Recipe as Recipe
    from whence.estimators.refit import Refit as Refit
    from whence.estimators.retrain import Retrain as Retrain
    from whence.evaluation import lds as lds
    from whence.interaction import interactions as interactions
    from whence.measuring import Subset as Subset
    from whence.measuring import measure as measure
    from whence.outcomes import Outcomes as Outcomes
    from whence.outcomes import read_outcomes as read_outcomes
    from whence.selection import select as select
    from whence.suggestion import suggest as suggest
    from whence.surrogates.additive import AdditiveSurrogate as AdditiveSurrogate
    from whence.surrogates.choose import Model as Model
    from whence.surrogates.choose import fit as fit
    from whence.surrogates.combined import CombinedSurrogate as CombinedSurrogate
    from whence.surrogates.kernel import KernelSurrogate as KernelSurrogate

__version__ = "0.1.0"

_HOME = {
    "AdditiveSurrogate": "surrogates.additive",
    "Balanced": "designs",
    "Bernoulli": "designs",
    "CombinedSurrogate": "surrogates.combined",
    "DataWarning": "errors",
    "Exhaustive": "designs",
    "FixedSize": "designs",
    "GradEx": "estimators.gradex",
    "InputError": "errors",
    "KernelSurrogate": "surrogates.kernel",
    "LeaveOneOut": "designs",
    "LeaveTwoOut": "designs",
    "Model": "surrogates.choose",
    "OneStep": "estimators.onestep",
    "Outcomes": "outcomes",
    "Recipe": "estimators.recipe",
    "Refit": "estimators.refit",
    "Retrain": "estimators.retrain",
    "Subset": "measuring",
    "TaskVectors": "estimators.merge",
    "attribute": "attribution",
    "fit": "surrogates.choose",
    "interactions": "interaction",
    "lds": "evaluation",
    "measure": "measuring",
    "read_outcomes": "outcomes",
    "select": "selection",
    "suggest": "suggestion",
}
_MODULES = ("baselines", "plots")
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module 'whence' has no attribute {name!r}")
    try:
        value = import_module(f"whence.{_HOME.get(name, name)}")
        if name in _HOME:
            value = getattr(value, name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from whence.errors import InputError

        raise InputError(f'whence.{name} needs PyTorch: pip install "whence[torch]".') from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
