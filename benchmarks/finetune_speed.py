r"""Speed of fine-tuning adapters: stacked over one frozen model, beside a plain peft loop; and of features along a run.

    python benchmarks/finetune_speed.py SmolLM2-135M-Instruct.Q4_1.gguf                # the results page, on a GPU
    python benchmarks/finetune_speed.py --shape mid                             # a model from config, on a processor
    python benchmarks/finetune_speed.py --shape qwen3-8b --rank 16 --adapters 1 4 16   # random weights, on a large GPU

Everything is a ratio within one run. A step is the same work everywhere: batches of the same examples and length, the
same adapters, AdamW. The plain loop is peft and torch as one writes them, and as the loop in ``transformers.Trainer``
is: one adapter at a time, attention as the model chooses it.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

import whence
from whence import hf
from whence.gradients.routes import passes
from whence.hf.tokens import Row, Rows
from whence.icl.language import import_transformers
from whence.models.stack import Stack
from whence.models.training import train

SHAPES = {
    "tiny": {"vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 2},
    "mid": {"vocab_size": 2000, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3-8b": {"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
                 "num_attention_heads": 32, "num_key_value_heads": 8},
}  # fmt: skip


def main() -> None:
    given = arguments()
    warnings.simplefilter("ignore", whence.DataWarning)
    device = torch.device(given.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    print(
        f"{given.model or given.shape}, rank {given.rank}, {given.length} tokens, batches of {given.batch}, on {device}"
    )
    adapted = load(given, device)
    problem = make_problem(adapted, given)
    print(problem)
    recipe = whence.Recipe(steps=given.steps, lr=1e-4, batch_size=given.batch)
    one = plain_loop(adapted, problem, recipe)
    tokens = given.steps * given.batch * given.length
    print(f"\nplain peft loop, one adapter: {one:.3f} s a run, {tokens / one:,.0f} tokens/s")
    print("| adapters | side by side, s | tokens/s | over the plain loop | peak memory |\n|---|---|---|---|---|")
    for m in given.adapters:
        reset(device)
        together = stacked(problem, recipe, m)
        print(
            f"| {m} | {together:.3f} | {m * tokens / together:,.0f} | {m * one / together:.2f} × | {peak(device)} |",
            flush=True,
        )
    if not given.no_along:
        along(problem, recipe, given)


def load(given: argparse.Namespace, device: torch.device) -> hf.Adapted:
    if given.model:
        return hf.load(
            given.model, rank=given.rank, layers=given.layers, device=device, dtype=given.dtype,
            checkpointing=given.checkpointing or None,
        )  # fmt: skip
    transformers = import_transformers()
    kind = "Qwen3" if given.shape.startswith("qwen3") else "Llama"
    attention = {"attn_implementation": "eager"} if device.type == "cpu" else {}
    config = getattr(transformers, f"{kind}Config")(**SHAPES[given.shape], max_position_embeddings=2048, **attention)
    torch.set_default_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32)
    with device:
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    torch.set_default_dtype(torch.float32)
    return hf.adapt(model, None, rank=given.rank, layers=given.layers, checkpointing=given.checkpointing or None)


def make_problem(adapted: hf.Adapted, given: argparse.Namespace) -> whence.Problem:
    """Random tokens, all of one length, of which the last quarter is trained."""
    rng = np.random.default_rng(0)
    places = list(range(given.length - given.length // 4, given.length))
    vocabulary = adapted.model.config.vocab_size

    def rows(name: str, n: int) -> Rows:
        return Rows(name, [Row(rng.integers(vocabulary, size=given.length).tolist(), places) for _ in range(n)], 0)

    tasks = [rows(f"task{k}", given.examples) for k in range(given.tasks)]
    return hf.Prepared(adapted, tasks, [rows("val", given.examples)], per_query=True).problem()


def plain_loop(adapted: hf.Adapted, problem: whence.Problem, recipe: whence.Recipe) -> float:
    """Seconds of a fine-tuning as one writes it: the model's own loss, labels −100 where nothing is trained."""
    model = adapted.model.train()
    trained = [value for value in model.parameters() if value.requires_grad]
    start = [value.detach().clone() for value in trained]
    ids, places = problem.tasks.inputs["input_ids"], problem.tasks.inputs["places"]
    labels = torch.full_like(ids, -100).scatter(1, places, ids.gather(1, places))

    def run() -> None:
        optimizer = torch.optim.AdamW(trained, lr=recipe.lr, fused=True)
        generator = torch.Generator().manual_seed(0)
        for _ in range(recipe.steps):
            rows = torch.randint(len(ids), (recipe.batch_size,), generator=generator).to(ids.device)
            model(input_ids=ids[rows], labels=labels[rows], use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    seconds = timed(run, problem.device)
    with torch.no_grad():
        for value, first in zip(trained, start, strict=True):
            value.copy_(first)
    return seconds


def stacked(problem: whence.Problem, recipe: whence.Recipe, m: int) -> float:
    """Seconds of m fine-tunings side by side."""
    stack = Stack(problem, batched=True)
    subsets, seeds = np.ones((m, len(problem.task_names))), np.arange(m)
    return timed(lambda: train(stack, recipe, stack.start(m), subsets, seeds), problem.device)


def along(problem: whence.Problem, recipe: whence.Recipe, given: argparse.Namespace) -> None:
    """Where the time of `GradEx.along` goes, in runs: gradients of tasks on the way, and features."""
    stack = Stack(problem, batched=False)
    everything = np.ones((1, len(problem.task_names)))
    run = timed(lambda: train(stack, recipe, stack.start(1), everything, np.array([0])), problem.device)
    seen = counted(problem)
    train(stack, recipe, stack.start(1), everything, np.array([0]))
    passes_of_run = sum(seen)
    print("\n| GradEx.along | in runs, by the clock | by passes |\n|---|---|---|")
    for examples in given.sampled:
        seen.clear()
        features = whence.Features(examples=examples)
        began = time.perf_counter()
        made = whence.GradEx.along(problem, recipe, rank=given.directions, features=features)
        synchronize(problem.device)
        traced = time.perf_counter() - began
        _ = made.members
        synchronize(problem.device)
        total = time.perf_counter() - began
        print(f"| {examples} examples a task: the run and gradients on its way | {traced / run:.1f} | |")
        points = f"… and features at {len(made.points)} points"
        print(f"| {points}: all of it | {total / run:.1f} | {sum(seen) / passes_of_run:.1f} |")
    by_vmap(problem, made, run)


def counted(problem: whence.Problem) -> list[int]:
    """A list that gets the passes of every call of the model from now on: one per example, three in training."""
    seen: list[int] = []
    for module in (problem.output_fn.module, problem.train_fn.module):
        forward = module.forward

        def counting(forward=forward, **inputs: torch.Tensor) -> torch.Tensor:  # type: ignore
            seen.append(len(inputs["input_ids"]) * (3 if torch.is_grad_enabled() else 1))
            return forward(**inputs)

        module.forward = counting
    return seen


def by_vmap(problem: whence.Problem, made: whence.GradEx, run: float) -> None:
    """The same features by a gradient of each example under vmap, as for models whose layers tell nothing."""
    from whence.gradients import routes

    output_fn, params = made.points[0]
    inputs, labels = made.examples.rows(slice(None))
    seen = routes.layers_of
    for name, finder in (("from what layers see", seen), ("by vmap", lambda *_: None)):
        routes.layers_of = finder
        work = routes.block_fn(output_fn, params, made.examples, made.projection(0), "reverse", "outputs")
        with passes(params, "float32"):
            seconds = timed(lambda work=work: work(inputs, labels), problem.device)
        print(f"| features of the sample at one point, {name} | {seconds / run:.2f} | |")
    routes.layers_of = seen


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds on a card; on a processor, those that it spends on this, whatever else it does."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    work()
    synchronize(device)
    began = clock()
    work()
    synchronize(device)
    return clock() - began


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> str:
    return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB" if device.type == "cuda" else "–"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="folder of a model, or a GGUF file; else one from config")
    parser.add_argument("--shape", choices=SHAPES, default="mid")
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--sampled", type=int, nargs="+", default=[16], help="examples of a task for GradEx.along")
    for name, usual in {"rank": 8, "length": 64, "batch": 8, "steps": 10, "tasks": 8, "examples": 64,
                        "directions": 128}.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--no-along", action="store_true")
    parser.add_argument(
        "--checkpointing",
        action="store_true",
        help="blocks always run again in the backward pass",
    )
    parser.add_argument("--layers", type=int, help="adapt the last so many blocks only")
    parser.add_argument("--dtype", help="of the frozen model that is loaded")
    parser.add_argument("--device")
    return parser.parse_args()


if __name__ == "__main__":
    main()
