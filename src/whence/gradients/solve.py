"""Minimise the loss of a linearised model on many subsets of tasks at once (step 1 of the paper's Algorithm 2).

For each subset s, over an update z of ``rank`` numbers,

    Σᵢ wᵢ(s) ℓ(fᵢ + ⟨gᵢ, z⟩, yᵢ) + ½ l2 ‖z‖²,

where the weights wᵢ(s) add up to one. All subsets share the features g, so the updates are the rows of one matrix
and an iteration is two matrix products, whatever the number of subsets. They all start from the solution for all
examples together, found by Newton's method, with its Hessian as the shared preconditioner, so an update does not
depend on which subsets are solved beside it (but for rounding); a short L-BFGS memory per subset adapts it. For the
squared loss the answer is a linear system per subset, put together from one Gram matrix per task.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from whence.arrays import Floats
from whence.errors import InputError, some_of
from whence.gradients.linearize import Linearization
from whence.models.losses import Loss, Squared
from whence.progress import track

_MEMORY = 10  # pairs of steps and gradient changes that L-BFGS remembers
_TRIALS = 40  # lengths of a step, at most
_NEWTON_STEPS = 50  # of a single subset, at most
_START_GAP = 0.01  # to which all examples together are solved; it is only where subsets start
_HELD = 2**28  # outputs of subsets, in numbers, that are held at once: 1 GB


@dataclass(frozen=True, eq=False, repr=False)
class Solution:
    """Updates of all m subsets, with certificates."""

    delta: Tensor  # (m, rank): the paper's Z, in the coordinates of the projection
    objective: Floats  # (m,): value of what was minimised
    gradient_norm: Floats  # (m,): norm of its gradient there
    gap: Floats  # (m,): relative decrease that a Newton step with the shared Hessian would still bring
    converged: NDArray[np.bool_]  # (m,): whether the gap is below the tolerance
    n_iterations: int

    def __repr__(self) -> str:
        done, m = int(self.converged.sum()), len(self.converged)
        largest = float(self.gap.max(initial=0.0))
        return (
            f"Solution: {done} of {m} subsets converged in {self.n_iterations} iterations (largest gap {largest:.1e})"
        )


def solve(
    linear: Linearization,
    shares: Floats,
    loss: Loss,
    *,
    l2: float,
    tol: float = 1e-7,
    max_iter: int = 50,
) -> Solution:
    """Return the best update for each subset, given the ``shares`` (m, K) of the tasks in its loss.

    Shares, as `whence.models.sampling.task_shares` gives them, add up to one (to less if subsets are to count by their
    size), or are all zero for the empty subset, whose update is zero. A subset is done at a gap of ``tol``, relative to
    its objective. After ``max_iter`` iterations on all together, subsets are ended one by one; a ``ConvergenceWarning``
    names those for which that was not enough either.
    """
    if not l2 > 0:
        raise InputError(f"The 'l2' penalty must be positive, so that there is one best update. Got {l2}.")
    by_task = torch.as_tensor(shares / linear.examples.sizes, dtype=linear.features.dtype, device=linear.outputs.device)
    if isinstance(loss, Squared):
        return _solve_squared(linear, by_task, loss, l2)
    n, width, _ = linear.features.shape
    parts = torch.split(by_task, max(1, _HELD // (n * width)))
    start = torch.full_like(by_task[:1], 1 / n)  # all examples alike
    problems = (_Problem(linear, part, loss, l2) for part in track(parts, "solving subsets"))
    solutions = [_minimise(problem, start, tol, max_iter) for problem in problems]
    certificates = ((part.objective, part.gradient_norm, part.gap, part.converged) for part in solutions)
    objective, norm, gap, converged = (np.concatenate(parts) for parts in zip(*certificates, strict=True))
    delta = torch.cat([part.delta for part in solutions])
    found = Solution(delta, objective, norm, gap, converged, max(part.n_iterations for part in solutions))
    if not found.converged.all():
        rows = np.flatnonzero(~found.converged)
        warnings.warn(
            f"{len(rows)} of {len(shares)} subsets did not converge (rows {some_of(map(str, rows))}; "
            f"gap up to {np.nanmax(found.gap):.1e}): raise l2.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return found


def _solve_squared(linear: Linearization, by_task: Tensor, loss: Squared, l2: float) -> Solution:
    """Solve (Σ_k w_k A_k + l2 I) z = −Σ_k w_k b_k with A_k, b_k of each task, in float64."""
    rank, n_tasks = linear.rank, len(linear.examples.names)
    zeros = partial(torch.zeros, dtype=torch.float64, device=linear.outputs.device)
    gram, slope, start = zeros((n_tasks, rank, rank)), zeros((n_tasks, rank)), zeros((n_tasks,))
    for rows, features in linear.blocks(1):
        owner, labels = linear.examples.owner[rows], linear.examples.labels[rows]
        for k in sorted(set(owner.tolist())):
            mine = owner == k
            g = features[mine].reshape(-1, rank).double()
            losses, residual = loss.with_slope(linear.outputs[rows][mine], labels[mine])
            gram[k] += g.T @ g
            slope[k] += g.T @ residual.double().flatten()
            start[k] += losses.double().sum()
    weights = by_task.double()
    eye = l2 * torch.eye(rank, dtype=torch.float64, device=linear.outputs.device)
    delta, norms = zeros((len(weights), rank)), zeros((len(weights),))
    objective = weights @ start
    for i, w in enumerate(weights):
        a, b = torch.tensordot(w, gram, 1) + eye, w @ slope
        delta[i] = torch.cholesky_solve(-b[:, None], torch.linalg.cholesky(a))[:, 0]
        objective[i] += b @ delta[i] / 2
        norms[i] = (a @ delta[i] + b).norm()
    exact = np.zeros(len(weights))
    return Solution(delta.to(linear.features.dtype), _numbers(objective), _numbers(norms), exact, exact == 0, 1)


class _Problem:
    """The objective of every subset: outputs, gradients and curvature, block by block of examples."""

    def __init__(self, linear: Linearization, by_task: Tensor, loss: Loss, l2: float) -> None:
        self.linear, self.by_task, self.loss, self.l2 = linear, by_task, loss, l2
        self.labels, self.owner = linear.examples.labels, linear.examples.owner

    def at(self, row: Tensor, by_task: Tensor, delta: Tensor, moved: Tensor) -> _Subsets:
        """State of subsets at some updates."""
        gradient, value = self.with_gradient(delta, moved, by_task)
        return _Subsets(row, by_task, delta, moved, gradient, value, [], [])

    def hessian(self, moved: Tensor, by_task: Tensor) -> Tensor:
        """Cholesky factor of the Hessian of a single subset, (rank, rank)."""
        rank = self.linear.rank
        eye = torch.eye(rank, dtype=by_task.dtype, device=by_task.device)
        matrix = self.l2 * eye
        for rows, features in self.linear.blocks(1):
            root = self.loss.root(self.linear.outputs[rows] + moved[0, rows], self.labels[rows]).to(features)
            curved = (root.transpose(1, 2) @ features) * by_task[0, self.owner[rows]].sqrt()[:, None, None]
            matrix += curved.reshape(-1, rank).T @ curved.reshape(-1, rank)
        factor: Tensor = torch.linalg.cholesky(
            matrix + 10 * torch.finfo(eye.dtype).eps * matrix.diagonal().mean() * eye
        )
        return factor

    def outputs(self, delta: Tensor) -> Tensor:
        """Changes of all outputs, (m, n, C): linear in the update, so a step in one is a step in the other."""
        n, width, rank = self.linear.features.shape
        moved = delta.new_empty(len(delta), n, width)
        for rows, features in self.linear.blocks(len(delta)):
            moved[:, rows] = (delta @ features.reshape(-1, rank).T).view(len(delta), -1, width)
        return moved

    def with_gradient(self, delta: Tensor, moved: Tensor, by_task: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient by each update, (m, rank), and the value of what is minimised, (m,)."""
        gradient, value = self.l2 * delta, self.l2 / 2 * delta.square().sum(dim=1)
        for rows, features in self.linear.blocks(len(delta)):
            losses, slope = self._losses(rows, moved, by_task)
            gradient += slope.flatten(1) @ features.reshape(-1, self.linear.rank)
            value += losses
        return gradient, value

    def along(self, now: _Subsets, length: Tensor, direction: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Objective and its derivative by the length, both (m,), after a step of some length in a direction."""
        delta, moved = now.delta + length[:, None] * direction, now.moved + length[:, None, None] * change
        value, slope = self.l2 / 2 * delta.square().sum(dim=1), self.l2 * (delta * direction).sum(dim=1)
        for rows in self.linear.examples.blocks(self.linear.block_size(len(moved))):
            losses, slopes = self._losses(rows, moved, now.by_task)
            value += losses
            slope += (slopes * change[:, rows]).flatten(1).sum(dim=1)
        return value, slope

    def _losses(self, rows: slice, moved: Tensor, by_task: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted sum of the losses of a block, (m,), and their weighted slopes, (m, b, C)."""
        losses, slope = self.loss.with_slope(self.linear.outputs[rows] + moved[:, rows], self.labels[rows])
        weights = by_task[:, self.owner[rows]]
        return (losses * weights).sum(dim=1), slope.mul_(weights[..., None])


@dataclass
class _Subsets:
    """State of the subsets that have not converged, one row each."""

    row: Tensor
    by_task: Tensor
    delta: Tensor
    moved: Tensor
    gradient: Tensor
    value: Tensor
    steps: list[Tensor]
    changes: list[Tensor]

    def only(self, keep: Tensor) -> _Subsets:
        """The same for some of them."""
        found = copy.copy(self)
        for name, value in vars(self).items():
            setattr(found, name, [one[keep] for one in value] if isinstance(value, list) else value[keep])
        return found


def _minimise(problem: _Problem, start: Tensor, tol: float, max_iter: int) -> Solution:
    """Run L-BFGS on all subsets together, then Newton's method on each that has not converged.

    Subsets start from the solution of the one with the weights ``start``, (1, K).
    """
    m = len(problem.by_task)
    delta = problem.by_task.new_zeros(m, problem.linear.rank)
    certificates = problem.by_task.new_full((3, m), torch.nan)

    def book(done: _Subsets, gap: Tensor) -> None:
        delta[done.row] = done.delta
        certificates[:, done.row] = torch.stack([done.value, done.gradient.norm(dim=1), gap])

    common = problem.at(start[:, 0], start, delta[:1], problem.outputs(delta[:1]))
    factor = _newton(problem, common, _START_GAP)
    some = problem.by_task.any(dim=1, keepdim=True)
    rows = torch.arange(m, device=start.device)
    now = problem.at(rows, problem.by_task, some * common.delta, some[:, :, None] * common.moved)
    iteration = 0
    while True:
        gap = _gap(now, factor)
        done = gap <= tol
        if bool(done.any()):
            book(now.only(done), gap[done])
            now = now.only(~done)
        if not len(now.row) or iteration == max_iter:
            break
        _step(problem, factor, now)
        iteration += 1
    for i in range(len(now.row)):
        one = now.only(torch.arange(len(now.row), device=rows.device) == i)
        own = _newton(problem, one, tol)
        book(one, _gap(one, own))
    objective, norms, gaps = _numbers(certificates)
    return Solution(delta, objective, norms, gaps, gaps <= tol, iteration)


def _gap(now: _Subsets, factor: Tensor) -> Tensor:
    """By how much a Newton step would lower each objective, g·H⁻¹g / 2, relative to its value, (m,)."""
    gain: Tensor = torch.linalg.solve_triangular(factor, now.gradient.T, upper=False).square().sum(dim=0) / 2
    return gain / now.value.clamp_min(torch.finfo(gain.dtype).tiny)


def _newton(problem: _Problem, one: _Subsets, tol: float) -> Tensor:
    """Move a single subset to its minimum; return the factor of the Hessian there."""
    for _ in range(_NEWTON_STEPS):
        factor = problem.hessian(one.moved, one.by_task)
        if bool(_gap(one, factor) <= tol):
            break
        one.steps.clear()  # the factor has all there is to know
        one.changes.clear()
        _step(problem, factor, one)
    return factor


def _step(problem: _Problem, factor: Tensor, now: _Subsets) -> None:
    """Move every subset along its own quasi-Newton direction."""
    direction = -_two_loops(now, factor)
    change = problem.outputs(direction)
    start = (direction * now.gradient).sum(dim=1)
    delta, moved = now.delta + direction, now.moved + change
    gradient, value = problem.with_gradient(delta, moved, now.by_task)
    poor = ~_good(value, (direction * gradient).sum(dim=1), now.value, start, torch.ones_like(start))
    if bool(poor.any()):
        some = now.only(poor)
        length = _line_search(problem, some, direction[poor], change[poor], start[poor])
        delta[poor] = some.delta + length[:, None] * direction[poor]
        moved[poor] = some.moved + length[:, None, None] * change[poor]
        gradient[poor], value[poor] = problem.with_gradient(delta[poor], moved[poor], some.by_task)
    now.steps.append(delta - now.delta)
    now.changes.append(gradient - now.gradient)
    del now.steps[:-_MEMORY], now.changes[:-_MEMORY]
    now.delta, now.moved, now.gradient, now.value = delta, moved, gradient, value


def _good(value: Tensor, slope: Tensor, value_start: Tensor, slope_start: Tensor, length: Tensor) -> Tensor:
    """Whether a step lowers the objective enough, up to rounding, and ends where it is clearly less steep (Wolfe)."""
    rounding = 10 * torch.finfo(value.dtype).eps * value_start.abs()
    lower = value <= value_start + 1e-4 * length * slope_start + rounding
    return lower & (slope.abs() <= 0.9 * slope_start.abs())


def _line_search(problem: _Problem, now: _Subsets, direction: Tensor, change: Tensor, start: Tensor) -> Tensor:
    """Return how far to go along each direction, (m,).

    The objective is convex along the line, so the sign of its slope says on which side the minimum is.
    """
    low, high = torch.zeros_like(start), torch.full_like(start, torch.inf)
    length = torch.ones_like(start)
    for _ in range(_TRIALS):
        value, slope = problem.along(now, length, direction, change)
        good = _good(value, slope, now.value, start, length)
        if bool(good.all()):
            break
        before = slope < 0
        low, high = torch.where(before, length, low), torch.where(before, high, length)
        between = torch.where(low > 0, (low * high).sqrt(), high / 10)
        length = torch.where(good, length, torch.where(high.isinf(), 4 * length, between))
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


def _numbers(tensor: Tensor) -> Floats:
    return tensor.double().cpu().numpy()
