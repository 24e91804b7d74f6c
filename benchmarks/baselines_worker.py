"""One method of one library on a problem of benchmarks/baselines.py, in a process and an environment of its own.

    python benchmarks/baselines_worker.py LIBRARY/METHOD problem.npz scores.npy LIMIT

Prints a line of JSON: seconds of processor time, which others on the machine change little (of the best of three calls,
or of one that takes long), the memory that calls and imports added at their peak, and whence's diagnostics. Dies after
LIMIT seconds. All get the same weights, checkpoints, examples and queries. The peers score every pair of example and
query, of which the means over tasks are kept; whence scores tasks.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import torch
from torch import nn

BLOCKS = [f"layers.{i}.{part}" for i in (0, 1) for part in ("attend", "mix", "rise", "fall")]
SETTINGS = {
    "digits": SimpleNamespace(
        damping=0.1, cg_steps=20, gauss_newton_steps=500, scale=20.0, depth=100, batch=64, curvature=None,
        layers=["0", "2"], segments=[[0], [1], [2], [3]], krylov=32, chains=16, draws=100, thin=5, bif_batch=None,
    ),
    # Conjugate gradients, LiSSA and SOURCE take the curvature from 10 examples of each group.
    "modular": SimpleNamespace(
        damping=0.1, cg_steps=10, gauss_newton_steps=10, scale=100.0, depth=20, batch=64, curvature=10,
        layers=BLOCKS, segments=[[0], [2]], krylov=6, chains=4, draws=40, thin=5, bif_batch=256,
    ),
}  # fmt: skip


def network(kind, weights=None):
    if kind == "digits":
        model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)).eval()
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        from modular import Transformer

        model = Transformer().eval()
    if weights is not None:
        model.load_state_dict({name: torch.as_tensor(value) for name, value in weights.items()})
    return model


class Problem:
    """What baselines.py wrote: weights, examples and queries."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            parts = {name: file[name] for name in file.files}
        self.kind = str(parts["kind"])
        self.set = SETTINGS[self.kind]
        names = list(network(self.kind).state_dict())
        states = [
            {n: torch.as_tensor(parts[f"{c}:{n}"]) for n in names}
            for c in range(sum(key.endswith(f":{names[0]}") for key in parts))
        ]
        *self.states, self.final = states  # along the way, each for as many steps as the others, and at the end
        self.model = network(self.kind, self.final)
        self.X, self.y = torch.as_tensor(parts["X"]), torch.as_tensor(parts["y"])
        self.queries, self.labels = torch.as_tensor(parts["queries"]), torch.as_tensor(parts["labels"])
        self.owner, self.weighting = parts["owner"], str(parts["weighting"])
        self.rank = int(parts["rank"])  # of projections
        self.lr, self.steps = float(parts["lr"]), int(parts["steps"])
        self.rates = [self.lr * self.steps / len(self.states)] * len(self.states)

    @property
    def tasks(self):
        return {f"t{k:02d}": (self.X[self.owner == k], self.y[self.owner == k]) for k in range(self.owner.max() + 1)}

    @property
    def train_set(self):
        return torch.utils.data.TensorDataset(self.X, self.y)

    @property
    def test_set(self):
        return torch.utils.data.TensorDataset(self.queries, self.labels)

    def means(self, scores):
        """Means over tasks of scores (n, q), (K, q)."""
        scores = np.asarray(scores, dtype=np.float64)
        return np.stack([scores[self.owner == k].mean(0) for k in range(self.owner.max() + 1)])

    @torch.no_grad()
    def of_loss(self, scores):
        """Scores (K, q) for the loss of each query from those for its margin, log p/(1 − p)."""
        p = self.model(self.queries).softmax(-1)[torch.arange(len(self.labels)), self.labels]
        return -scores * (1 - p).numpy()


# ---- whence ------------------------------------------------------------------------------------------------


