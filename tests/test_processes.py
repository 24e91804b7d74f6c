"""Two processes of torchrun share the features of a problem, and both have the estimates of one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from torchrun_features import estimates


@pytest.mark.slow
def test_two_processes_share_the_examples_and_get_the_same_estimates(tmp_path):
    script = Path(__file__).with_name("torchrun_features.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, script, tmp_path], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    parts = [np.load(tmp_path / f"rank{rank}.npz") for rank in range(2)]
    for part in parts:
        np.testing.assert_allclose(part["values"], estimates(), rtol=1e-5)
    # 21 examples of tasks and 5 queries, no example twice
    assert [int(part["rows"]) for part in parts] == [12, 14]
    assert "under torchrun, leave store= out" in done.stdout
