"""What tests share: a table, one thread for linear algebra, since small matrices on many threads crawl, and examples
drawn alike in every run, since a verdict is that of the tree (`--hypothesis-profile default` hunts for new ones).
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from whence.outcomes import Outcomes

threadpool_limits(1)
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


@pytest.fixture
def runs():
    """Three targets, replicates, gaps, unicode names, both directions."""
    rng = np.random.default_rng(0)
    subsets = (rng.random((12, 4)) < 0.5).astype(float)
    subsets[6:9] = subsets[:3]
    subsets[9] = subsets[0]
    values = rng.normal(size=(12, 3))
    values[[2, 8], 0] = np.nan
    values[0, 1] = np.nan
    return Outcomes(
        subsets,
        values,
        task_names=["code", "Mathe, höher", '数学 "x"', "a_b"],
        target_names=["loss", "acc", "temps d'exécution"],
        maximize=["acc"],
        provenance={"source": "runs.csv", "estimator": "GradEx — π"},
    )