def whence_scores(p: Problem, name: str):
    import whence
    from whence import baselines
    from whence.baselines import CG, EKFAC, Langevin, LiSSA

    at, common = p.set, {"weighting": p.weighting}
    given = partial(whence.Problem, p.model, p.tasks, (p.queries, p.labels), per_query=True)

    def influence(solver, *, params=None, **options):
        return baselines.influence_scores(given(params=params), solver=solver, damping=at.damping, **common, **options)

    iterated = partial(influence, examples=at.curvature)

    def trak(**options):
        return baselines.trak_scores(given(), p.rank, **common, **options)

    length = p.steps // len(at.segments)
    found = {
        "cg": lambda: iterated(CG(tol=1e-12, max_steps=at.cg_steps)),
        "gauss_newton": lambda: iterated(CG(tol=1e-3, max_steps=at.gauss_newton_steps), curvature="gauss_newton"),
        "lissa": lambda: iterated(LiSSA(max_steps=at.depth, batch_size=at.batch, scale=at.scale)),
        "ekfac": lambda: influence(EKFAC(), params=[f"{layer}.*" for layer in at.layers]),
        "ekfac_all": lambda: influence(EKFAC()),
        "tracin": lambda: baselines.tracin_scores(given(), checkpoints=p.states, learning_rates=p.rates, **common),
        "trak": trak,
        "trak_reseeded": lambda: trak(seed=1),
        "trak_tasks": lambda: trak(kernel="tasks"),
        "trak_penalised": lambda: trak(l2=1.0),
        "source": lambda: baselines.source_scores(
            given(), segments=[[p.states[i] for i in part] for part in at.segments], rank=at.krylov,
            learning_rates=[p.lr] * len(at.segments), steps=[length] * len(at.segments),
            examples=at.curvature, **common,
        ),
        "bif": lambda: baselines.bif_scores(
            given(), **common,
            sampler=Langevin(
                damping=at.damping, chains=at.chains, draws=at.draws, thin=at.thin, batch_size=at.bif_batch
            ),
        ),
    }  # fmt: skip
    return found[name]()


# ---- peers -------------------------------------------------------------------------------------------------


def dattri_scores(p: Problem, name: str):
    from dattri.algorithm.influence_function import IFAttributorCG, IFAttributorEKFAC, IFAttributorLiSSA
    from dattri.algorithm.tracin import TracInAttributor
    from dattri.algorithm.trak import TRAKAttributor
    from dattri.task import AttributionTask
    from torch.utils.data import DataLoader

    model = p.model

    def loss(params, data):
        x, y = data[0].to(p.X), data[1].long()  # its LiSSA makes tokens and labels floats
        return nn.functional.cross_entropy(torch.func.functional_call(model, params, (x,)), y)

    def of_one(params, data):
        x, y = data
        return nn.functional.cross_entropy(torch.func.functional_call(model, params, (x[None],)), y[None])

    def margin(params, data):
        x, y = data
        out = -nn.functional.cross_entropy(torch.func.functional_call(model, params, (x[None],)), y[None])
        return out - torch.log(1 - torch.exp(out))

    def probability(params, data):
        return torch.exp(-of_one(params, data))

    whole = DataLoader(p.train_set, batch_size=len(p.X))
    test = DataLoader(p.test_set, batch_size=len(p.queries))
    if name in ("cg", "lissa"):
        # Per-example gradients are those of the same loss: cross-entropy of a batch of one is its mean.
        task = AttributionTask(loss_func=_either(loss, of_one), model=model, checkpoints=p.final)
        if name == "cg":
            attributor = IFAttributorCG(task=task, max_iter=p.set.cg_steps, tol=1e-12, regularization=p.set.damping)
        else:
            attributor = IFAttributorLiSSA(
                task=task, batch_size=p.set.batch, num_repeat=1, recursion_depth=p.set.depth, damping=p.set.damping,
                scaling=p.set.scale,
            )  # fmt: skip
        attributor.cache(whole)
    elif name == "tracin":
        task = AttributionTask(loss_func=of_one, model=model, checkpoints=p.states)
        attributor = TracInAttributor(task=task, weight_list=torch.tensor(p.rates), normalized_grad=False)
        attributor.projector_kwargs = None
    elif name == "trak":
        task = AttributionTask(loss_func=margin, model=model, checkpoints=p.final)
        attributor = TRAKAttributor(
            task=task, correct_probability_func=probability, projector_kwargs={"proj_dim": p.rank}
        )
        attributor.cache(whole)
        return p.of_loss(p.means(attributor.attribute(test).detach()))
    elif name == "ekfac":
        task = AttributionTask(loss_func=_of_any(model), model=model, checkpoints=p.final)
        attributor = IFAttributorEKFAC(task=task, module_name=p.set.layers, damping=p.set.damping)
        attributor.cache(whole)
    return p.means(attributor.attribute(whole, test).detach())


