"""True runs of modular arithmetic that estimates are held against, kept on disk, and how they are scored.

Used by gradex_fidelity.py and estimators.py. Truth: subsets of the 25 groups × 3 seeds, trained side by side; the
outcome is the loss of each held-out query. *Fine-tuning* starts from a model that has learned three other operations,
*from scratch* from random weights. Scores are rank correlations with the mean of the seeds, within fifths of the
subsets, so that surrogates of true runs can be held against the same ones.
"""

from __future__ import annotations

import numpy as np
from safetensors.torch import load_file, save_file

import whence
from modular import initial, pretrained, tasks_and_target
from whence.evaluation import spearman_per_target

K, SIZE, BATCH = 25, 15, 256


class Truth:
    """Outcomes of true runs, (seeds, subsets, queries), and how estimates of them are scored."""

    def __init__(self, subsets, values) -> None:
        self.subsets, self.values, self.mean = subsets, values, values.mean(0)
        fifth = np.random.default_rng(0).permutation(len(subsets)) % 5
        self.fifths = [np.flatnonzero(fifth == i) for i in range(5)]

    def score(self, estimate, against=None):
        """Rank correlation per query and of the mean loss, within fifths of the subsets."""
        truth = self.mean if against is None else against
        per_query, mean = [], []
        for rows in self.fifths:
            per_query.append(np.nan_to_num(spearman_per_target(estimate[rows], truth[rows])).mean())
            mean.append(
                spearman_per_target(estimate[rows].mean(1, keepdims=True), truth[rows].mean(1, keepdims=True))[0]
            )
        return float(np.mean(per_query)), float(np.nanmean(mean))


class Setting(Truth):
    """One way of training: where from, for how long, on which subsets; and its true outcomes."""

    def __init__(self, kind, operation, steps, lr, design, args) -> None:
        self.kind, self.operation, self.design, self.args = kind, operation, design, args
        self.name = f"{kind}, {operation}, {steps} steps" + (", Bernoulli(0.9)" if design == "bernoulli" else "")
        self.name += f", batches of {args.batch}" if args.batch != BATCH else ""
        self.recipe = whence.Recipe(steps=steps, lr=lr, batch_size=args.batch)
        self.tasks, self.target = tasks_and_target(operation)
        if args.quick:
            self.tasks = {name: (x[:40], y[:40]) for name, (x, y) in self.tasks.items()}
            self.target = tuple(part[:60] for part in self.target)
        kept = whence.FixedSize(SIZE) if design == "fixed" else whence.Bernoulli(0.9)
        self.subsets = kept.draw(K, args.subsets, seed=0)
        self.model = args.pretrained if kind == "fine-tuning" else initial(1, args.device, **args.size)
        super().__init__(self.subsets, self._truth())

    def _truth(self):
        """Losses of every query, (seeds, subsets, queries)."""
        file = self.args.truth / f"{self.name.replace(', ', '_').replace(' ', '_')}.npz" if self.args.truth else None
        if file and file.exists():
            return np.load(file)["values"].astype(float)
        start = None if self.kind == "fine-tuning" else lambda seed: initial(seed, self.args.device, **self.args.size)
        problem = whence.Problem(self.model, self.tasks, self.target, per_query=True)
        run = whence.Retrain(problem, self.recipe, init=start, batched=True, batch_size=100)
        seeds = (0, 1, 2) if self.kind == "fine-tuning" else (1, 2, 3)
        values = np.stack([run.batch(self.subsets, np.full(len(self.subsets), s))["loss"] for s in seeds])
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(file, values=values.astype(np.float32))
        return values

    def from_true_runs(self, surrogate):
        """Predict each fifth from one run of each of the other subsets."""
        predicted = np.empty_like(self.mean)
        for rows in self.fifths:
            others = np.setdiff1d(np.arange(len(self.mean)), rows)
            predicted[rows] = surrogate.fit(self.subsets[others], self.values[0][others]).predict(self.subsets[rows])
        return predicted

    def from_estimates(self, surrogate, estimator):
        """Learn from estimates of other subsets, as many as one likes, and predict these."""
        m = self.args.estimates
        design = whence.FixedSize(SIZE) if self.design == "fixed" else whence.Bernoulli(0.9)
        others = design.draw(K, m, seed=1)
        return surrogate.fit(others, estimator.batch(others)["loss"]).predict(self.subsets)


def load_pretrained(args):
    """Return the pretrained model; kept beside the true runs, which start from it."""
    file = args.truth / "pretrained.safetensors" if args.truth else None
    if file and file.exists():
        model = initial(0, args.device, **args.size)
        model.load_state_dict(load_file(file))
        return model
    model = pretrained(args.device, 60 if args.quick else 3000, **args.size)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), file)
    return model
