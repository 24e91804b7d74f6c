r"""Speed of fine-tuning adapters: stacked over one frozen model, beside a plain peft loop; and of features along a run.

    python benchmarks/finetune_speed.py SmolLM2-135M-Instruct.Q4_1.gguf                # the results page, on a GPU
    python benchmarks/finetune_speed.py --shape mid                             # a model from config, on a processor
    python benchmarks/finetune_speed.py --shape qwen3-8b --rank 16 --adapters 1 4 16   # random weights, on a large GPU

Everything is a ratio within one run. A step is the same work everywhere: batches of the same examples and length, the
same adapters, AdamW. The plain loop is peft and torch as one writes them, beside ``transformers.Trainer``: one adapter
at a time, attention as the model chooses it. The first steps, in which libraries initialise and steps are recorded, are
timed apart.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

import whence
from whence import hf
from whence.errors import counted
from whence.gradients.routes import passes
from whence.hf.completions import checkpointed
from whence.hf.tokens import Row, Rows
from whence.icl.language import import_transformers, load_pretrained
from whence.models.memory import make_room, out_of_memory
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
    began = time.perf_counter()
    base, tokenizer = load(given, device)
    synchronize(device)
    print(f"loaded in {time.perf_counter() - began:.1f} s", flush=True)
    adapted = hf.adapt(base, tokenizer, rank=given.rank, layers=given.layers, checkpointing=given.checkpointing or None)
    groups = random_rows(adapted, given)
    print("\n| | tokens/s | over the plain loop | first steps, s | peak memory |\n|---|---|---|---|---|")
    plain = 0.0
    for name, loop in {"plain peft loop": plain_loop, "transformers.Trainer": trainer_loop}.items():
        # Before anything of whence wraps the model: peft as it is.
        found = attempt(lambda loop=loop: loop(adapted, groups[0], given), device)
        plain = plain or found.speed
        print(found.row(name, plain), flush=True)
    for checkpointing in (None, True)[: 1 + given.again]:
        adapted = replace(adapted, checkpointing=checkpointing or adapted.checkpointing)
        if checkpointing:
            checkpointed(adapted.model)
        problem = hf.Prepared(adapted, *groups, per_query=True).problem()
        print(f"# {problem}; {problem.bytes_per_row / 2**20:,.0f} MiB for each example of a batch", flush=True)
        usual = whence.Retrain(problem, recipe_of(given), batched=True).batch_size
        print(f"# {usual} adapters side by side, if not told how many", flush=True)
        for m in given.adapters:
            found = attempt(lambda m=m, problem=problem: stacked(problem, given, m), device)
            print(found.row(f"{counted(m, 'adapter')}{', checkpointing' * bool(checkpointing)}", plain), flush=True)
    if given.features:
        found = attempt(lambda: features(problem, given), device)
        print(found.row(f"features of {given.directions} directions", plain), flush=True)
    if not given.no_along:
        along(problem, whence.Recipe(steps=given.run, lr=1e-4, batch_size=given.batch), given)


@dataclass(frozen=True)
class Speed:
    """Tokens per second, seconds of what comes before the steps that are timed, and memory at its peak."""

    speed: float
    first: float = 0.0
    peak: str = "–"

    def row(self, name: str, plain: float) -> str:
        if not self.speed:
            return f"| {name} | out of memory | | | |"
        ratio = self.speed / plain if plain else float("nan")
        return f"| {name} | {self.speed:,.0f} | {ratio:.2f} × | {self.first:.1f} | {self.peak} |"


def attempt(work: Callable[[], Speed], device: torch.device) -> Speed:
    """What some work finds, with the peak of its memory; nothing if memory runs out."""
    make_room()
    reset(device)
    try:
        found = work()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return Speed(0.0)
    return replace(found, peak=peak(device))


class Stopwatch:
    """Seconds of steps after the first ones, in which libraries initialise and steps are recorded."""

    def __init__(self, given: argparse.Namespace, device: torch.device) -> None:
        self.given, self.device, self.marks = given, device, dict.fromkeys((0, given.first, given.first + given.steps))

    def __call__(self, step: int) -> None:
        """To be called before each step, and after the last."""
        if step in self.marks:
            synchronize(self.device)
            self.marks[step] = seconds(self.device)

    def speed(self, m: int = 1) -> Speed:
        start, begin, end = self.marks.values()
        tokens = m * self.given.steps * self.given.batch * self.given.length
        return Speed(tokens / (end - begin), begin - start)


def load(given: argparse.Namespace, device: torch.device) -> tuple:
    """The model, and its tokenizer if it has one."""
    if given.model:
        dtype = getattr(torch, given.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
        return load_pretrained(given.model, device=device, dtype=dtype, kind="AutoModelForCausalLM")
    transformers = import_transformers()
    kind = "Qwen3" if given.shape.startswith("qwen3") else "Llama"
    attention = {"attn_implementation": "eager"} if device.type == "cpu" else {}
    config = getattr(transformers, f"{kind}Config")(**SHAPES[given.shape], max_position_embeddings=2048, **attention)
    torch.set_default_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32)
    with device:
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
    torch.set_default_dtype(torch.float32)
    return model, None


def random_rows(adapted: hf.Adapted, given: argparse.Namespace) -> tuple[list[Rows], list[Rows]]:
    """Tasks and targets of random tokens, all of one length, of which the last quarter is trained."""
    rng = np.random.default_rng(0)
    places = list(range(given.length - given.length // 4, given.length))
    vocabulary = adapted.model.config.vocab_size

    def rows(name: str, n: int) -> Rows:
        return Rows(name, [Row(rng.integers(vocabulary, size=given.length).tolist(), places) for _ in range(n)], 0)

    return [rows(f"task{k}", given.examples) for k in range(given.tasks)], [rows("val", given.queries)]


def labelled(tasks: list[Rows]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, −100 where nothing is trained."""
    ids = torch.tensor([row.ids for rows in tasks for row in rows.rows])
    labels = torch.full_like(ids, -100)
    labels[:, tasks[0].rows[0].places] = ids[:, tasks[0].rows[0].places]
    return ids, labels


