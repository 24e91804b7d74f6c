"""Independent truths: plain loops over all 2^K subsets, np.linalg.solve, textbook formulas.

Nothing here calls the code under test. A set function is given as a dictionary from subsets (tuples of 0 and 1)
to an array of outcomes (T,), or as anything that can be tabulated into one (`table_of`).
"""

from __future__ import annotations

from itertools import combinations, product
from math import comb, factorial

import numpy as np
from scipy.stats import multivariate_normal, norm

# ---- subsets and set functions ---------------------------------------------------------------------------


def all_subsets(n_tasks):
    """Every subset as a row, (2^K, K)."""
    return np.array(list(product((0.0, 1.0), repeat=n_tasks))).reshape(-1, n_tasks)


def table_of(predict, n_tasks):
    """Tabulate a function of rows of 0/1 as {subset: outcomes (T,)}."""
    rows = all_subsets(n_tasks)
    values = np.asarray(predict(rows)).reshape(len(rows), -1)
    return {tuple(int(s) for s in row): value for row, value in zip(rows, values, strict=True)}


def random_quadratic(n_tasks, rng):
    """c, g and a symmetric H (with a diagonal) of F(s) = c + gᵀ(s − 1) + ½ (s − 1)ᵀ H (s − 1)."""
    H = rng.normal(size=(n_tasks, n_tasks))
    return rng.normal(), rng.normal(size=n_tasks), H + H.T


def quadratic(rows, c, g, H):
    """F(s) of `random_quadratic`, row by row."""
    return np.array([c + g @ (s - 1) + 0.5 * (s - 1) @ H @ (s - 1) for s in rows])


# ---- attribution and interactions by their textbook definitions ------------------------------------------


def _with(subset, *tasks):
    return tuple(1 if k in tasks else s for k, s in enumerate(subset))


def _others(n_tasks, *tasks):
    """All subsets without the given tasks."""
    rest = [k for k in range(n_tasks) if k not in tasks]
    for size in range(len(rest) + 1):
        for members in combinations(rest, size):
            yield tuple(int(k in members) for k in range(n_tasks)), size


def _tasks_of(table):
    return len(next(iter(table)))


def shapley(table):
    """Σ_S |S|! (K−|S|−1)! / K! · [F(S + k) − F(S)], (K, T)."""
    K = _tasks_of(table)
    return np.array(
        [
            sum(
                factorial(n) * factorial(K - n - 1) / factorial(K) * (table[_with(s, k)] - table[s])
                for s, n in _others(K, k)
            )
            for k in range(K)
        ]
    )


def banzhaf(table):
    """The mean of F(S + k) − F(S) over the 2^(K−1) subsets S without k, (K, T)."""
    K = _tasks_of(table)
    return np.array([sum(table[_with(s, k)] - table[s] for s, _ in _others(K, k)) / 2 ** (K - 1) for k in range(K)])


def loo(table):
    """F(1) − F(1 − e_k), (K, T)."""
    K = _tasks_of(table)
    full = (1,) * K
    return np.array([table[full] - table[tuple(int(j != k) for j in range(K))] for k in range(K)])


def inclusion(table, keep_prob):
    """The mean over subsets that contain k less the mean over all, under Bernoulli(keep_prob)^K, (K, T)."""
    K = _tasks_of(table)
    chance = {s: keep_prob ** sum(s) * (1 - keep_prob) ** (K - sum(s)) for s in table}
    everything = sum(chance[s] * table[s] for s in table)
    return np.array(
        [
            sum(chance[s] * table[s] for s in table if s[k])
            / sum(chance[s] for s in table if s[k])
            - everything
            for k in range(K)
        ]
    )  # fmt: skip


def attribution(table, rule, keep_prob=0.5):
    rules = {"shapley": shapley, "banzhaf": banzhaf, "loo": loo}
    return inclusion(table, keep_prob) if rule == "inclusion" else rules[rule](table)


