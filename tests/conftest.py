"""What tests share: a table, one thread for linear algebra, since small matrices on many threads crawl, and examples
drawn alike in every run, since a verdict is that of the tree (`--hypothesis-profile default` hunts for new ones).
"""

import os
import random
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
# On a busy machine Ray takes its time to start, and to say that a worker has died.
os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "120")
os.environ.setdefault("RAY_timeout_ms_task_wait_for_death_info", "120000")
os.environ.setdefault("RAY_worker_register_timeout_seconds", "300")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # it ends workers where others fill the memory

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from threadpoolctl import threadpool_limits

from whence.outcomes import Outcomes

threadpool_limits(1)
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")
# Constants of the modules that are loaded are drawn too, and which are loaded depends on the tests before.
no_constants = getattr(providers, "_local_constants", None)
providers._get_local_constants = lambda: no_constants


def seed_all():
    """Seed the generators that are shared by all tests of a process."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def seeded_module():
    """What a module draws does not depend on the modules before it, which differ from worker to worker."""
    seed_all()


@pytest.fixture(autouse=True)
def seeded():
    """Nor what a test draws on the tests before it."""
    seed_all()


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
