"""Surrogates: scikit-learn regressors from subsets to outcomes, and the choice between them.

protocol.py       what every surrogate can do       mixture.py        over which subsets effects are averaged
additive.py       one coefficient per task          ridge.py          its linear algebra
kernels.py        kernels; those that are products  sum_kernels.py    those of a sum over tasks
kernel.py         kernel ridge regression           combined.py       several kernels, tuned by their evidence
posterior.py      the Gaussian process behind both  tuning.py         their hyperparameters
coordinates.py    subsets as kernels see them       warp.py           outcomes on a rank scale
fused.py, rungs.py, slopes.py    true runs and estimates in one
choose.py         fit and Model                     crossvalidation.py
"""
