"""Minimise the loss of a linearised model on many subsets of tasks at once (step 1 of the paper's Algorithm 2).

For each subset s, over an update z of ``rank`` numbers,

    Σᵢ wᵢ(s) ℓ(fᵢ + ⟨gᵢ, z⟩, yᵢ) + ½ l2 ‖z‖²,

where the weights wᵢ(s) add up to one. All subsets share the features g, so that the updates are the rows of one matrix
and an iteration is two matrix products, whatever the number of subsets. They all start from the solution for the mean
of the subsets, found by Newton's method, with its Hessian as the shared preconditioner; a short L-BFGS memory per
subset adapts it. For the squared loss the answer is a linear system per subset, put together from one Gram
matrix per task.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from whence.errors import InputError, some_of
from whence.gradients.linearize import Linearization
from whence.losses import Loss, Squared
from whence.progress import track

_MEMORY = 10  # pairs of steps and gradient changes that L-BFGS remembers
_NEWTON_STEPS = 10  # for the mean of the subsets; it is only where they start
_HELD = 2**28  # outputs of subsets, in numbers, that are held at once: 1 GB


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Updates of all subsets, with certificates.

    Attributes
    ----------
    delta : tensor of shape (m, rank)
        The paper's Z, in the coordinates of the projection.
    objective : ndarray of shape (m,)
        Value of what was minimised.
    gradient_norm : ndarray of shape (m,)
        Norm of its gradient there, relative to the norm at zero, both in the metric of the preconditioner.
    converged : ndarray of shape (m,), bool
        Whether that is below the tolerance.
    n_iterations : int
    """

    delta: Tensor
    objective: NDArray[np.float64]
    gradient_norm: NDArray[np.float64]
    converged: NDArray[np.bool_]
    n_iterations: int

    def __repr__(self) -> str:
        done, m = int(self.converged.sum()), len(self.converged)
        worst = float(self.gradient_norm.max(initial=0.0))
        return (
            f"Solution: {done} of {m} subsets converged in {self.n_iterations} iterations (worst gradient {worst:.1e})"
        )


def weights_of(subsets: NDArray[np.float64], sizes: NDArray[np.int64], weighting: str) -> NDArray[np.float64]:
    """Weight of each example of each task, (m, K); those of all examples of a subset add up to one.

    Parameters
    ----------
    subsets : ndarray of shape (m, K)
        In or out, or weights; a subset without tasks has only zeros.
    sizes : ndarray of shape (K,)
        Examples per task.
    weighting : {"task", "sample"}
        Whether tasks count equally, as in the paper's weighted loss, or examples do.

    Examples
    --------
    >>> weights_of(np.array([[1.0, 1.0]]), np.array([1, 4]), "task")
    array([[0.5  , 0.125]])
    >>> weights_of(np.array([[1.0, 1.0]]), np.array([1, 4]), "sample")
    array([[0.2, 0.2]])
    """
    if weighting not in ("task", "sample"):
        raise InputError(f"The 'weighting' must be 'task' or 'sample'. Got {weighting!r}.")
    per_example = subsets / sizes if weighting == "task" else np.asarray(subsets, dtype=float)
    total = (per_example * sizes).sum(axis=1, keepdims=True)
    return np.divide(per_example, total, out=np.zeros_like(per_example), where=total > 0)


