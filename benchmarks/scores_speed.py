"""What scores of a joint run cost beside one forward and backward pass over the examples that they are found from.

    python benchmarks/scores_speed.py                                            small networks, on a processor
    python benchmarks/scores_speed.py --model SmolLM2-135M-Instruct.Q4_1.gguf    adapters of it, on a GPU
    … --memory 8                                                                 … once more with so many GiB left

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


def found(problem: Problem, recipe: whence.Recipe, kind: str, run) -> np.ndarray:
    """Scores of a kind at points that the run has already."""
    method, at = KINDS[kind]
    return JointScores(problem, recipe, method, at=at, run=run).scores.coef_


def rows_of(name: str, problem: Problem, recipe: whence.Recipe, kinds) -> tuple[list[dict], dict[str, np.ndarray]]:
    """What each kind costs on a problem, and its scores."""
    first = JointScores(problem, recipe, "tracin", at=KINDS["influence-along"][1])
    _ = first.run.points(first.at, 0)
    plain, told, scores = timed(partial(one_pass, problem), problem.device), [], {}
    for kind in kinds:
        make_room()
        finetune_speed.reset(problem.device)
        work = partial(found, problem, recipe, kind, first.run)
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


def adapters(args, dtype: str) -> tuple[str, Problem, whence.Recipe]:
    """Adapters of all blocks of a language model, on sources of random tokens."""
    few = args.quick
    given = argparse.Namespace(
        model=args.model, shape=args.shape, dtype=dtype, length=16 if few else 64, tasks=4 if few else 16,
        examples=8 if few else 64, queries=8 if few else 128,
    )  # fmt: skip
    base, tokenizer = finetune_speed.load(given, torch.device(args.device))
    adapted = hf.adapt(base.to(getattr(torch, dtype)), tokenizer, rank=8)
    problem = hf.Prepared(adapted, *finetune_speed.random_rows(adapted, given), per_query=True).problem()
    recipe = whence.Recipe(steps=8 if few else 40, lr=1e-2 if few else 1e-3, batch_size=16)
    return f"adapters of {Path(args.model or args.shape).stem}, {dtype}", problem, recipe


def language(args) -> list[dict]:
    """Scores in half precision, once more in little memory, and how near they are to those in single precision."""
    kinds = ("influence", "trak", "tracin")
    told, half = rows_of(*adapters(args, "bfloat16"), kinds)
    make_room()
    if args.memory and args.device == "cuda":
        ballast = torch.empty(torch.cuda.mem_get_info()[0] - int(args.memory * 2**30), dtype=torch.uint8, device="cuda")
        name, *rest = adapters(args, "bfloat16")
        told += rows_of(f"{name}, {args.memory:g} GiB free", *rest, kinds)[0]
        del ballast
        make_room()
    more, single = rows_of(*adapters(args, "float32"), kinds)
    for row in told:
        row["half precision"] = float(np.corrcoef(half[row["scores"]].ravel(), single[row["scores"]].ravel())[0, 1])
    return told + more


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
