"""All studies of the paper that need nothing but recorded runs, and the page that puts them side by side.

    python experiments/paper                  every page of docs/results/paper, and docs/results/paper.md
    python experiments/paper kernels grid     the pages of these studies, and docs/results/paper.md
    python experiments/paper --page           docs/results/paper.md alone, from pages that are there
    python experiments/paper --quick          all to build/, in a minute or two

Recorded sets that are added later (``python experiments/record.py``) have their rows when this is run again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import PAGES, ROOT, table

from whence.datasets import available
from whence.errors import did_you_mean

HERE = Path(__file__).resolve().parent
STUDIES = (  # the longest first: as many run at once as there are cores
    "leaderboard",
    "selection",
    "samples",
    "parts",
    "kernels",
    "decision_boundary",
    "grid",
    "projection",
    "groups",
    "order",
)
# What the paper shows or says, and the study of it.
CLAIMS = [
    (
        "Figure: the decision boundary of a small network, linear against RBF",
        "the kernel follows it, a linear surrogate does not",
        "decision_boundary",
    ),
    (
        "Table of kernels: residual error of linear, degree 1–3, RBF",
        "RBF least everywhere: CIFAR-10 1.0 against 4.4, modular arithmetic 1.5 against 4.6, prompts 0.4 against 0.8",
        "kernels",
    ),
    (
        "Tables of first-order errors",
        "0.4% to 2.4% of the outputs; 0.07% to 1.8% on models of 7B to 34B",
        "first_order",
    ),
    (
        "Table of attribution: LDS of linear and kernel surrogates",
        "kernel best everywhere, by 25% on average",
        "kernels",
    ),
    (
        "The same table with all baselines, on modular arithmetic from scratch",
        "influence functions, TracIn, TRAK, SOURCE and BIF 0.01 to 0.42; linear 0.18 and 0.44, kernel 0.30 and 0.52",
        "attribution",
    ),
    ("Table of selection, with running times", "40% less loss on prompts, 15% more reward", "selection"),
    (
        "Figure: Hessian trace, SAM and NSO over training",
        "SGD's LDS drops to 0.01; with SAM and NSO it stays",
        "flatness",
    ),
    ("Figure: the share of runs to learn from", "kernel better at every share from 20% to 80%", "samples"),
    ("Table: λ and γ", "robust over the entire range", "grid"),
    ("Order of demonstrations", "a standard deviation of 11% of the mean loss: minor", "order"),
    ("Proposition: the Johnson–Lindenstrauss bound", "training loss within 2δ + 4GDε of the least", "projection"),
    ("Multi-group learning", "discussed, not measured", "groups"),
    ("Which part of the gain is what", "not asked", "parts"),
]
ELSEWHERE = [
    (
        "Figure: leave-one-out, influence functions and a linear surrogate agree",
        "0.98, 0.97, 0.96",
        "It holds: 0.995, 0.98, 0.98 (`python experiments/breast_cancer.py`, "
        "[figure](index.md#the-papers-claims-measured)).",
    ),
    (
        "Table of attribution: influence functions, TracIn, TRAK, SOURCE, BIF",
        "0.01 to 0.71, below linear surrogates",
        "They take one run and not dozens. On a network that learns digits "
        "SOURCE and influence functions (0.70) are above a linear surrogate of 50 true runs (0.66), and "
        "on modular fine-tuning below it "
        "(0.56 against 0.72): [digits](baselines.md), [modular arithmetic](baselines_modular.md).",
    ),
    (
        "500 demonstrations instead of 50",
        "0.31 and 0.53, as good as with 50",
        "It does not hold on SmolLM2-135M: from 80 true prompts, 0.60 with 50 candidates and 0.16 with "
        "500 ([prompts](icl.md)).",
    ),
]
# What is told by recorded sets whose name holds this, once there are any.
AWAITED = [
    ("CIFAR-10 with ResNet-9", "residual error 1.0 ± 0.0, linear 4.4 ± 0.9", "cifar10",
     "the scripts are there: `experiments/paper/cifar10.py`"),
    ("Modular arithmetic from scratch: addition, quadratic, division, XOR", "0.30 and 0.52, linear 0.18 and 0.44",
     "_scratch", "the scripts are there: `experiments/paper/modular_sets.py`"),
    ("Coin flip with a model that can do it", "0.54, linear 0.43", "coin_flip",
     "SmolLM2-135M answers at chance; the table above has the paper's own outcomes, where these are there"),
    ("Meta-World MT10", "0.80, linear 0.76", "mt10", "the scripts are there: `experiments/rl`"),
]  # fmt: skip


def holds(folder: Path, study: str) -> str:
    """Return what the page of a study says holds, with a link to it; or that there is none."""
    page = folder / f"{study}.md"
    if not page.is_file():
        return f"Not measured yet (`python experiments/paper/{study}.py`)."
    said = re.search(r"^\*\*What holds\.\*\* (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return f"{said[1] if said else ''} [More](paper/{study}.md)"


def side_by_side(folder: Path) -> str:
    """Return the section of the kernels' page that has all recorded sets."""
    page = folder / "kernels.md"
    if not page.is_file():
        return "Not measured yet (`python experiments/paper/kernels.py`)."
    return page.read_text(encoding="utf-8").partition("## Side by side\n")[2].partition("\n## ")[0].strip()


