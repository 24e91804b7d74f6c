"""Measuring: the true outcomes of many subsets, on one machine or a cluster, losing nothing.

Between designs and outcomes. `measure` makes a `Plan` of a design (plan.py) and an outcome function (outcome_fn.py says
what one is, fingerprint.py what its outcomes depend on), gives the rows that are not measured yet to an engine
(engine.py: inline.py in this process; pool.py over workers of local.py or cluster.py), and books what comes back in a
`Ledger`, each finished row on disk at once where there is a run folder (journal.py, lock.py).

A row is one run: a subset and a replicate. What it takes to measure one is the same in every engine (rows.py): call
the outcome function with a `whence.Subset` and a seed, and make numbers of what it returns (values.py).
"""

from whence.measuring.loop import measure

__all__ = ["measure"]
