"""Answers: pure functions of a fitted model.

rules.py          over which subsets a score is averaged, in words and as draws
effects.py        the effect of a task or a pair on any surrogate, exact where there is a closed form
attribution.py    what each task does            interactions.py  what pairs do together
selection.py      which subset to use            suggestion.py    which runs to make next
constraints.py    which subsets may be chosen
"""