def page(folder: Path) -> str:
    """Return the page that puts the paper's claims beside ours."""
    shown: set[str] = set()
    rows = []
    for what, said, study in CLAIMS:
        ours = f"See *{next(w for w, _, s in CLAIMS if s == study)}*." if study in shown else holds(folder, study)
        shown.add(study)
        rows.append([what, said, ours])
    known = available().index
    for what, said, key, why in AWAITED:
        sets = [name for name in known if key in name]
        told = (
            f"See {', '.join(sets)} in the table above, and its [residual errors](paper/kernels.md#residual-error)."
            if sets
            else f"Not measured yet: {why}."
        )
        rows.append([what, said, told])
    return (
        "\n\n".join(
            [
                "# The paper, claim by claim",
                "Every table and figure of *Efficient Estimation of Kernel Surrogate Models for Task "
                "Attribution* as one runnable file of `experiments/paper`, ours beside the paper's. `make "
                "paper` makes this page and those it links to again from [recorded runs](../api/datasets.md): "
                "half an hour of processor time, shared by all cores. Not "
                "among them is [attribution](paper/attribution.md), which trains models of its own (`python "
                "experiments/paper attribution`). "
                f"Written {time.strftime('%Y-%m-%d')}.",
                "## Side by side",
                side_by_side(folder),
                "## Claim by claim",
                table(["the paper", "its figure", "what holds"], [*rows, *ELSEWHERE]),
                "Sentences are written by the studies from their own numbers, so that they change when the numbers do.",
            ]
        )
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = (*STUDIES, "elsewhere")
    parser.add_argument("studies", nargs="*", help=f"{', '.join(usual)}; or attribution, which trains its own models")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    for study in given.studies:
        if study not in (known := (*usual, "attribution")):
            parser.error(f"There is no study '{study}'. {did_you_mean(study, known)}")
    folder = ROOT / "build" / "paper" if given.quick else PAGES
    studies = () if given.page else given.studies or usual

    def fails(study: str) -> bool:
        command = [sys.executable, str(HERE / f"{study}.py"), *(["--quick"] if given.quick else [])]
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        print(f"{study}: {'failed' if code else 'done'}", flush=True)
        return code != 0

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [study for study, code in zip(studies, pool.map(fails, studies), strict=True) if code]
    path = folder.parent / "paper.md"
    path.write_text(page(folder), encoding="utf-8")
    print(f"wrote {path}")
    if failed:
        raise SystemExit(f"Failed, and left as they were: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