def solve(
    linear: Linearization,
    subsets: NDArray[np.float64],
    loss: Loss,
    *,
    l2: float,
    weighting: str = "task",
    tol: float = 1e-4,
    max_iter: int = 100,
) -> Solution:
    """Return the best update for each subset.

    Parameters
    ----------
    linear : Linearization
        Of the tasks.
    subsets : ndarray of shape (m, K)
        The update for the empty set is zero.
    loss : Loss
    l2 : float
        Penalty on the update, against a loss whose weights add up to one.
    weighting : {"task", "sample"}
    tol : float
        Gradient, relative to the one at zero, at which a subset is done.
    max_iter : int
        Iterations after which the rest is given up with a ``ConvergenceWarning`` that names the rows.
    """
    if not l2 > 0:
        raise InputError(f"The 'l2' penalty must be positive, so that there is one best update. Got {l2}.")
    weights = weights_of(subsets, linear.examples.sizes, weighting)
    by_task = torch.as_tensor(weights, dtype=linear.features.dtype, device=linear.outputs.device)
    if isinstance(loss, Squared):
        return _solve_squared(linear, by_task, loss, l2)
    n, width, _ = linear.features.shape
    parts = by_task.split(max(1, _HELD // (n * width)))
    solutions = [_minimise(_Problem(linear, part, loss, l2), tol, max_iter) for part in track(parts, "solving subsets")]
    found = Solution(
        torch.cat([part.delta for part in solutions]),
        *(
            np.concatenate([getattr(part, name) for part in solutions])
            for name in ("objective", "gradient_norm", "converged")
        ),
        max(part.n_iterations for part in solutions),
    )
    if not found.converged.all():
        rows = np.flatnonzero(~found.converged)
        warnings.warn(
            f"{len(rows)} of {len(subsets)} subsets did not converge in {max_iter} iterations (rows "
            f"{some_of(map(str, rows))}; gradient up to {found.gradient_norm.max():.1e} of its start): "
            "raise max_iter or l2.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return found


def _solve_squared(linear: Linearization, by_task: Tensor, loss: Squared, l2: float) -> Solution:
    """Solve (Σ_k w_k A_k + l2 I) z = −Σ_k w_k b_k with A_k, b_k of each task, in float64."""
    rank, n_tasks = linear.rank, len(linear.examples.names)
    options = {"dtype": torch.float64, "device": linear.outputs.device}
    gram, slope = torch.zeros(n_tasks, rank, rank, **options), torch.zeros(n_tasks, rank, **options)  # type: ignore[call-overload]
    start = torch.zeros(n_tasks, **options)  # type: ignore[call-overload]
    for rows, features in linear.blocks(1):
        owner, labels = linear.examples.owner[rows], linear.examples.labels[rows]
        for k in owner.unique().tolist():
            mine = owner == k
            g = features[mine].reshape(-1, rank).double()
            residual = loss.slope(linear.outputs[rows][mine], labels[mine]).double()
            gram[k] += g.T @ g
            slope[k] += g.T @ residual.flatten()
            start[k] += loss(linear.outputs[rows][mine], labels[mine]).double().sum()
    weights = by_task.double()
    eye = l2 * torch.eye(rank, **options)  # type: ignore[call-overload]
    delta = torch.zeros(len(weights), rank, **options)  # type: ignore[call-overload]
    objective = weights @ start
    norms = torch.zeros(len(weights), **options)  # type: ignore[call-overload]
    for i, w in enumerate(weights):
        a, b = torch.tensordot(w, gram, 1) + eye, w @ slope
        delta[i] = torch.cholesky_solve(-b[:, None], torch.linalg.cholesky(a))[:, 0]
        objective[i] += b @ delta[i] / 2
        norms[i] = (a @ delta[i] + b).norm() / b.norm().clamp_min(1e-300)
    settled = np.ones(len(weights), dtype=bool)
    return Solution(delta.to(linear.features.dtype), objective.cpu().numpy(), norms.cpu().numpy(), settled, 1)


class _Problem:
    """The objective of every subset: outputs, gradients and curvature, block by block of examples."""

    def __init__(self, linear: Linearization, by_task: Tensor, loss: Loss, l2: float) -> None:
        self.linear, self.by_task, self.loss, self.l2 = linear, by_task, loss, l2
        self.labels, self.owner = linear.examples.labels, linear.examples.owner

    def hessian(self, moved: Tensor, by_task: Tensor) -> Tensor:
        """Cholesky factor of the Hessian of a single subset, (rank, rank)."""
        rank = self.linear.rank
        eye = torch.eye(rank, dtype=by_task.dtype, device=by_task.device)
        matrix = self.l2 * eye
        for rows, features in self.linear.blocks(1):
            root = self.loss.root(self.linear.outputs[rows] + moved[0, rows], self.labels[rows]).to(features)
            curved = (root.transpose(1, 2) @ features) * by_task[0, self.owner[rows]].sqrt()[:, None, None]
            matrix += curved.reshape(-1, rank).T @ curved.reshape(-1, rank)
        return torch.linalg.cholesky(matrix + 10 * torch.finfo(eye.dtype).eps * matrix.diagonal().mean() * eye)

    def outputs(self, delta: Tensor) -> Tensor:
        """Changes of all outputs, (m, n, C): linear in the update, so that a step in one is a step in the other."""
        n, width, rank = self.linear.features.shape
        moved = delta.new_empty(len(delta), n, width)
        for rows, features in self.linear.blocks(len(delta)):
            moved[:, rows] = (delta @ features.reshape(-1, rank).T).view(len(delta), -1, width)
        return moved

    def gradient(self, delta: Tensor, moved: Tensor, by_task: Tensor) -> Tensor:
        """Gradient by each update, (m, rank)."""
        total = self.l2 * delta
        for rows, features in self.linear.blocks(len(delta)):
            total += self._slope(rows, moved, by_task).flatten(1) @ features.reshape(-1, self.linear.rank)
        return total

    def derivative(self, moved: Tensor, change: Tensor, by_task: Tensor) -> Tensor:
        """Derivative of the losses along a change of the outputs, (m,)."""
        total = moved.new_zeros(len(moved))
        for rows in self._rows(len(moved)):
            total += (self._slope(rows, moved, by_task) * change[:, rows]).flatten(1).sum(dim=1)
        return total

    def objective(self, delta: Tensor, moved: Tensor, by_task: Tensor) -> Tensor:
        """Value of what is minimised, (m,)."""
        total = self.l2 / 2 * delta.square().sum(dim=1)
        for rows in self._rows(len(moved)):
            losses = self.loss(self.linear.outputs[rows] + moved[:, rows], self.labels[rows])
            total += (losses * by_task[:, self.owner[rows]]).sum(dim=1)
        return total

    def _rows(self, n_subsets: int) -> Iterator[slice]:
        return self.linear.examples.blocks(self.linear.block_size(n_subsets))

    def _slope(self, rows: slice, moved: Tensor, by_task: Tensor) -> Tensor:
        slope = self.loss.slope(self.linear.outputs[rows] + moved[:, rows], self.labels[rows])
        return slope * by_task[:, self.owner[rows], None]


@dataclass
class _Subsets:
    """What is known of the subsets that are not done: a row each."""

    row: Tensor
    by_task: Tensor
    delta: Tensor
    moved: Tensor
    gradient: Tensor
    steps: list[Tensor]
    changes: list[Tensor]

    def only(self, keep: Tensor) -> _Subsets:
        """The same for some of them."""
        first = (self.row, self.by_task, self.delta, self.moved, self.gradient)
        pairs = ([x[keep] for x in self.steps], [x[keep] for x in self.changes])
        return _Subsets(*(x[keep] for x in first), *pairs)


def _minimise(problem: _Problem, tol: float, max_iter: int) -> Solution:
    """Run L-BFGS on all subsets together; those that are done leave the matrices."""
    factor, common = _pooled(problem)

    def norm(gradient: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(factor, gradient.T, upper=False).norm(dim=0)

    m = len(problem.by_task)
    some = problem.by_task.any(dim=1, keepdim=True)
    delta = some * common
    moved = some[:, :, None] * problem.outputs(common)
    gradient = problem.gradient(delta, moved, problem.by_task)
    now = _Subsets(torch.arange(m, device=delta.device), problem.by_task, delta, moved, gradient, [], [])
    at_zero = problem.gradient(torch.zeros_like(delta), torch.zeros_like(moved), problem.by_task)
    first = norm(at_zero).clamp_min(torch.finfo(delta.dtype).tiny)
    found, objective, norms = torch.zeros_like(delta), torch.zeros_like(first), torch.zeros_like(first)
    for iteration in range(max_iter + 1):
        relative = norm(now.gradient) / first[now.row]
        leaving = (relative <= tol) | (iteration == max_iter)
        if bool(leaving.any()):
            gone = now.only(leaving)
            found[gone.row], norms[gone.row] = gone.delta, relative[leaving]
            objective[gone.row] = problem.objective(gone.delta, gone.moved, gone.by_task)
            now = now.only(~leaving)
            if not len(now.row):
                break
        _step(problem, factor, now)
    return Solution(found, _numbers(objective), _numbers(norms), _numbers(norms) <= tol, iteration)


def _pooled(problem: _Problem) -> tuple[Tensor, Tensor]:
    """Return the factor of the Hessian where the mean of all subsets is solved, and that update, (1, rank)."""
    by_task = problem.by_task.mean(dim=0, keepdim=True)
    delta = by_task.new_zeros(1, problem.linear.rank)
    moved = problem.outputs(delta)
    gradient = problem.gradient(delta, moved, by_task)
    start = None
    for _ in range(_NEWTON_STEPS):
        factor = problem.hessian(moved, by_task)
        decrement = float(torch.linalg.solve_triangular(factor, gradient.T, upper=False).norm())
        start = start or decrement
        if decrement <= 0.1 * start:
            break
        now = _Subsets(torch.zeros(1), by_task, delta, moved, gradient, [], [])
        _step(problem, factor, now)
        delta, moved, gradient = now.delta, now.moved, now.gradient
    return factor, delta


def _step(problem: _Problem, factor: Tensor, now: _Subsets) -> None:
    """Move every subset along its own quasi-Newton direction."""
    direction = -_two_loops(now, factor)
    start = (direction * now.gradient).sum(dim=1)
    change = problem.outputs(direction)
    delta, moved = now.delta + direction, now.moved + change
    gradient = problem.gradient(delta, moved, now.by_task)
    # The objective is convex along the line: a step is good once the slope there is clearly smaller.
    poor = (direction * gradient).sum(dim=1).abs() > 0.9 * start.abs()
    if bool(poor.any()):
        length = _line_search(problem, now.only(poor), direction[poor], change[poor], start[poor])
        delta[poor] = now.delta[poor] + length[:, None] * direction[poor]
        moved[poor] = now.moved[poor] + length[:, None, None] * change[poor]
        gradient[poor] = problem.gradient(delta[poor], moved[poor], now.by_task[poor])
    now.steps.append(delta - now.delta)
    now.changes.append(gradient - now.gradient)
    del now.steps[:-_MEMORY], now.changes[:-_MEMORY]
    now.delta, now.moved, now.gradient = delta, moved, gradient


def _line_search(problem: _Problem, now: _Subsets, direction: Tensor, change: Tensor, start: Tensor) -> Tensor:
    """Return how far to go along each direction: near where the slope is zero, between a bracket's ends, (m,)."""
    low, high = torch.zeros_like(start), torch.full_like(start, float("inf"))
    slope_low, slope_high = start.clone(), torch.ones_like(start)
    length = torch.ones_like(start)
    curved, along = problem.l2 * direction.square().sum(dim=1), problem.l2 * (now.delta * direction).sum(dim=1)
    for _ in range(30):
        slope = problem.derivative(now.moved + length[:, None, None] * change, change, now.by_task)
        slope = slope + along + length * curved
        before = slope < 0
        low, slope_low = torch.where(before, length, low), torch.where(before, slope, slope_low)
        high, slope_high = torch.where(before, high, length), torch.where(before, slope_high, slope)
        if bool((slope.abs() <= 0.5 * start.abs()).all()):
            break
        secant = low - slope_low * (high - low) / (slope_high - slope_low)
        inside = secant.clamp(low + 0.1 * (high - low), high - 0.1 * (high - low))
        settled = slope.abs() <= 0.5 * start.abs()
        length = torch.where(settled, length, torch.where(high.isinf(), 2 * length, inside))
    return length


def _two_loops(now: _Subsets, factor: Tensor) -> Tensor:
    """Return the inverse Hessian, as the memory and the preconditioner know it, times the gradient, (m, rank)."""
    q, weights = now.gradient, []
    for step, change in zip(reversed(now.steps), reversed(now.changes), strict=True):
        curvature = (step * change).sum(dim=1)
        inverse = torch.where(curvature > 0, 1 / curvature, 0.0)
        weight = inverse * (step * q).sum(dim=1)
        q = q - weight[:, None] * change
        weights.append((inverse, weight))
    r = torch.cholesky_solve(q.T, factor).T
    for step, change, (inverse, weight) in zip(now.steps, now.changes, reversed(weights), strict=True):
        r = r + step * (weight - inverse * (change * r).sum(dim=1))[:, None]
    return r


def _numbers(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.double().cpu().numpy()
