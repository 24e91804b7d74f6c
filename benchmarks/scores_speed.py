"""What scores of a joint run cost beside one forward and backward pass over the examples that they are found from.

    python benchmarks/scores_speed.py                                            small networks, on a processor
    python benchmarks/scores_speed.py --model SmolLM2-135M-Instruct.Q4_1.gguf    adapters of it, on a GPU
    … --memory 8                                                                 … once more as if it had so many GiB

The run itself is not counted. The yardstick is a plain loop: the mean loss of batches of 256 examples (as many as fit)
of the tasks and the queries, and its gradient by what is trained. Of each kind, the second call is timed, of several
where it is short; "half precision" is the correlation of its scores with those of the same model in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments"))

import finetune_speed
import ladder
import whence
from whence import JointScores, hf
from whence.gradients.groups import ROWS
from whence.models.examples import Examples
from whence.models.memory import free_bytes, make_room
from whence.models.problem import Problem

HALF = 0.5
KINDS = {
    "influence": ("influence", (HALF,)),
    "trak": ("trak", (HALF,)),
    "tracin": ("tracin", (HALF,)),
    "influence-along": ("influence", (0.25, 0.5, 0.75, 1.0)),
}
SHORT, CALLS = 0.5, 5  # seconds up to which the best of so many calls is taken


def one_pass(problem: Problem) -> None:
    """The gradients of the mean loss of batches, of the tasks and of the queries."""
    leaves = {name: value.detach().requires_grad_() for name, value in problem.start.items() if name in problem.trained}
    state = {**problem.start, **leaves}
    size = max(1, min(ROWS, free_bytes(problem.device) // (2 * problem.bytes_per_row)))
    for examples in (problem.tasks, problem.targets):
        for rows in examples.blocks(size):
            inputs, labels = examples.rows(rows)
            loss = problem.loss(problem.output_fn(state, inputs), labels).mean()
            torch.autograd.grad(loss, [*leaves.values()], allow_unused=True)


def timed(work, device) -> float:
    """Seconds of the second call, or of the best of some short ones."""
    took = finetune_speed.timed(work, device)
    return min([took, *(finetune_speed.timed(work, device) for _ in range(CALLS))]) if took < SHORT else took


def found(problem: Problem, recipe: whence.Recipe, kind: str, **where) -> np.ndarray:
    """Scores of a kind, at points that are there already."""
    method, at = KINDS[kind]
    return JointScores(problem, recipe, method, at=at, **where).scores.coef_


def rows_of(name: str, problem: Problem, recipe: whence.Recipe, kinds, **where) -> tuple[list[dict], dict]:
    """What each kind costs on a problem, and its scores."""
    if not where:
        every = JointScores(problem, recipe, at=KINDS["influence-along"][1])
        every.run.points(every.at, every.seed)
        where = {"run": every.run}
    plain, told, scores = timed(partial(one_pass, problem), problem.device), [], {}
    for kind in kinds:
        make_room()
        finetune_speed.reset(problem.device)
        work = partial(found, problem, recipe, kind, **where)
        took = timed(work, problem.device)
        peak = finetune_speed.peak(problem.device)
        scores[kind] = work()
        each = len(KINDS[kind][1])
        told.append({"problem": name, "examples": len(problem.tasks) + len(problem.targets), "scores": kind,
                     "seconds": took, "passes": took / plain / each, "points": each, "peak": peak})  # fmt: skip
        print(json.dumps(told[-1]), flush=True)
    return told, scores


def small(args):
    """Networks of scores_problems.py, from a few examples of each task to thousands."""
    from scores_problems import PROBLEMS

    for name in ("breast cancer", "digits, wrong labels", "sequences, 300 steps", "quadratic, 100 steps, small"):
        given = PROBLEMS[name](argparse.Namespace(**vars(args), truth=None))
        yield name, given.problem, given.recipe
    for times in () if args.quick else (1, 8):
        made = ladder.problem("convolutions", steps=20)
        tasks, again = made.problem.tasks, torch.arange(len(made.problem.tasks)).repeat(times)
        more = Examples(*tasks.rows(again), tasks.owner[again], tasks.names)
        yield f"digits, convolutions × {times}", made.problem.with_examples(more, made.problem.targets), made.recipe


def language(args) -> list[dict]:
    """Scores of adapters of all blocks, on random tokens: in half precision, also in little memory, and in single."""
    few, device = args.quick, torch.device(args.device)
    given = argparse.Namespace(
        model=args.model, shape=args.shape, dtype="bfloat16", length=16 if few else 64, tasks=4 if few else 16,
        examples=8 if few else 64, queries=8 if few else 128,
    )  # fmt: skip
    base, tokenizer = finetune_speed.load(given, device)
    adapted = hf.adapt(base.to(torch.bfloat16), tokenizer, rank=8)
    rows = finetune_speed.random_rows(adapted, given)
    recipe = whence.Recipe(steps=8 if few else 40, lr=1e-2 if few else 1e-3, batch_size=16)
    name, kinds = f"adapters of {Path(args.model or args.shape).stem}", ("influence", "trak", "tracin")

    def problem() -> Problem:
        make_room()
        return hf.Prepared(adapted, *rows, per_query=True).problem()

    first = JointScores(problem(), recipe, at=HALF)
    there = {"checkpoints": [first.run.points(first.at, first.seed)[0].state]}
    told, half = rows_of(f"{name}, bfloat16", first.problem, recipe, kinds, **there)
    if args.memory and device.type == "cuda":
        with smaller_card(args.memory):
            told += rows_of(f"{name}, bfloat16, {args.memory:g} GiB", problem(), recipe, kinds, **there)[0]
    adapted.model.float()
    more, single = rows_of(f"{name}, float32", problem(), recipe, kinds, **there)
    for row in told:
        row["half precision"] = float(np.corrcoef(half[row["scores"]].ravel(), single[row["scores"]].ravel())[0, 1])
    return told + more


@contextmanager
def smaller_card(gib: float) -> Iterator[None]:
    """As if the GPU had so much memory."""
    make_room()
    whole, limit = torch.cuda.mem_get_info, int(gib * 2**30)
    torch.cuda.set_per_process_memory_fraction(limit / whole()[1])
    torch.cuda.mem_get_info = lambda device=None: (max(0, limit - torch.cuda.memory_reserved(device)), limit)
    try:
        yield
    finally:
        torch.cuda.mem_get_info = whole
        torch.cuda.set_per_process_memory_fraction(1.0)


def page(rows: list[dict]) -> str:
    heads = [
        "problem",
        "examples",
        "scores",
        "points",
        "seconds",
        "passes at each point",
        "peak memory",
        "half precision",
    ]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        half = f"{row['half precision']:.3f}" if "half precision" in row else ""
        cells = [row["problem"], f"{row['examples']:,}", row["scores"], str(row["points"]), f"{row['seconds']:.3g}"]
        lines.append([*cells, f"{row['passes']:.1f}", row["peak"], half])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a language model, as a GGUF file or a folder")
    parser.add_argument("--shape", help="… or one of random weights (finetune_speed.py)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", type=float)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.model or args.shape:
        rows = language(args)
    else:
        rows = [row for given in small(args) for row in rows_of(*given, KINDS)[0]]
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{platform.machine()}, 1 thread"
    command = " ".join(["python benchmarks/scores_speed.py", *sys.argv[1:]])
    print(f"\n`{command}`, {time.strftime('%d %B %Y')}, {where}, torch {torch.__version__}\n\n{page(rows)}")


if __name__ == "__main__":
    main()