def plain_loop(adapted: hf.Adapted, tasks: list[Rows], given: argparse.Namespace) -> Speed:
    """Fine-tuning as one writes it: the model's own loss, and AdamW."""
    model, device = adapted.model.train(), adapted.model.device
    ids, labels = (part.to(device) for part in labelled(tasks))
    watch = Stopwatch(given, device)
    with start_kept(model) as trained:
        optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
        generator = torch.Generator().manual_seed(0)
        for step in range(given.first + given.steps):
            watch(step)
            rows = torch.randint(len(ids), (given.batch,), generator=generator).to(device)
            model(input_ids=ids[rows], labels=labels[rows], use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        watch(step + 1)
    return watch.speed()


def trainer_loop(adapted: hf.Adapted, tasks: list[Rows], given: argparse.Namespace) -> Speed:
    """The same by transformers.Trainer, in mixed precision on a card.

    It refuses models that come from a GGUF file, although their weights are plain numbers: it is told that they are.
    """
    transformers, device = import_transformers(), adapted.model.device
    watch = Stopwatch(given, device)

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **rest) -> None:  # type: ignore
            watch(state.global_step)

        def on_train_end(self, args, state, control, **rest) -> None:  # type: ignore
            watch(state.global_step)

    data = [{"input_ids": row, "labels": own} for row, own in zip(*labelled(tasks), strict=True)]
    data *= -(-given.batch * (given.first + given.steps) // len(data))
    with tempfile.TemporaryDirectory() as folder, start_kept(adapted.model):
        options = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=given.batch, max_steps=given.first + given.steps,
            learning_rate=1e-4, bf16=device.type == "cuda", use_cpu=device.type == "cpu", optim="adamw_torch_fused",
            save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        adapted.model.base_model.model.is_quantized = False
        transformers.Trainer(model=adapted.model, args=options, train_dataset=data, callbacks=[Watch()]).train()
    return watch.speed()


@contextmanager
def start_kept(model: torch.nn.Module) -> Iterator[list[torch.nn.Parameter]]:
    """The trained parameters of a model, which is afterwards what it was before."""
    trained = [value for value in model.parameters() if value.requires_grad]
    start = [value.detach().clone() for value in trained]
    yield trained
    vars(model).pop("forward", None)  # accelerate puts another one there, in mixed precision
    with torch.no_grad():
        for value, first in zip(trained, start, strict=True):
            value.grad = None
            value.copy_(first)


def stacked(problem: whence.Problem, given: argparse.Namespace, m: int) -> Speed:
    """Fine-tunings of m adapters side by side."""
    stack, watch = Stack(problem, batched=True), Stopwatch(given, problem.device)
    recipe = recipe_of(given)
    subsets, seeds = np.ones((m, len(problem.task_names))), np.arange(m)
    train(stack, recipe, stack.start(m), subsets, seeds, watch=lambda step, *_: watch(step))
    return watch.speed(m)


def recipe_of(given: argparse.Namespace) -> whence.Recipe:
    return whence.Recipe(steps=given.first + given.steps, lr=1e-4, batch_size=given.batch)


def features(problem: whence.Problem, given: argparse.Namespace) -> Speed:
    """Features of all examples, as GradEx and TRAK have them."""
    few = problem.with_examples(problem.tasks.sample(1), problem.targets)
    _ = whence.GradEx(few, rank=given.directions).members
    synchronize(problem.device)
    began = seconds(problem.device)
    _ = whence.GradEx(problem, rank=given.directions).members
    synchronize(problem.device)
    tokens = (len(problem.tasks) + len(problem.targets)) * given.length
    return Speed(tokens / (seconds(problem.device) - began))


def along(problem: whence.Problem, recipe: whence.Recipe, given: argparse.Namespace) -> None:
    """Where the time of `GradEx.along` goes, in runs: gradients of tasks on the way, features, and estimates."""
    stack = Stack(problem, batched=False)
    everything = np.ones((1, len(problem.task_names)))
    run = timed(lambda: train(stack, recipe, stack.start(1), everything, np.array([0])), problem.device)
    print(f"\nA run of {recipe.steps} steps alone: {run:.2f} s\n")
    print("| GradEx.along | s | in runs |\n|---|---|---|")
    for examples in given.sampled:
        marks = [seconds(problem.device)]

        def mark(marks: list[float] = marks) -> None:
            synchronize(problem.device)
            marks.append(seconds(problem.device))

        features = whence.Features(examples=examples)
        made = whence.GradEx.along(problem, recipe, rank=given.directions, features=features)
        mark()
        _ = made.members
        mark()
        made.batch(np.random.default_rng(0).integers(2, size=(200, len(problem.task_names))))
        mark()
        parts = np.diff(marks)
        rows = {
            f"{examples} examples a task: the run, and gradients on its way": parts[0],
            f"… features at {len(made.points)} points": parts[1],
            "… estimates of 200 subsets": parts[2],
            "… all of it": parts.sum(),
        }
        for name, took in rows.items():
            print(f"| {name} | {took:.2f} | {took / run:.1f} |", flush=True)
    if given.vmap:
        by_vmap(problem, made, run)


def by_vmap(problem: whence.Problem, made: whence.GradEx, run: float) -> None:
    """The same features by a gradient of each example under vmap, as for models whose layers tell nothing."""
    from whence.gradients import routes

    output_fn, params = made.points[0]
    inputs, labels = made.examples.rows(slice(None))
    seen = routes.layers_of
    for name, finder in (("from what layers see", seen), ("by vmap", lambda *_: None)):
        routes.layers_of = finder
        work = routes.block_fn(output_fn, [params], made.examples, made.projection(0), "reverse", "outputs")
        with passes(params, "float32"):
            took = timed(lambda work=work: work(inputs, labels), problem.device)
        print(f"| features of the sample at one point, {name} | {took:.2f} | {took / run:.2f} |")
    routes.layers_of = seen


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that some work takes, the second time."""
    work()
    synchronize(device)
    began = seconds(device)
    work()
    synchronize(device)
    return seconds(device) - began


def seconds(device: torch.device) -> float:
    """The time, on a processor that spent on this process, whatever others there are."""
    return time.process_time() if device.type == "cpu" else time.perf_counter()


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
    for name, usual in {"rank": 8, "length": 64, "batch": 8, "first": 6, "steps": 10, "run": 60, "tasks": 8,
                        "examples": 64, "queries": 64, "directions": 128}.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--vmap", action="store_true", help="… and features by vmap, to compare")
    parser.add_argument("--again", action="store_true", help="time adapters once more, with gradient checkpointing")
    parser.add_argument("--features", action="store_true", help="time features of all examples too")
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
