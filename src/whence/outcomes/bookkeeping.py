"""Columns that are not tasks: seeds, identifiers, dates, hours, steps, settings, other measurements.

Decided by what a column is called and how it behaves: one that is 0/1 among columns that are, or a part of a mixture,
is a task whatever its name (but a seed is a seed, of 0 and 1 too). Nothing is left out without a note.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from whence.errors import DataWarning, some_of
from whence.outcomes.checks import Floats
from whence.outcomes.simplex import ROUNDED, is_mixture, near_totals
from whence.outcomes.values import Column

if TYPE_CHECKING:
    from whence.outcomes.table import Outcomes

_SEED, _INDEX = "a seed", "a row index"  # which may be 0 and 1
_KINDS = {
    _SEED: r"((random|rng|train|training|data|global|torch|numpy|np|run|model|init|eval|split|shuffle)_)?seeds?"
    r"(_(id|no|nr|number))?|random_state|rng|replicate|repeat|rep|fold",
    _INDEX: r"unnamed(_\d+)?|index_level_\d+|index|level_\d+",
    "an identifier": r"([a-z0-9]+_)*(id|ids|uuid|guid|idx|hash|sha|commit|key|name)|"
    r"(run|trial|exp|experiment|job|row|sample|model|version)(_?(no|nr|num|number))?|no|nr|number",
    "a date or time": r"([a-z]+_)?(date|datetime|time|timestamp|day)|(created|started|finished|updated|ended)(_at|_on)?"
    r"|heartbeat_at|year|month",
    "a duration": r"([a-z]+_)*(hours?|hrs?|minutes?|mins?|seconds?|secs?|duration|runtime|elapsed|walltime|wall_clock)"
    r"(_(h|s|ms|min|hours|seconds|sec))?",
    "a count of steps": r"([a-z]+_)?(steps?|epochs?|iters?|iterations?)",
    "a state": r"done|finished|completed?|converged|crashed|failed|is_best",
    "a setting": r"temperature|top_[pk]|(n|num)_(layers|heads|blocks|workers)|d_model|hidden_(size|dim)|lora_\w+"
    r"|(max_)?(seq(uence)?|context)_len(gth)?|(grad|gradient)_\w+|([a-z]+_)?lr|learning_rate|(global_|micro_)?batch_?size|bs|weight_decay|wd|warmup(_\w+)?"
    r"|dropout|momentum|([a-z]+_)?gpus?|world_size|([a-z]+_)?(params|parameters|tokens|flops|cost|price)",
}
NO_TASK = "not called as the tasks are"
_ANY = re.compile("|".join(_KINDS.values()))
_PREFIX = re.compile(r"(config|params?|hparams|cfg|summary|metrics|tags|data)[./]")
_TASKS = re.compile(r"(.*[./])?(tasks|sources|datasets|domains|subsets?|mix|mixture)[./][^./]+", re.IGNORECASE)
_MEASURED = re.compile(r"(summary|metrics?|eval|results?)[./]")
LOWER = {"err", "error", "errors", "loss", "losses", "perplexity", "ppl", "regret", "nll", "bpb", "bpc", "mse", "mae"}
LOWER |= {"rmse", "latency", "wer", "cer", "fid", "ece", "brier", "toxicity", "verlust", "perte"}
HIGHER = {"acc", "accuracy", "auc", "auroc", "f1", "reward", "rewards", "return", "returns", "score", "scores", "bleu"}
HIGHER |= {"precision", "recall", "rouge", "success", "winrate", "em", "map", "ndcg", "r2", "mrr", "iou", "miou", "mcc"}
HIGHER |= {"top1", "top5", "chrf", "comet", "psnr", "ssim", "genauigkeit", "passed", "correct", "solved"}
RATES = {"acc", "accuracy", "auc", "auroc", "f1", "precision", "recall", "success", "rate", "winrate", "em", "map"}
RATES |= {"ndcg", "mrr", "iou", "miou", "top1", "top5", "genauigkeit", "passed", "correct", "solved"}
# Names of benchmarks say which way is better, but tasks have them too.
BENCHMARKS = {"mmlu", "gsm8k", "hellaswag", "arc", "winogrande", "piqa", "boolq", "truthfulqa", "humaneval", "mbpp"}
BENCHMARKS |= {"bbh", "openbookqa", "triviaqa", "squad", "glue", "superglue", "aime", "gpqa", "ifeval", "siqa", "race"}
BENCHMARKS |= {"pass", "top"}  # of pass@1 and top-1
WEIGHTS = {"weight", "weights", "coef", "coeff", "lambda", "share", "ratio", "fraction", "proportion"}


def words_of(name: str) -> list[str]:
    """Words of a name, in lower case.

    >>> words_of("evalLoss (mean)")
    ['eval', 'loss', 'mean']
    """
    return [word for word in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) if word]


def higher_is_better(name: str) -> bool:
    """Whether the name of an outcome suggests that higher is better.

    >>> higher_is_better("Top-1"), higher_is_better("WER ↓"), higher_is_better("FVD ↑")
    (True, False, True)
    """
    if "↑" in name or "↓" in name:
        return "↑" in name
    words = {*words_of(name), *words_of(name.lower())}
    return bool(words & (HIGHER | BENCHMARKS)) and not words & (LOWER | WEIGHTS)


def is_rate(name: str) -> bool:
    """Whether an outcome is called as shares are, which lie between 0 and 1 or 0 and 100%.

    >>> is_rate("eval/accuracy"), is_rate("success_rate"), is_rate("gsm8k"), is_rate("reward"), is_rate("loss")
    (True, True, True, False, False)
    """
    words = {*words_of(name), *words_of(name.lower())}
    return bool(words & (RATES | BENCHMARKS)) and not words & (LOWER - {"err", "error", "errors"})


def is_loss(name: str) -> bool:
    """Whether an outcome is called as losses and errors are, which are hardly ever negative.

    >>> is_loss("val/loss"), is_loss("perplexity"), is_loss("accuracy"), is_loss("reward")
    (True, True, False, False)
    """
    return bool({*words_of(name), *words_of(name.lower())} & LOWER)


def is_outcome(name: str) -> bool:
    """Whether a column is called as outcomes are; benchmarks are not, because tasks have their names too.

    >>> is_outcome("val/loss"), is_outcome("FVD ↓"), is_outcome("loss_weight"), is_outcome("mmlu")
    (True, True, False, False)
    """
    words = set(words_of(name))
    return bool(words & (LOWER | HIGHER) and not words & WEIGHTS) or "↑" in name or "↓" in name


def hint_at_directions(runs: Outcomes) -> None:
    """Warn of targets that are minimised although their names suggest that higher is better."""
    pairs = zip(runs.target_names, runs.maximize, strict=True)
    # The targets of an array are named together, by its name.
    names = list(
        dict.fromkeys(re.sub(r"\[\d+\]$", "", name) for name, up in pairs if not up and higher_is_better(name))
    )
    if names:
        said = f"Lower {some_of(names, 6)} is assumed to be better. If higher is, add {{maximize}}."
        warnings.warn(DataWarning(said, maximize=names), stacklevel=3)


def kind_of_name(name: str) -> str:
    """What a column is by its name, if not a task; "" where the name does not say.

    >>> kind_of_name("Run ID"), kind_of_name("config.lr"), kind_of_name("date_understanding")
    ('an identifier', 'a setting', '')
    """
    plain = "_".join(words_of(_PREFIX.sub("", re.sub(r"\[\d+\]$", "", name))))
    if not _ANY.fullmatch(plain):
        return ""
    return next(kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, plain))


def set_aside(columns: Mapping[str, Column]) -> dict[str, str]:
    """What the columns that are not tasks are, by name.

    >>> column = lambda *values: Column(np.array(values, dtype=float), [], "")
    >>> set_aside({"a": column(0, 1, 1), "b": column(1, 0, 1), "seed": column(0, 1, 0), "lr": column(3, 1, 2)})
    {'seed': 'a seed', 'lr': 'a setting'}
    """
    found = {name: kind for name, column in columns.items() if (kind := _not_numbers(name, column))}
    units = [name for name, column in columns.items() if name not in found and column.unit not in ("", "%")]
    if len(units) == 1:  # amounts of data come in several columns, "7B" in one says which model it was
        found[units[0]] = "text"
    values = {name: column.values for name, column in columns.items() if name not in found}
    called = [name for name in values if _TASKS.fullmatch(name) and not kind_of_name(name)]
    if len(called) >= 2 and len({re.split(r"[./]", name)[-2] for name in called}) == 1:  # as trackers export them
        others = [name for name in values if name not in called]
        named = {
            name: kind_of_name(name) or ("another measurement" if is_outcome(name) else NO_TASK) for name in others
        }
        if others:
            return _ordered(columns, found | named | set_aside({name: columns[name] for name in called}))
    binary = {name for name, cells in values.items() if np.isin(cells[~np.isnan(cells)], (0, 1)).all()}
    behaviour = {name: _behaviour(values[name]) for name in values if name not in binary}
    named = {name: kind for name in values if (kind := kind_of_name(name) or behaviour.get(name, ""))}
    others = [name for name in values if name not in binary]
    measured = [name for name in others if name not in named and (is_outcome(name) or higher_is_better(name))]
    if len(values) - len(named) - len(measured) < 2:  # tasks may have the names of benchmarks
        measured = [name for name in measured if is_outcome(name)]
    named |= dict.fromkeys(measured, "another measurement")
    if len(binary) >= 2 and len(binary) >= len([name for name in others if name not in named]):
        always = {name: kind for name, kind in named.items() if kind in (_SEED, _INDEX) or np.ptp(values[name]) == 0}
        sizes = np.nan_to_num(np.column_stack([values[name] for name in binary if name not in always])).sum(axis=1)
        odd = {name: named.get(name) or _unlike_weights(values[name], sizes) for name in others}
        return _ordered(columns, found | {name: kind for name, kind in odd.items() if kind} | always)
    if total := _total({name: values[name] for name in values if name not in named}):
        named[total] = "the sum of the others"
    if part := _mixture(values, named):
        rest = {name: named.get(name, "not a part of the mixture") for name in values if name not in part}
        return _ordered(columns, found | rest)
    return _ordered(columns, found | named)


def _ordered(columns: Mapping[str, Column], found: Mapping[str, str]) -> dict[str, str]:
    return {name: found[name] for name in columns if name in found}


def _not_numbers(name: str, column: Column) -> str:
    if column.is_empty and len(column.values) >= 3:
        return "empty"
    if column.is_text:
        return kind_of_name(name) or "text"
    return "another measurement" if _MEASURED.match(name) else ""


def _behaviour(values: Floats) -> str:
    """What a column of numbers does that no task would, "" where it may be one."""
    if len(values) < 3 or np.isnan(values).any():
        return ""
    if (np.diff(values) == 1).all():
        return "counts the rows"
    return "the same in every run" if np.ptp(values) == 0 else ""


def _unlike_weights(values: Floats, sizes: Floats) -> str:
    """Why a column that is not 0/1 is no task among those that are; parts that repeat and small multiples may be."""
    if np.array_equal(values, sizes):
        return "the number of tasks"
    known = values[~np.isnan(values)]
    whole = (known == known.round()).all()
    again = whole or len(np.unique(known)) <= max(len(known) / 2, 3)
    if (known >= 0).all() and known.max() <= (10 if whole else 1) and again:
        return ""
    return "" if (known < 0).any() else "not 0/1, as the others are"


def _total(values: Mapping[str, Floats]) -> str:
    """The column that is the sum of all others, but for rounding; "" where none is."""
    if len(values) < 3:
        return ""
    cells = np.nan_to_num(np.column_stack(list(values.values())))
    total = cells.sum(axis=1)
    for name, column in zip(values, cells.T, strict=True):
        others = total - column
        if np.ptp(column) > 0 and np.allclose(column, others, rtol=ROUNDED) and others.all():
            return name
    return ""


def _mixture(values: Mapping[str, Floats], named: Mapping[str, str]) -> list[str]:
    """The columns whose weights sum to 1 or to 100 in every run, or all to the same; empty where none do."""
    # Zeros add nothing to a sum, so that it does not tell whether a seed, or epochs, are a part of it.
    values = {
        name: column
        for name, column in values.items()
        if named.get(name) not in (_SEED, _INDEX) and not (kind_of_name(name) and not column.any())
    }
    best: tuple[float, int, list[str]] | None = None
    for names in _candidates(values, named):
        S = np.nan_to_num(np.column_stack([values[name] for name in names]))
        if not is_mixture(S) or (S < 0).any() or len(np.unique(S, axis=0)) < 2:
            continue
        totals = S.sum(axis=1)
        exact = near_totals(totals).all()
        off = round(float(min(abs(np.median(totals) - 1), abs(np.median(totals) / 100 - 1))), 4) if exact else 1.0
        if best is None or (off, -len(names)) < best[:2]:
            best = off, -len(names), names
    return best[2] if best else []


def _candidates(values: Mapping[str, Floats], named: Mapping[str, str]) -> Iterator[list[str]]:
    """Sets of columns that may be a mixture: without odd ones, with them, of one prefix, neighbours, all but one."""
    every = list(values)
    plain = [name for name in every if name not in named]
    unseeded = [name for name in every if named.get(name, "the same in every run") == "the same in every run"]
    groups: dict[str, list[str]] = {}
    for name in every:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    small = [
        [name for name in names if np.nanmax(values[name], initial=0) <= total * 1.03]
        for names in (plain, unseeded)
        for total in (1, 100)
    ]
    tried: list[Sequence[str]] = [plain, unseeded, *groups.values(), *small, every]
    tried += _neighbours({name: values[name] for name in unseeded}) if len(every) <= 300 else ()
    for names in (plain, *small) if len(every) <= 100 else ():
        tried += [[name for name in names if name != other] for other in names]
    return (list(names) for names in tried if len(names) >= 2)


def _neighbours(values: Mapping[str, Floats]) -> Iterator[list[str]]:
    """Columns one after the other that sum to 1 or to 100 in every run."""
    names = list(values)
    if not names:
        return
    sums = np.cumsum([np.zeros_like(values[names[0]]), *map(np.nan_to_num, values.values())], axis=0)
    for start in range(len(names)):
        exact = near_totals(sums[start + 2 :] - sums[start]).all(axis=1)
        yield from (names[start : start + 2 + int(at)] for at in np.flatnonzero(exact))
