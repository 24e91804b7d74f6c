"""``whence demo``: a real set function from end to end, small enough to know the whole truth.

Ten groups of images of handwritten digits are the tasks, and "is the digit odd?" is the question. A model is
trained on every one of the 1023 subsets of the groups. whence is shown 150 of these runs, as many as a user
might afford, and answers; then each answer is compared with the runs that it has not seen.

`run` is the whole story, and an example of how to use the library.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.text import Text
from scipy.special import comb
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import whence
from whence.answers.attribution import AGAINST, TOGETHER, Attribution
from whence.answers.selection import Selection
from whence.arrays import Floats
from whence.demo import gradex as demo_gradex
from whence.display.layout import Page, Row, Terminal, command, remark, table, title, word
from whence.display.numbers import number, span
from whence.display.pages import SCORES, effects_page, legend, model_page
from whence.evaluation import SizeOnly, residual_error
from whence.outcomes.checks import places
from whence.progress import track

Examples = tuple[Floats, NDArray[np.bool_]]  # images (n, 64), and whether each shows an odd digit (n,)

EVEN, ODD, ANY = [0, 2, 4, 6, 8], [1, 3, 5, 7, 9], list(range(10))
# Group: its digits, how many images, and what it is for.
GROUPS: dict[str, tuple[list[int], int, str]] = {
    "evens": (EVEN, 80, "even digits only: no use without odd ones"),
    "odds": (ODD, 80, "odd digits only: no use without even ones"),
    "odds_copy": (ODD, 80, "the same images as in odds"),
    **{f"mixed_{n}": (ANY, 10, "any digits") for n in range(1, 6)},
    **{f"mislabelled_{n}": (ANY, 20, "any digits, every answer wrong") for n in (1, 2)},
}
COPIED = {"odds_copy": "odds"}
MISLABELLED = {"mislabelled_1", "mislabelled_2"}
REDUNDANT = {"odds", "odds_copy"}
COMPLEMENTARY = {"evens", "odds"}
KEEP_PROBS = (0.25, 0.5, 0.75)
N_TEST, N_RUNS, N_PAIRS, SIZE = 800, 150, 8, 4
AGREES = 0.8
NEXT = {
    "evaluate": "",
    "attribute": " --rule banzhaf",
    "predict": " --subset evens,odds",
    "select": " --max-size 5 --exclude odds_copy",
    "suggest": " -n 5 -o next.csv",
}


# ---- the set function ------------------------------------------------------------------------------------


def digits_set_function(seed: int = 0, tasks: Iterable[str] = tuple(GROUPS)) -> whence.Outcomes:
    """Return the test accuracy of a model trained on every subset of some ``GROUPS``, the empty one included.

    K groups take 2^K trainings of about 4 ms. The seed decides which images are in which group, and which for testing.

    >>> digits_set_function(tasks=["evens", "odds", "mislabelled_1"])
    Outcomes: 8 runs × 3 tasks → accuracy (higher is better); 8 distinct subsets
    """
    names = [list(GROUPS)[place] for place in places(list(tasks), list(GROUPS), "group")]
    groups, test = _groups(seed)
    tasks = {name: groups[name] for name in names}
    accuracy = whence.Refit(
        LogisticRegression(solver="liblinear"), tasks, test, empty=0.5
    )  # without images, a coin flip
    subsets = whence.Exhaustive(allow_empty=True).draw(len(names))
    values = [accuracy(subset)["accuracy"] for subset in track(list(subsets), "Training a model on every subset")]
    return whence.Outcomes(subsets, values, task_names=names, target_names=["accuracy"], maximize=True)


def _groups(seed: int) -> tuple[dict[str, Examples], Examples]:
    """Assign each image to one of the groups or to the test set."""
    images, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(digits))
    images, digits = images[order] / 16, digits[order]
    odd = digits % 2 == 1
    free = np.arange(len(digits)) >= N_TEST
    groups: dict[str, Examples] = {}
    for name, (wanted, n, _) in GROUPS.items():
        if name in COPIED:
            groups[name] = groups[COPIED[name]]
            continue
        rows = np.flatnonzero(free & np.isin(digits, wanted))[:n]
        free[rows] = False
        groups[name] = images[rows], odd[rows] ^ (name in MISLABELLED)
    return groups, (images[:N_TEST], odd[:N_TEST])


def true_index(truth: whence.Outcomes, members: Iterable[str]) -> float:
    """Return the Shapley value of one task, or the Shapley interaction index of several, by its definition.

    The sum over all subsets S of the other tasks of Σ_{L ⊆ members} (−1)^(g−|L|) F(S ∪ L), where g is the number of
    members, weighted by 1 / ((K − g + 1) · C(K − g, |S|)). The truth must hold all 2^K subsets.
    """
    bits = [1 << place for place in places(list(members), truth.task_names, "task")]
    n_others = truth.n_tasks - len(bits)
    code = (truth.subsets @ (1 << np.arange(truth.n_tasks))).astype(int)
    value = np.empty(len(code))
    value[code] = truth.values[:, 0]
    without = (code & sum(bits)) == 0
    rest, sizes = code[without], truth.subsets[without].sum(1)
    change = np.zeros(len(rest))
    for n in range(len(bits) + 1):
        for joined in combinations(bits, n):
            change += (-1) ** (len(bits) - n) * value[rest | sum(joined)]
    return float(change @ (1 / ((n_others + 1) * comb(n_others, sizes))))


# ---- the story -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Findings:
    """What the demo found, in numbers, and which of its own checks it passed."""

    numbers: dict[str, object]
    checks: dict[str, bool]

    @property
    def passed(self) -> bool:
        """Whether it passed all of them."""
        return all(self.checks.values())

    def document(self) -> dict[str, object]:
        """Return both, and the verdict, for JSON."""
        return {**self.numbers, "checks": self.checks, "passed": self.passed}


def run(terminal: Terminal, *, seed: int = 0, output: Path | None = None) -> Findings:
    """Tell the story on a terminal and return what was found; the measured runs go to ``output``."""
    terminal.show(_groups_page())
    began = time.perf_counter()
    truth = digits_set_function(seed)
    seconds = time.perf_counter() - began
    runs, unseen = seen_and_unseen(truth, seed)
    if output is not None:
        runs.write(output)
    terminal.show(_runs_page(runs, unseen))

    model = whence.fit(runs, seed=seed)
    linear = whence.fit(runs, surrogate=whence.AdditiveSurrogate(), seed=seed)
    terminal.show([title("2. What was chosen, and how good it is: whence.fit"), *model_page(model)])

    scores = whence.attribute(model)
    terminal.show(_scores_page(scores))

    pairs = whence.interactions(model)
    terminal.show(_pairs_page(pairs))

    picks = {"whence": whence.select(model, size=SIZE), "tuned linear": whence.select(linear, size=SIZE)}
    chosen = {name: _standing(truth, pick.subset) for name, pick in picks.items()}
    terminal.show(_picks_page(picks, chosen))

    rivals = {"whence": model, "tuned linear": linear, "size only": SizeOnly.fit(runs)}
    judged = {
        name: {"lds": whence.lds(rival, unseen).mean, "residual_error": residual_error(rival, unseen).mean}
        for name, rival in rivals.items()
    }
    true_scores = np.array([true_index(truth, [task]) for task in truth.task_names])
    terminal.show(_truth_page(judged, true_scores, scores, whence.attribute(linear)))

    estimated = demo_gradex.estimate(*_groups(seed), truth, seconds)
    terminal.show(demo_gradex.page(estimated))

    ours, theirs = judged["whence"], judged["tuned linear"]
    better = ours["lds"] > theirs["lds"] and ours["residual_error"] < theirs["residual_error"]
    checks = {
        "mislabelled groups found: they hurt, and no other group does": _hurt(scores) == MISLABELLED,
        "redundant groups found: they work against each other": _verdict(pairs, REDUNDANT) == AGAINST,
        "complementary groups found: they work together": _verdict(pairs, COMPLEMENTARY) == TOGETHER,
        "better than linear: runs it has not seen are predicted better": better,
    }
    if estimated is not None:
        checks["gradients agree: estimates rank subsets as training does"] = estimated.lds > AGREES
    numbers = {
        "runs": runs.n_runs,
        "unseen": unseen.n_runs,
        "quality": model.quality(),
        "shapley": scores.to_frame().drop(columns="target").to_dict("records"),
        "true_shapley": dict(zip(truth.task_names, true_scores, strict=True)),
        "pairs": pairs.to_frame(top=N_PAIRS).drop(columns="target").to_dict("records"),
        "selected": {
            name: {"tasks": pick.tasks, "predicted": pick.value, **chosen[name]} for name, pick in picks.items()
        },
        "unseen_runs": judged,
        "gradex": None if estimated is None else asdict(estimated),
    }
    findings = Findings(numbers, checks)
    terminal.show(_end_page(findings, output))
    return findings


def seen_and_unseen(truth: whence.Outcomes, seed: int) -> tuple[whence.Outcomes, whence.Outcomes]:
    """The runs that a user could afford and the empty set, which costs nothing; and all others."""
    place = {subset.tobytes(): at for at, subset in enumerate(truth.subsets)}
    seen = [place[np.zeros(truth.n_tasks).tobytes()]]
    # Few, half and many of the groups: Shapley values are about subsets of every size.
    for turn, keep_prob in enumerate(KEEP_PROBS):
        drawn = whence.Bernoulli(keep_prob).draw(truth.n_tasks, N_RUNS // 2, seed=seed + turn)
        new = [at for at in (place[subset.tobytes()] for subset in drawn) if at not in seen]
        seen += new[: N_RUNS // len(KEEP_PROBS)]
    return truth.rows(seen), truth.rows(np.setdiff1d(np.arange(truth.n_runs), seen))


def _standing(truth: whence.Outcomes, subset: Floats) -> dict[str, float]:
    """The true accuracy of a subset, and its rank among all of its size."""
    peers = truth.values[truth.subsets.sum(1) == subset.sum(), 0]
    accuracy = float(truth.values[(truth.subsets == subset).all(1), 0][0])
    return {
        "accuracy": accuracy,
        "rank": int((peers > accuracy).sum()) + 1,
        "of": len(peers),
        "best": float(peers.max()),
    }


def _hurt(scores: Attribution) -> set[str]:
    return set(np.array(scores.task_names)[scores.verdicts()[:, 0] == scores.words[1]])


def _verdict(pairs: Attribution, members: set[str]) -> str:
    first, second = places(sorted(members), pairs.task_names, "group")
    return str(pairs.verdicts()[first, second, 0])


# ---- its pages -------------------------------------------------------------------------------------------


def _groups_page() -> Page:
    rows: list[Row] = [[name, str(n), what] for name, (_, n, what) in GROUPS.items()]
    return [
        Text("1. Ten groups of images, and every subset of them", style="bold"),
        Text(
            "The tasks are groups of scikit-learn's images of handwritten digits. A run trains a logistic "
            "regression on the images of some groups, to tell odd digits from even ones. Its outcome is the "
            f"accuracy on {N_TEST} other images (higher is better)."
        ),
        table(["group", "images", "what is in it"], rows, left=["what is in it"]),
    ]


def _runs_page(runs: whence.Outcomes, unseen: whence.Outcomes) -> Page:
    return [
        Text(
            f"{runs.n_runs + unseen.n_runs - 1} models were trained, one for every subset. Suppose that you could "
            f"afford {runs.n_runs - 1} of them, drawn by whence.Bernoulli with a quarter, half and three quarters of "
            "the groups. whence sees these, and the empty subset, whose accuracy is that of a coin flip. The other "
            f"{unseen.n_runs} runs are kept to check its answers."
        )
    ]


def _scores_page(scores: Attribution) -> Page:
    return [
        title("3. What each group does: whence.attribute"),
        *effects_page(scores, scores.target_names, heading="Shapley values", top=None),
        remark(f"score: {scores.rule.words}"),
        Text(f"Better left out: {', '.join(sorted(_hurt(scores))) or 'none'}."),
    ]


def _pairs_page(pairs: Attribution) -> Page:
    return [
        title("4. What pairs do together: whence.interactions"),
        *effects_page(pairs, pairs.target_names, heading="Shapley interactions", top=N_PAIRS),
        Text(
            "Two groups work against each other where they are redundant: the second adds little to the first. "
            "They work together where they are complementary, or where a good one makes up for a bad one."
        ),
    ]


def _picks_page(picks: dict[str, Selection], chosen: dict[str, dict[str, float]]) -> Page:
    rows: list[Row] = [
        [name, ", ".join(pick.tasks), number(pick.value, 3), number(chosen[name]["accuracy"], 3),
         f"{chosen[name]['rank']} of {chosen[name]['of']}"]
        for name, pick in picks.items()
    ]  # fmt: skip
    return [
        title(f"5. The best {SIZE} groups: whence.select"),
        table(["chosen by", "groups", "predicted", "true", "true rank"], rows, left=["groups"]),
        remark(f"true: accuracy of the model trained on them; the best {SIZE} reach {chosen['whence']['best']:.3f}"),
    ]


def _truth_page(judged: dict[str, dict[str, float]], truth: Floats, scores: Attribution, linear: Attribution) -> Page:
    """Compare the answers with the runs that whence has not seen."""
    low, high = (end[:, 0] for end in scores.interval())
    inside = (low <= truth) & (truth <= high)
    rows: list[Row] = [[name, number(row["lds"]), number(row["residual_error"])] for name, row in judged.items()]
    values: list[Row] = [
        [task, number(truth[k], 3, signed=True), number(scores.scores[k, 0], 3, signed=True),
         span(low[k], high[k], 3, signed=True), word("inside" if inside[k] else "outside"),
         number(linear.scores[k, 0], 3, signed=True)]
        for k, task in enumerate(scores.task_names)
    ]  # fmt: skip
    columns = list(SCORES)[:2]
    mine, theirs = scores.scores[:, 0], linear.scores[:, 0]
    off = {name: float(np.abs(found - truth).mean()) for name, found in (("whence", mine), ("linear", theirs))}
    ratio = judged["tuned linear"]["residual_error"] / judged["whence"]["residual_error"]
    return [
        title("6. The check: all runs that whence has not seen"),
        table(["predicted by", *columns], rows),
        *legend(columns),
        title("Shapley values, estimated from the measured runs and computed from all of them"),
        table(["group", "true", "whence", "90% interval", "true is", "linear"], values),
        Text(
            f"Estimated and true values correlate {np.corrcoef(mine, truth)[0, 1]:.2f}; {inside.sum()} of {len(truth)} "
            f"true values lie in their 90% intervals."
        ),
        Text(
            "To the tuned linear surrogate, a group is worth the same whatever else is in the subset. So it sees no "
            f"pairs, its squared error on unseen runs is {ratio:.1f} times as large, and its values are off by "
            f"{off['linear']:.3f} on average, those of whence by {off['whence']:.3f}."
        ),
    ]


def _end_page(findings: Findings, output: Path | None) -> Page:
    page: Page = [title("8. Did it work?")]
    page += [Text.assemble(word("PASS" if passed else "FAIL"), f"  {what}") for what, passed in findings.checks.items()]
    if output is not None:
        options = f"{shlex.quote(str(output))} -O accuracy --maximize accuracy"
        page += [title(f"The measured runs are in {output}. Try:")]
        page += [command(f"  whence {verb} {options}{more}") for verb, more in NEXT.items()]
    verdict = "PASS" if findings.passed else "FAIL"
    n = sum(findings.checks.values())
    page.append(Text.assemble("\n", word(verdict), f": {n} of {len(findings.checks)} checks passed."))
    return page
