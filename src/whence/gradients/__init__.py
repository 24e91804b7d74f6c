"""A model linearised once, f(W) ≈ f(W₀) + ∇f·(W − W₀), along a few directions: where every gradient method starts.

linearize.py, store.py         outputs and features of every example, in memory or on disk
projections.py, factored.py    directions: dense or sparse ones, and Kronecker products from what layers see
routes.py                      ways to the features, and what each costs
solve.py, penalty.py           the best update for every subset, and how strongly to hold it back
groups.py                      gradients of tasks and targets
"""
