"""Models: what every estimator and baseline works on, and how it is trained.

problem.py      a PyTorch model with tasks to train on and targets to judge by     examples.py   its data
recipe.py       how a training goes     optimizers.py what is specific to each     sampling.py   who is in which batch
stack.py        many models at once     training.py   their training               functional.py a model as a function
losses.py       losses                  callables.py  losses and metrics of users
metrics.py      metrics                 targets.py    outcomes by name             memory.py     what fits at once
points.py       checkpoints             flatness.py   the trace of a Hessian
"""
