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

from whence.errors import did_you_mean

HERE = Path(__file__).resolve().parent
STUDIES = (  # the longest first: as many run at once as there are cores
    "parts",
    "leaderboard",
    "selection",
    "decision_boundary",
    "kernels",
    "grid",
    "projection",
    "samples",
    "in_context",
    "attribution",
    "groups",
    "order",
)
# What the paper shows or says, in its order, and the study of it.
CLAIMS = [
    ("Figure: leave-one-out, influence functions and a linear surrogate agree", "0.98, 0.97, 0.96", "breast_cancer"),
    (
        "Figure: the decision boundary of a small network, linear against RBF",
        "the kernel follows it, a linear surrogate does not",
        "decision_boundary",
    ),
    (
        "Tables of kernels: residual error of linear, degree 1–3, RBF",
        "RBF least everywhere: CIFAR-10 1.0 against 4.4, modular arithmetic 1.5 against 4.6, prompts 0.4 against 0.8",
        "kernels",
    ),
    ("CIFAR-10 with ResNet-9: 50 tasks of 1,000 images", "models on 30 of the tasks", "cifar10"),
    (
        "Tables of first-order errors",
        "0.4% to 2.4% of the outputs; 0.07% to 1.8% on models of 7B to 34B",
        "first_order",
    ),
    (
        "Algorithms: GradEx, and a kernel surrogate of its estimates",
        "accurate estimates without repeated training",
        "algorithms",
    ),
    (
        "Table of attribution: modular addition and quadratic (XOR and division of the introduction)",
        "influence functions, TracIn, TRAK, SOURCE and BIF 0.01 to 0.42; linear 0.18 and 0.44, kernel 0.30 and 0.52",
        "attribution",
    ),
    (
        "The same table: SST-2 and coin flip; table of prompts that help and hurt",
        "influence functions, TracIn, TRAK and BIF 0.05 to 0.32; linear 0.33 and 0.43, kernel 0.37 and 0.54",
        "in_context",
    ),
    (
        "The same table: Meta-World MT10",
        "influence functions 0.71, other baselines 0.22 to 0.45, linear 0.76, kernel 0.80",
        "mt10",
    ),
    ("500 demonstrations instead of 50", "0.31 and 0.53, as good as with 50", "many_demonstrations"),
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
ELSEWHERE = {  # claims whose page is made by other scripts
    "breast_cancer": "It holds: 0.995, 0.98, 0.98 (`python experiments/breast_cancer.py`, "
    "[figure](index.md#the-papers-claims-measured)).",
    "cifar10": "200 subsets of 30 tasks, 30 of them with three seeds, trained eight at once at 302,558 images/s, "
    "where a plain loop has 81,393 ([results](finetune_cuda.md)); sets cifar10, cifar10_loss, cifar10_margin above.",
    "algorithms": '`GradEx(problem, settings="paper")` is the algorithm as written, `.surrogate(design, n)` the other '
    "in one call. On modular fine-tuning estimates have an LDS of 0.13 to 0.20 per query, surrogates of 80 true runs "
    "0.52 to 0.70 ([results](gradex_fidelity.md)).",
    "mt10": "No gain of the kernel is seen. Return by soft actor-critic (with demonstrations, 40 subsets): tuned "
    "linear 0.54, the paper's kernel 0.53, whether the target's own task is in 0.70; of policies cloned from experts "
    "0.69, 0.69 and 0.76 ([results](mt10.md)).",
    "many_demonstrations": "It does not hold on SmolLM2-135M: from 80 true prompts, 0.60 with 50 candidates and 0.16 "
    "with 500 ([prompts](icl.md)).",
}


def holds(folder: Path, study: str) -> str:
    """Return the first sentence of what the page of a study says holds, with a link to it; or that there is none."""
    if study in ELSEWHERE:
        return ELSEWHERE[study]
    page = folder / f"{study}.md"
    if not page.is_file():
        return f"Not measured yet (`python experiments/paper/{study}.py`)."
    said = re.search(r"^\*\*What holds\.\*\* (.+?\.)(?: |$)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return f"{said[1] if said else ''} [More](paper/{study}.md)"


def side_by_side(folder: Path) -> str:
    """Return the section of the kernels' page that has all recorded sets."""
    page = folder / "kernels.md"
    if not page.is_file():
        return "Not measured yet (`python experiments/paper/kernels.py`)."
    return page.read_text(encoding="utf-8").partition("## Side by side\n")[2].partition("\n## ")[0].strip()


def minutes(folder: Path) -> float:
    """Return how long the pages of all studies took together on one core."""
    told = (
        re.search(r", (\d+) s of one core\.$", path.read_text(encoding="utf-8"), re.MULTILINE)
        for path in folder.glob("*.md")
    )
    return sum(int(each[1]) for each in told if each) / 60


def page(folder: Path) -> str:
    """Return the page that puts the paper's claims beside ours."""
    rows = [[what, said, holds(folder, study)] for what, said, study in CLAIMS]
    return (
        "\n\n".join(
            [
                "# The paper, claim by claim",
                "Every table and figure of *Efficient Estimation of Kernel Surrogate Models for Task "
                "Attribution* as one runnable file of `experiments/paper`, ours beside the paper's. `make "
                "paper` makes this page and those it links to again from [recorded runs](../api/datasets.md): "
                f"{minutes(folder):.0f} minutes of one core, shared by all that there are. Runs "
                "were made on one NVIDIA H200 where nothing else is said; each page names the command. "
                f"Written {time.strftime('%Y-%m-%d')}.",
                "## Side by side",
                side_by_side(folder),
                "## Claim by claim",
                table(["the paper", "its figure", "what holds"], rows),
                "Sentences are written by the studies from their own numbers, so that they change when the numbers do.",
            ]
        )
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = (*STUDIES, "elsewhere")
    parser.add_argument("studies", nargs="*", help=", ".join(usual))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    for study in given.studies:
        if study not in usual:
            parser.error(f"There is no study '{study}'. {did_you_mean(study, usual)}")
    folder = ROOT / "build" / "paper" if given.quick else PAGES
    studies = () if given.page else given.studies or usual

    begun, left = time.perf_counter(), list(studies)

    def fails(study: str) -> bool:
        command = [sys.executable, str(HERE / f"{study}.py"), *(["--quick"] if given.quick else [])]
        started = time.perf_counter()
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
        left.remove(study)
        now = time.perf_counter()
        print(
            f"[{now - begun:.0f} s] {study} {'failed' if code else 'done'} in {now - started:.0f} s; "
            f"{len(left)} of {len(studies)} left",
            flush=True,
        )
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
