"""What the studies of the paper share: the runs they read, how methods are scored, and the page that is written.

A study is one file. It prints a page of results and writes it, with its picture, to docs/results/paper; with
``--quick`` it is made of a few runs, in seconds, and goes to build/paper instead.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import whence
from whence import AdditiveSurrogate, KernelSurrogate
from whence.datasets import available, load
from whence.datasets.leaderboard import some_targets
from whence.errors import InputError
from whence.evaluation import Comparison, SizeOnly, repeated_splits

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ROOT / "docs" / "results" / "paper"
TABLES = ROOT.parent / "shared" / "data" / "tables"
LOW_VARIANCE = 0.1  # the paper's score leaves out queries that vary by less, and does not count them
BLUE, ORANGE, GREEN, GREY = "#1b6ca8", "#d1662a", "#3a8f5c", "0.6"

warnings.simplefilter("ignore", whence.DataWarning)
plt.rcParams.update(
    {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "savefig.dpi": 130,
    }
)


def fitting(surrogate: Any):
    """Return the method of `repeated_splits` that fits a surrogate as it is."""
    return lambda train: whence.fit(train, surrogate=surrogate, n_folds=None)


LINEAR, TUNED_LINEAR, RBF, TUNED_RBF = "linear", "tuned linear", "RBF", "tuned RBF"
METHODS = {
    LINEAR: fitting(AdditiveSurrogate("ols")),
    RBF: fitting(KernelSurrogate(settings="paper")),
    TUNED_LINEAR: fitting(AdditiveSurrogate("ridge")),
    TUNED_RBF: fitting(KernelSurrogate()),
    "size only": SizeOnly.fit,
}
COLORS = dict(zip(METHODS, (ORANGE, BLUE, "#f0b48c", "#7db8e0", GREY), strict=True))


def arguments(doc: str | None, **folders: str) -> argparse.Namespace:
    """Return what a study was asked for: quick, the folder of its page, and folders of its own (name: help)."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few runs only, in seconds, to build/paper")
    parser.add_argument("--out", type=Path, help="folder of the page; docs/results/paper where not given")
    for name, words in folders.items():
        parser.add_argument(f"--{name}", type=Path, help=words)
    given = parser.parse_args()
    given.out = given.out or (ROOT / "build" / "paper" if given.quick else PAGES)
    return given


def recorded(quick: bool) -> dict[str, whence.Outcomes]:
    """Return every recorded set that is installed; with ``quick`` two of them, with a few of their targets."""
    found = {}
    for name in available().index:
        try:
            found[name] = load(name)
        except InputError as error:
            print(f"left out: {error}")
    if quick:
        found = {name: some_targets(found[name], 3) for name in ("digits", "digits_network")}
    return {name: trimmed(runs) for name, runs in found.items()}


def tables(quick: bool, prefix: str = "") -> dict[str, whence.Outcomes]:
    """Return the public tables of others whose names begin so; none where they are not there, which is printed."""
    paths = [] if quick else sorted(TABLES.glob(f"{prefix}*.npz"))
    if not paths:
        print(f"left out: tables {prefix}* of {TABLES}")
    return {path.stem: trimmed(whence.read_outcomes(path)) for path in paths}


def train_size(runs: whence.Outcomes) -> int:
    """Return how many subsets to learn from: 80, or 1.5 for each task, but never more than 80% of them.

    The paper learns from 80 of 200 prompts, and from 40 of 50 subsets in its other settings.
    """
    return min(max(80, round(1.5 * runs.n_tasks)), int(0.8 * len(runs.distinct()[0])))


def trimmed(runs: whence.Outcomes) -> whence.Outcomes:
    """Return the runs of at most 2.5 times as many subsets as are learned from: the paper has 200 prompts for 80."""
    distinct = runs.distinct()[0]
    kept = distinct[np.random.default_rng(0).permutation(len(distinct))[: round(2.5 * train_size(runs))]]
    known = {row.tobytes() for row in kept}
    return runs.rows([row.tobytes() in known for row in runs.subsets])


def compare(
    runs: whence.Outcomes, methods: Mapping[str, Any], quick: bool, size: int | None = None, n_splits: int = 10
) -> Comparison:
    """Return the scores of methods on the same splits."""
    size = train_size(runs) if size is None else size
    return repeated_splits(runs, methods, n_splits=2 if quick else n_splits, train_size=size, seed=0)


def varied(runs: whence.Outcomes) -> whence.Outcomes | None:
    """Return the runs with the targets that the paper's score keeps; None where there is no such target."""
    kept = np.nanvar(runs.values, axis=0) >= LOW_VARIANCE
    return (
        runs.targets([name for name, keep in zip(runs.target_names, kept, strict=True) if keep]) if kept.any() else None
    )


def plus_minus(scores: Any, digits: int = 2) -> str:
    """Return mean and standard deviation over splits, as the paper does."""
    scores = np.asarray(scores, dtype=float)
    scores = scores[~np.isnan(scores)]
    if not len(scores):
        return "–"
    return f"{scores.mean():.{digits}f} ± {scores.std(ddof=1) if len(scores) > 1 else 0:.{digits}f}"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    cells = ([str(cell).replace("|", "\\|") for cell in row] for row in [header, ["---"] * len(header), *rows])
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def write(
    given: argparse.Namespace, name: str, title: str, holds: str, *parts: str, figure: Any = None, script: str = ""
) -> None:
    """Write the page of a study: what holds, how it was made (by the script of its name if not told), and the rest."""
    given.out.mkdir(parents=True, exist_ok=True)
    command = f"python experiments/paper/{script or name}.py" + (" --quick" if given.quick else "")
    made = f"`{command}`, {platform.machine()}, {time.strftime('%Y-%m-%d')}, {time.process_time():.0f} s of one core."
    pieces = [f"# {title}", f"**What holds.** {holds}", made]
    if figure is not None:
        figure.tight_layout()
        figure.savefig(given.out / f"{name}.png")
        plt.close(figure)
        pieces.append(f"![{title}]({name}.png)")
    text = "\n\n".join([*pieces, *parts]) + "\n"
    (given.out / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)
