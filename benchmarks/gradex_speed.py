"""Time GradEx's parts beside what one would otherwise use, and how they grow.

    python benchmarks/gradex_speed.py                 on a processor, into benchmarks/results/gradex_speed_cpu.md
    python benchmarks/gradex_speed.py --device cuda   on a graphics card, into benchmarks/results/gradex_speed_cuda.md
    … --section solve                                 one section, nothing written

Ratios are of medians in the same run; both sides take turns. Peers are used where they are installed
(``pip install traker==0.3.2 dattri==0.3.0``) and left out, visibly, where not.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from torch import nn

from modular import equations, initial
from whence.gradients.factored import Kronecker
from whence.gradients.linearize import Linearization, linearize
from whence.gradients.projections import CountSketch, Gaussian, Rademacher, flatten
from whence.gradients.solve import solve
from whence.models.examples import Examples
from whence.models.functional import functional
from whence.models.losses import LOSSES
from whence.models.metrics import margin
from whence.models.sampling import task_shares, weights_of

HERE = Path(__file__).resolve().parent


def timed(device: str, repeats: int, *works):
    """Return the median seconds of each piece of work; they take turns.

    On a processor, those that one thread of it spent, whoever else is using the machine.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    seconds = [[] for _ in works]
    for _ in range(repeats):
        for times, work in zip(seconds, works, strict=True):
            began = clock()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(clock() - began)
    return [statistics.median(times) for times in seconds]


def table(heads, rows) -> str:
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *rows])


def goal(ratio: float, wanted: float) -> str:
    return f"{ratio:.3g} × ({'reached' if ratio >= wanted else 'MISSED'}: {wanted:g} ×)"


def transformer(device: str, n: int, **size: int):
    """The modular transformer, its parameters and n equations."""
    tokens, results, _ = equations("addition")
    rows = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))[:n]
    examples = Examples.of({"all": (tokens[rows], results[rows])}).to(device)
    return *functional(initial(0, device, **size)), examples