def _second_difference(table, s, k, j):
    return table[_with(s, k, j)] - table[_with(s, k)] - table[_with(s, j)] + table[s]


def interaction(table, rule):
    """Shapley's and Banzhaf's interaction indices, and the second difference at the full set, (K, K, T)."""
    K = _tasks_of(table)
    out = np.zeros((K, K, len(next(iter(table.values())))))
    for k, j in combinations(range(K), 2):
        for s, n in _others(K, k, j):
            if rule == "shapley":
                weight = factorial(n) * factorial(K - n - 2) / factorial(K - 1)
            elif rule == "banzhaf":
                weight = 1 / 2 ** (K - 2)
            elif rule == "loo":
                weight = float(n == K - 2)
            else:
                raise KeyError(rule)
            out[k, j] += weight * _second_difference(table, s, k, j)
        out[j, k] = out[k, j]
    return out


def effect_weights(n_tasks, tasks, nodes, weights):
    """The signed weight of every row of `all_subsets` in Σ_q w_q E_q[difference in ``tasks``], (2^K,).

    The other tasks are in with probability q; the weight is positive where an even number of ``tasks`` is out.
    """
    out = []
    for s in all_subsets(n_tasks):
        sign = np.prod([1.0 if s[k] else -1.0 for k in tasks])
        chance = 0.0
        for q, weight in zip(nodes, weights, strict=True):
            p = weight
            for k in range(n_tasks):
                if k not in tasks:
                    p *= q if s[k] else 1 - q
            chance += p
        out.append(sign * chance)
    return np.array(out)


def fixed_size_weights(n_tasks, size):
    """The weight of every row of `all_subsets` in the mean over those of one size (2^K,), and in the mean over those
    of this size that have a task less the mean over all of this size (K, 2^K)."""
    S = all_subsets(n_tasks)
    overall = (S.sum(1) == size) / comb(n_tasks, size)
    having = [(S.sum(1) == size) * S[:, k] / comb(n_tasks - 1, size - 1) for k in range(n_tasks)]
    return overall, np.array(having) - overall


def bernoulli_weights(n_tasks, q):
    """The probability of every row of `all_subsets` under Bernoulli(q)^K, (2^K,)."""
    return np.array([np.prod([q if s_k else 1 - q for s_k in s]) for s in all_subsets(n_tasks)])


# ---- kernels, entry by entry -----------------------------------------------------------------------------


def gram(kernel, X, Y):
    """kernel(x, y) for every pair of rows, by two loops."""
    return np.array([[kernel(x, y) for y in Y] for x in X]).reshape(len(X), len(Y))


def polynomial(degree, weights, offset):
    return lambda x, y: (offset + sum(w * a * b for w, a, b in zip(weights, x, y, strict=True))) ** degree


def rbf(rates):
    return lambda x, y: float(np.exp(-sum(r * (a - b) ** 2 for r, a, b in zip(rates, x, y, strict=True))))


def laplacian(rates):
    return lambda x, y: float(np.exp(-sum(r * abs(a - b) for r, a, b in zip(rates, x, y, strict=True))))


def brownian(rates):
    def factor(r, a, b):
        return 1 + r * min(abs(a), abs(b)) if a * b > 0 else 1.0

    return lambda x, y: float(np.prod([factor(r, a, b) for r, a, b in zip(rates, x, y, strict=True)]))


def size(rate, size_of):
    return lambda x, y: float(np.exp(-rate * (size_of(x) - size_of(y)) ** 2))


def combined(theta, n_parts, size_of=None, size_unit=1.0):
    """The kernel 1 + linear + pairs + RBF (+ size) of the logarithms θ, and its noise."""
    values = [float(np.exp(t)) for t in theta]
    variances, noise, rate, size_rate = values[:n_parts], values[n_parts], values[n_parts + 1], values[n_parts + 2]
    relevance = values[n_parts + 3 :]
    D = len(relevance)

    def kernel(x, y):
        inner = sum(w / D * a * b for w, a, b in zip(relevance, x, y, strict=True))
        distance = sum(w / D * (a - b) ** 2 for w, a, b in zip(relevance, x, y, strict=True))
        total = 1 + variances[0] * inner + variances[1] * inner**2 + variances[2] * np.exp(-rate / 2 * distance)
        if n_parts == 4:
            gap = (size_of(x) - size_of(y)) / size_unit
            total += variances[3] * np.exp(-size_rate / 2 * gap**2)
        return float(total)

    return kernel, noise


