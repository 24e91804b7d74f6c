"""Measuring: the true outcomes of many subsets, on one machine or a cluster, losing nothing.

`measure` makes a `Plan` (plan.py) from a design and an outcome function (outcome_fn.py is its contract, fingerprint.py
finds what its outcomes depend on). It gives the rows that are not measured yet to an engine (engine.py: inline.py in
this process; pool.py over workers of local.py or cluster.py) and records the results in a `Ledger`. With a run folder,
each finished row is written to disk at once (journal.py).

A row is one run: a subset and a replicate. All engines measure it in the same way (rows.py): they call the outcome
function with a `whence.Subset` and a seed, and convert what it returns to numbers (values.py).
"""

from whence.measuring.loop import measure

__all__ = ["measure"]
