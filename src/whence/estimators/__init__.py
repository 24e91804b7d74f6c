"""Outcome functions of models: the outcome of any subset of tasks, true and slow or estimated and fast."""
