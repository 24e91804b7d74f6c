"""The ladder: ways to the outcomes of many subsets, when to trust each, what each costs, and which one to take.

methods.py   the table of methods: from gradients at the start to true runs, each an outcome function of a Problem
probes.py    what each costs on the machine at hand, in seconds
advice.py    how near each comes to true runs, as far as that was measured, and what to do with a budget
"""