# ---- Gaussian processes ----------------------------------------------------------------------------------


def gp_predict(kernel, noise, X, Y, new, level=0.0):
    """Mean (n, T) and covariance (n, n) of the process at ``new`` given Y (m, T), with noise variances (m,)."""
    C = gram(kernel, X, X) + np.diag(noise)
    against = gram(kernel, new, X)
    mean = level + against @ np.linalg.solve(C, Y - level)
    return mean, gram(kernel, new, new) - against @ np.linalg.solve(C, against.T)


def refits_without_each(G, noise, Y, level=None):
    """What each row is predicted by a process that has not seen it (m, T), and the variance of a run there (m,).

    G (m, m) is the kernel between the rows. ``level`` (T,) is kept; None takes the mean of the rows that are
    left, weighted by 1 / noise.
    """
    mean, variance = np.empty_like(Y), np.empty(len(Y))
    for i in range(len(Y)):
        rest = np.arange(len(Y)) != i
        at = np.average(Y[rest], axis=0, weights=1 / noise[rest]) if level is None else level
        pull = np.linalg.solve(G[np.ix_(rest, rest)] + np.diag(noise[rest]), G[rest, i])
        mean[i] = at + pull @ (Y[rest] - at)
        variance[i] = G[i, i] - pull @ G[rest, i] + noise[i]
    return mean, variance


def profile_log_evidence(C, z):
    """The greatest log density of z under N(0, scale²·C), with the scale at which it is reached."""
    scale = np.sqrt(z @ np.linalg.solve(C, z) / len(z))
    return multivariate_normal(np.zeros(len(z)), scale**2 * C).logpdf(z), scale


def normal_quantile(level):
    return float(norm.ppf((1 + level) / 2))


# ---- linear surrogates in the population (paper, proposition on second-order datamodels) -----------------


def population_least_squares(F, p):
    """Intercept, coefficients and residual error of the best linear predictor of F (2^K,) under Bernoulli(p)^K."""
    K = int(np.log2(len(F)))
    S = all_subsets(K)
    chance = bernoulli_weights(K, p)
    A = np.column_stack([np.ones(len(S)), S])
    solution = np.linalg.solve(A.T @ (chance[:, None] * A), A.T @ (chance * F))
    return solution[0], solution[1:], float(chance @ (F - A @ solution) ** 2)


# ---- selection -------------------------------------------------------------------------------------------


def allowed(subset, *, size=None, max_size=None, costs=None, budget=None, include=(), exclude=()):
    """Whether a subset, a tuple of the indices of its tasks, meets the constraints."""
    chosen = set(subset)
    return (
        len(chosen) >= 1
        and (size is None or len(chosen) == size)
        and (max_size is None or len(chosen) <= max_size)
        and (costs is None or sum(costs.get(k, 0.0) for k in subset) <= budget + 1e-9)
        and set(include) <= chosen
        and not set(exclude) & chosen
    )


def best_subset(goodness, n_tasks, **constraints):
    """The greatest goodness (a function of one row) over all allowed subsets, and that row; None if none is."""
    best = None
    for size in range(1, n_tasks + 1):
        for members in combinations(range(n_tasks), size):
            if allowed(members, **constraints):
                row = np.zeros(n_tasks)
                row[list(members)] = 1
                value = goodness(row)
                if best is None or value > best[0]:
                    best = (value, row)
    return best


def n_subsets(n_free, sizes):
    return sum(comb(n_free, size) for size in sizes)
