"""How far a trained model is from its linear model, which decides whether gradients at W₀ are of any use."""

from __future__ import annotations

from functools import partial

import torch

from whence.arrays import Floats
from whence.errors import check_choice
from whence.gradients.routes import passes
from whence.models.derivatives import pushed
from whence.models.examples import Examples, Given
from whence.models.points import Checkpoint, points_of, state_of
from whence.models.problem import Problem

LINEAR = 1e-3  # relative error of the linear model up to which it is the model itself, in single precision
EXAMPLES = 8  # that are enough to tell


def is_linear(problem: Problem) -> bool:
    """Whether the outputs are linear in the trained parameters, as for a head; tested by a large random step.

    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> group = (torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]))
    >>> [is_linear(Problem(model, {"a": group}, group, params=params)) for params in ("*", "2.*")]
    [False, True]
    """
    generator = torch.Generator().manual_seed(0)
    start = {name: problem.start[name] for name in problem.trained}
    moved = {
        name: value
        + torch.randn(value.shape, generator=generator).to(value) * (float(value.square().mean()) ** 0.5 or 1.0)
        for name, value in start.items()
    }
    few = problem.tasks.rows(slice(0, EXAMPLES))
    return bool(linearization_error(problem, moved, few, relative_to="change").max() < LINEAR)


def linearization_error(
    problem: Problem, trained: Checkpoint, examples: Given | None = None, *, relative_to: str = "outputs"
) -> Floats:
    """Relative error of the linear model at truly trained weights, ‖f_W − f_W₀ − ∇f·(W − W₀)‖ / ‖f_W‖, per example.

    The paper's ε_W(x), the first-order approximation error. It is small if training moved little. If outputs are large
    and training changed them little, the error looks small too: ``relative_to="change"`` divides by ‖f_W − f_W₀‖
    instead; 1 then means that the untrained model is as good a guess.

    Parameters
    ----------
    problem : Problem
        With the model at W₀.
    trained : nn.Module or state dict
        W, after training on some subset.
    examples : (inputs, labels), or mapping of str to those, optional
        By default the problem's targets.
    relative_to : {"outputs", "change"}

    Returns
    -------
    ndarray of shape (n,)

    Examples
    --------
    >>> group = (torch.randn(5, 3), torch.zeros(5, dtype=torch.long))
    >>> problem = Problem(torch.nn.Linear(3, 2), {"a": group}, group)
    >>> bool(linearization_error(problem, torch.nn.Linear(3, 2)).max() < 1e-5)
    True
    """
    check_choice(relative_to, ("outputs", "change"), "relative_to", of="linearization_error")
    ((output_fn, start),) = points_of(problem, [])
    end = state_of(trained, start, start)
    rows = problem.targets if examples is None else Examples.of(examples, "examples").to(problem.device)
    step = {name: end[name] - value for name, value in start.items()}
    found = []
    for block in rows.blocks(256):
        inputs, _ = rows.rows(block)
        with passes(start, "float32"):
            before, slope = pushed(partial(output_fn, inputs=inputs), start, step)
            after = output_fn(end, inputs)
        size = after if relative_to == "outputs" else after - before
        found.append((after - before - slope).norm(dim=1) / size.norm(dim=1).clamp_min(1e-12))
    errors: Floats = torch.cat(found).double().cpu().numpy()
    return errors
