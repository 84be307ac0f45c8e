"""The crash that the exact solver's tiles avoid: is it still there?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_BARE = """
import numpy as np
from scipy.linalg.lapack import spotrf
n = 30_000
A = np.ones((n, n), np.float32, order="F")
A[np.diag_indices(n)] += n
print(spotrf(A, overwrite_a=True)[1])
"""


@pytest.mark.skipif(
    "TALEREC_BLAS" not in os.environ, reason="takes minutes and 4 GB; set TALEREC_BLAS=1"
)
def test_a_bare_cholesky_of_30_000_items_still_crashes():
    done = subprocess.run([sys.executable, "-c", _BARE], capture_output=True, text=True)
    assert done.returncode < 0, (
        "OpenBLAS no longer crashes here: solvers/tiles.py now only saves memory (docs/by-hand.md)"
    )
