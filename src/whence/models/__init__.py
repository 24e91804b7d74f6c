"""Models: what every estimator and baseline works on, and how it is trained.

problem.py      a PyTorch model with tasks to train on and targets to judge by     examples.py   its data
recipe.py       how a training goes     training.py   many of them side by side    sampling.py   who is in which batch
losses.py       losses and metrics      functional.py the model as a function of its parameters
points.py       checkpoints             targets.py    outcomes by name             memory.py     what fits at once
"""