def perceptron(device: str, n: int, classes: int = 10, width: int = 256):
    """A perceptron with two hidden layers on 64 numbers."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )
    examples = Examples.of({"all": (torch.randn(n, 64), torch.randint(classes, (n,)))}).to(device)
    return *functional(model.to(device)), examples


def section_features(device: str) -> str:
    """One scalar per example: factored features beside a plain forward and backward pass, and beside vmap(grad)."""
    rows, rank = [], 512
    for name, (output_fn, params, examples) in {
        "transformer, width 128": transformer(device, 9409),
        "transformer, width 512": transformer(device, 1024, width=512),
        "perceptron, width 256": perceptron(device, 9409),
    }.items():
        few = Examples(examples.inputs[:64], examples.labels[:64], examples.owner[:64], examples.names)
        ours = {key: value.clone().requires_grad_() for key, value in params.items()}

        def plain(output_fn=output_fn, ours=ours, examples=examples):
            for block in examples.blocks(256):
                inputs, labels = examples.rows(block)
                total = margin(output_fn(ours, inputs), labels).sum()
                torch.autograd.grad(total, list(ours.values()))

        P = Gaussian(rank).rows(params, 0, rank)

        def naive(output_fn=output_fn, params=params, few=few, P=P):
            def one(at, x, y):
                return margin(output_fn(at, x[None]), y[None])[0]

            for block in few.blocks(32):
                gradients = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0))(params, *few.rows(block))
                flatten(gradients) @ P.T

        factored = lambda o=output_fn, p=params, e=examples: linearize(o, p, e, Kronecker(rank), of="margin")  # noqa: E731
        factored(), plain(), naive()
        a, b, c = timed(device, 5, factored, plain, naive)
        per = c * len(examples) / len(few)
        told = f"{name}, {len(examples):,} examples"
        rows.append([told, f"{a:.3f} s", f"{b:.3f} s", goal(b / a, 1), f"{per:.2f} s", goal(per / a, 20)])
    heads = [
        "model",
        "factored",
        "plain forward + backward",
        "ratio (goal)",
        "vmap(grad) + dense P",
        "ratio (goal)",
    ]
    return "## Features of one scalar output, rank 512\n\n" + table(heads, rows)


def section_routes(device: str) -> str:
    """All C outputs: forward beside reverse mode and factored."""
    rows, rank = [], 128
    for classes in (1, 10, 97):
        output_fn, params, examples = perceptron(device, 256, classes)
        works = [
            lambda r=route, p=projection, o=output_fn, q=params, e=examples: linearize(o, q, e, p, route=r)
            for route, projection in (
                ("forward", Gaussian(rank)),
                ("reverse", Gaussian(rank)),
                ("factored", Kronecker(rank)),
            )
        ]
        for work in works:
            work()
        seconds = timed(device, 3, *works)
        chosen = linearize(output_fn, params, examples, Gaussian(rank)).route.split(",")[0]
        rows.append([classes, *(f"{s:.3f} s" for s in seconds), f"{seconds[1] / seconds[0]:.2f} ×", chosen])
    heads = ["outputs C", "forward", "reverse", "factored", "reverse / forward", "chosen for Gaussian directions"]
    return "## All outputs of 256 examples (perceptron, rank 128)\n\n" + table(heads, rows)


def section_projection(device: str) -> str:
    """32 gradients of 500,000 parameters to 512 features."""
    like = {"w": torch.zeros(500_000, device=device)}
    gradients = torch.randn(32, 500_000, device=device)
    works = {
        "whence Gaussian": lambda: Gaussian(512).project(gradients, like),
        "whence Rademacher": lambda: Rademacher(512).project(gradients, like),
        "whence CountSketch": lambda: CountSketch(512).project(gradients, like),
        "whence CountSketch, 4 nonzeros": lambda: CountSketch(512, nonzeros=4).project(gradients, like),
    }
    works.update(_peer_projectors(gradients, device))
    for work in works.values():
        work()
    seconds = dict(zip(works, timed(device, 3, *works.values()), strict=True))
    peers = {name: s for name, s in seconds.items() if not name.startswith("whence")}
    rows = [
        [
            name,
            f"{s * 1e3:.0f} ms",
            *(f"{peer / s:.2f} ×" if name.startswith("whence") else "" for peer in peers.values()),
        ]
        for name, s in seconds.items()
    ]
    missing = "" if peers else "\n\ntraker and dattri are not installed here: no ratios."
    return (
        "## 32 gradients, 500,000 → 512\n\n"
        + table(["projector", "time", *(f"{p} / it" for p in peers)], rows)
        + missing
    )


def _peer_projectors(gradients, device):
    found = {}
    try:
        from trak.projectors import BasicProjector, ProjectionType

        for kind in (ProjectionType.rademacher, ProjectionType.normal):
            projector = BasicProjector(500_000, 512, 0, kind, device, block_size=100, dtype=torch.float32)
            found[f"traker BasicProjector, {kind.value}"] = lambda p=projector: p.project(gradients, 0)
    except ImportError:
        pass
    try:
        from dattri.func.projection import BasicProjector as Dattri

        projector = Dattri(feature_dim=500_000, proj_dim=512, seed=0, proj_type="rademacher", device=device)
        found["dattri BasicProjector, rademacher"] = lambda: projector.project(gradients, 0)
    except (ImportError, TypeError) as error:
        print("dattri:", error)
    return found


def features_of(device: str, n=2000, classes=10, rank=512, n_tasks=20) -> Linearization:
    """Features of a perceptron that has something to learn."""
    g = torch.Generator().manual_seed(0)
    inputs = (
        torch.randn(n, 64, generator=g) + 2 * torch.randn(10, 64, generator=g)[torch.randint(10, (n,), generator=g)]
    )
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, classes))
    labels = teacher(0.3 * inputs).argmax(1).detach()
    output_fn, params, _ = perceptron(device, 4, classes, 128)
    owner = torch.arange(n) * n_tasks // n
    examples = Examples(inputs, labels, owner, tuple(map(str, range(n_tasks)))).to(device)
    return linearize(output_fn, params, examples, Kronecker(rank))


def section_solve(device: str) -> str:
    """500 subsets at once beside one solve per subset."""
    linear, loss, m = features_of(device), LOSSES["cross_entropy"], 500
    subsets = (np.random.default_rng(0).random((m, 20)) < 0.5).astype(float)
    shares = task_shares(subsets, linear.examples.sizes, "task")
    rows = []
    near = 1e-5
    for share in (1e-3, 1e-4, 1e-5):
        l2 = share * float(linear.features.square().sum(2).mean())
        objectives = [
            _objective(linear, weights_of(subsets[i : i + 1], linear.examples.sizes, "task")[0], l2) for i in range(3)
        ]
        best = [_scipy(objective, 1e-14).fun for objective in objectives]
        # Both sides stop at the loosest tolerance at which they are as near to the best as asked for.
        for tol in (1e-5, 1e-6, 1e-7):
            answers = []
            (ours,) = timed(
                device, 1, lambda l2=l2, tol=tol, to=answers: to.append(solve(linear, shares, loss, l2=l2, tol=tol))
            )
            delta = answers[0].delta.double().cpu().numpy()
            worse = max((objectives[i](delta[i])[0] - best[i]) / best[i] for i in range(3))
            if worse <= near:
                break
        peer = []
        for i in range(3):
            for ftol in (1e-6, 1e-7, 1e-8, 1e-9):
                found = []
                (spent,) = timed("cpu", 1, lambda f=objectives[i], t=ftol, to=found: to.append(_scipy(f, t)))
                if found[0].fun - best[i] <= near * best[i]:
                    break
            peer.append(spent)
        theirs = m * statistics.median(peer)
        rows.append(
            [
                f"{share:g}",
                f"{ours:.2f} s",
                f"{theirs:.1f} s",
                goal(theirs / ours, 20),
                f"{worse:.0e}",
                answers[0].n_iterations,
            ]
        )
    heads = [
        "penalty / mean square of features",
        "whence, 500 subsets",
        "scipy L-BFGS-B, × 500 (from 3)",
        "ratio (goal)",
        "ours above the best by",
        "iterations",
    ]
    told = f"Both stop at the loosest tolerance at which the objective is within a relative {near:g} of the best."
    return (
        f"## 500 subsets, 2,000 examples, 10 classes, rank 512\n\n{table(heads, rows)}\n\n{told}\n\n{_binary(device)}"
    )


def _scipy(objective, ftol):
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": ftol, "gtol": 1e-12}
    return minimize(objective, np.zeros(512), jac=True, method="L-BFGS-B", options=options)


def _objective(linear, weights, l2):
    keep = weights[linear.examples.owner.cpu().numpy()] > 0
    features = linear.features[torch.as_tensor(keep)].reshape(-1, linear.rank).double().cpu().numpy()
    outputs, labels = linear.outputs.cpu().numpy()[keep].astype(float), linear.examples.labels.cpu().numpy()[keep]
    w, rows = weights[linear.examples.owner.cpu().numpy()[keep]], np.arange(int(keep.sum()))

    def value_and_gradient(z):
        moved = outputs + (features @ z).reshape(outputs.shape)
        top = moved.max(1, keepdims=True)
        e = np.exp(moved - top)
        total = e.sum(1)
        value = (w * (np.log(total) + top[:, 0] - moved[rows, labels])).sum() + l2 / 2 * z @ z
        slope = e / total[:, None]
        slope[rows, labels] -= 1
        return value, (slope * w[:, None]).ravel() @ features + l2 * z

    return value_and_gradient


def _binary(device: str) -> str:
    g = torch.Generator().manual_seed(0)
    features = torch.randn(2000, 1, 200, generator=g) * torch.linspace(2, 0.05, 200)
    labels = (features[:, 0] @ torch.randn(200, generator=g) + torch.randn(2000, generator=g) > 0).long()
    examples = Examples(torch.zeros(2000, 1), labels, torch.arange(2000) // 100, tuple(map(str, range(20))))
    linear = Linearization(torch.zeros(2000, 1), features, examples, "")
    linear = Linearization(linear.outputs.to(device), features.to(device), examples.to(device), "")
    subsets = (np.random.default_rng(0).random((500, 20)) < 0.5).astype(float)
    shares, l2 = task_shares(subsets, examples.sizes, "task"), 1e-3
    ours, peer = timed(
        device,
        3,
        lambda: solve(linear, shares, LOSSES["logistic"], l2=l2),
        lambda: _sklearn(features, labels, subsets[:20], l2),
    )
    return (
        f"Binary, 2,000 examples, rank 200: {ours:.2f} s for 500 subsets; scikit-learn's LogisticRegression(lbfgs), "
        f"which takes no offset, {25 * peer:.2f} s (from 20): **{25 * peer / ours:.1f} ×**."
    )


def _sklearn(features, labels, subsets, l2):
    x, y, owner = features[:, 0].numpy(), labels.numpy(), np.arange(2000) // 100
    for subset in subsets:
        keep = subset[owner] > 0
        LogisticRegression(C=1 / (l2 * keep.sum()), fit_intercept=False, max_iter=1000).fit(x[keep], y[keep])


def section_growth(device: str) -> str:
    """How time grows, one number at a time."""
    base = {"n": 1000, "rank": 128, "C": 10, "m": 100, "width": 128}
    steps = {
        "n": (500, 1000, 2000, 4000),
        "rank": (64, 128, 256, 512),
        "C": (2, 10, 50),
        "m": (50, 100, 200, 400, 800),
        "width": (64, 128, 256, 512),
    }
    rows = []
    for name, values in steps.items():
        for value in values:
            s = {**base, name: value}
            output_fn, params, examples = perceptron(device, s["n"], s["C"], s["width"])
            examples = Examples(
                examples.inputs,
                examples.labels,
                torch.arange(s["n"], device=device) * 10 // s["n"],
                tuple("abcdefghij"),
            )
            made = []
            features = [
                timed(
                    device,
                    1,
                    lambda k=kind, s=s, o=output_fn, p=params, e=examples, to=made: to.append(
                        linearize(o, p, e, k(s["rank"]))
                    ),
                )[0]
                for kind in (Gaussian, Kronecker)
            ]
            subsets = (np.random.default_rng(0).random((s["m"], 10)) < 0.5).astype(float)
            shares = task_shares(subsets, examples.sizes, "task")
            l2 = 1e-3 * float(made[-1].features.square().sum(2).mean())
            (spent,) = timed(device, 1, lambda s=shares, x=made[-1], v=l2: solve(x, s, LOSSES["cross_entropy"], l2=v))
            size = 4 * s["n"] * s["C"] * s["rank"] / 1e6
            rows.append(
                [
                    f"{name} = {value}",
                    f"{features[1] * 1e3:.0f} ms",
                    f"{features[0] * 1e3:.0f} ms",
                    f"{spent * 1e3:.0f} ms",
                    f"{size:.0f} MB",
                ]
            )
    heads = ["", "factored features", "forward-mode features", "solve", "features"]
    told = "1,000 examples, rank 128, 10 outputs, 100 subsets, width 128, one changed at a time."
    return f"## How it grows\n\n{told}\n\n" + table(heads, rows)


SECTIONS = {
    "features": section_features,
    "routes": section_routes,
    "projection": section_projection,
    "solve": section_solve,
    "growth": section_growth,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--section", choices=SECTIONS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    where = (
        torch.cuda.get_device_name()
        if args.device == "cuda"
        else f"{platform.platform()}, {torch.get_num_threads()} thread"
    )
    load = os.getloadavg()[0]
    body = []
    for name in [args.section] if args.section else SECTIONS:
        body.append(SECTIONS[name](args.device))
        print(body[-1] + "\n", flush=True)
    head = (
        f"# GradEx: speed on a {'graphics card' if args.device == 'cuda' else 'processor'}\n\n"
        f"`python benchmarks/gradex_speed.py --device {args.device}`, {time.strftime('%Y-%m-%d')}, "
        f"{where}, torch {torch.__version__}. Load of the machine before and after: {load:.1f}, "
        f"{os.getloadavg()[0]:.1f}. On a processor, seconds are those that one thread spent."
    )
    if not args.section:
        (HERE / "results" / f"gradex_speed_{args.device}.md").write_text("\n\n".join([head, *body]) + "\n")


if __name__ == "__main__":
    main()
