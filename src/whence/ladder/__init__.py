"""The ladder: ways to the outcomes of many subsets, when to trust each, what each costs, and which one to take.

methods.py   the table of methods: from gradients at the start to true runs, each an outcome function of a Problem
probes.py    what each costs on this machine, in seconds
advice.py    how close each came to true runs where measured, and how to spend a budget
"""