def _either(loss, of_one):
    return lambda params, data: of_one(params, data) if data[0].ndim == 1 else loss(params, data)


def _of_any(model):
    def loss(params, data):
        x, y = data
        found = torch.func.functional_call(model, params, (x if x.ndim > 1 else x[None],))
        y = y if y.ndim else y[None]
        return nn.functional.cross_entropy(found, y)

    return loss


def captum_scores(p: Problem, name: str):
    from captum.influence import TracInCP

    linear = p.kind == "digits"  # the layers whose gradients of many examples it makes at once
    rates = dict(zip(map(str, range(len(p.states))), p.rates, strict=True))

    def load(model, checkpoint):
        model.load_state_dict(p.states[int(checkpoint)])
        return rates[checkpoint]

    tracin = TracInCP(
        network(p.kind), p.train_set, checkpoints=list(rates), checkpoints_load_func=load,
        loss_fn=nn.CrossEntropyLoss(reduction="sum" if linear else "none"), batch_size=100,
        sample_wise_grads_per_batch=linear,
    )  # fmt: skip
    return p.means(tracin.influence((p.queries, p.labels)).detach().T)


def traker_scores(p: Problem, name: str):
    import logging
    import tempfile

    from trak import TRAKer

    with tempfile.TemporaryDirectory() as folder:
        traker = TRAKer(
            model=p.model, task="image_classification", train_set_size=len(p.X), proj_dim=p.rank, device="cpu",
            save_dir=folder, use_half_precision=False, logging_level=logging.ERROR, load_from_save_dir=True,
        )  # fmt: skip
        traker.load_checkpoint(p.final, model_id=0)
        for rows in torch.arange(len(p.X)).split(100):
            traker.featurize(batch=(p.X[rows], p.y[rows]), num_samples=len(rows))
        traker.finalize_features()
        traker.start_scoring_checkpoint("q", p.final, model_id=0, num_targets=len(p.queries))
        traker.score(batch=(p.queries, p.labels), num_samples=len(p.queries))
        return p.of_loss(p.means(traker.finalize_scores(exp_name="q")))


def kronfluence_scores(p: Problem, name: str):
    import tempfile

    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    class Classify(Task):
        def compute_train_loss(self, batch, model, sample=False):
            x, y = batch
            out = model(x)
            if sample:
                y = torch.multinomial(out.detach().softmax(-1), 1)[:, 0]
            return nn.functional.cross_entropy(out, y, reduction="sum")

        def get_influence_tracked_modules(self):
            return p.set.layers

        def compute_measurement(self, batch, model):
            return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    with tempfile.TemporaryDirectory() as folder:
        task = Classify()
        analyzer = Analyzer(
            "b", prepare_model(network(p.kind, p.final), task), task, cpu=True, output_dir=folder, disable_tqdm=True
        )
        analyzer.fit_all_factors(
            "f", p.train_set, per_device_batch_size=400, factor_args=FactorArguments(strategy="ekfac")
        )
        analyzer.compute_pairwise_scores(
            "s", "f", query_dataset=p.test_set, train_dataset=p.train_set, per_device_query_batch_size=100,
            per_device_train_batch_size=400, score_args=ScoreArguments(damping_factor=p.set.damping),
        )  # fmt: skip
        return p.means(analyzer.load_pairwise_scores("s")["all_modules"].float().T)


LIBRARIES = {
    "whence": whence_scores, "dattri": dattri_scores, "captum": captum_scores, "traker": traker_scores,
    "kronfluence": kronfluence_scores,
}  # fmt: skip


def memory(field: str) -> float:
    """Return a figure of this process, in MB; the kernel's own, since what getrusage says is inherited."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) / 1024


def main() -> None:
    what, source, result, limit = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    library, name = what.split("/")
    problem = Problem(source)
    before = memory("VmRSS")
    seconds = []
    for _ in range(3):  # the first loads and compiles what is needed
        began = time.process_time()
        scores = LIBRARIES[library](problem, name)
        seconds.append(time.process_time() - began)
        if seconds[0] > 5:
            break
    after = memory("VmHWM")
    np.save(result, np.asarray(getattr(scores, "coef_", scores), dtype=np.float64))
    told = {"seconds": min(seconds), "added_mb": after - before, "diagnostics": getattr(scores, "diagnostics", {})}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
