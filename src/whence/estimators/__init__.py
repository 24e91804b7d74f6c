"""Outcome functions of models: the outcome of any subset of tasks, true and slow or estimated and fast.

retrain.py, refit.py           true: a training for each subset, of a PyTorch model or of scikit-learn's
merge.py, checkpoints.py       task vectors, trained or read from files; merged.py, deltas.py, diagnosis.py
onestep.py                     one step along the gradients of the tasks
gradex.py, trajectory.py       GradEx, at W₀ or along one run
truth.py, linearity.py         estimates compared with true runs; how linear a model is
subsets.py, digests.py         what all of them are given, and what identifies a problem
"""
