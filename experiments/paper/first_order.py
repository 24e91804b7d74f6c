"""First-order errors: how far a trained model is from its linear model, as in the paper's tables on ε_W(x).

    python experiments/paper/first_order.py --out DIR --device cuda --images cifar10.npz --demos demonstrations.npz
    … --model DIR      a causal language model of Hugging Face beside those made from their configuration
    … --small          sizes for one core of a processor, about 15 minutes
    … --quick          in seconds
    … --only NAME      images, modular, policies or languages, added to what DIR has already

*CIFAR-10* (--images: as cifar10.py writes them): ResNet-9 after some epochs on all tasks is W₀; W is W₀ after an epoch
on 30 of the 50 tasks at several rates, with the statistics of batch normalisation as they are. *Modular arithmetic*:
W₀ is random, or trained on all 25 groups; W is W₀ after training on a Bernoulli(0.9) subset of them. *Policies* of
Meta-World's MT10 (--demos: as experiments/rl/cloning.py writes them): W₀ is cloned from all ten tasks; W is W₀ after
further steps on seven of them, or trained on these from the same random start. *Language models* of growing size, byte
by byte, learn to answer coin flips after four solved ones; W is W₀ after a few steps of AdamW on other prompts, as in
fine-tuning. In the space of embeddings, W stays, and the four solved examples of a prompt are exchanged (the paper's
equation for in-context learning).

Errors are ‖f_W − f_W₀ − ∇f·(W − W₀)‖ relative to ‖f_W‖, as in the paper, and to the change, ‖f_W − f_W₀‖: outputs that
hardly change make any guess look good in the first, and 1 in the second is no better than no guess.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rl"))

from cifar10 import BATCH, INSIDE, N_TASKS, TASK, Data, SideBySide
from runs import command, machine
from torch import Tensor, nn

import whence
from modular import initial, tasks_and_target, trained
from whence.icl.language import import_transformers
from whence.models.stack import Stack
from whence.models.training import train

NAMES = ("Aldina", "Bertil", "Carmen", "Dorian", "Esther", "Fabian", "Gudrun", "Hanson", "Isolde", "Joseph")
N_DEMOS, LONGEST = 4, 88


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    images: int = TASK  # of a task
    width: int = 64  # of ResNet-9
    batch: int = BATCH
    epochs: tuple[int, ...] = (1, 8)
    steps: int = 300  # of modular arithmetic
    clones: int = 3000  # steps of cloning
    llamas: tuple[tuple[int, int], ...] = ((128, 2), (256, 4), (512, 8), (1024, 12), (1536, 20))  # width and layers
    queries: int = 64
    learning: tuple[int, int] = (60, 32)  # steps and batch of a language model from its random start
    tuning: tuple[int, int] = (10, 16)  # … of fine-tuning it


FULL = Size()
SMALL = Size(images=60, width=16, batch=100, epochs=(1, 4), steps=150, llamas=((64, 2), (128, 2), (256, 4)), queries=8,
             learning=(30, 4), tuning=(3, 2))  # fmt: skip
QUICK = Size(images=40, width=4, batch=100, epochs=(1,), steps=3, clones=3, llamas=((32, 1), (64, 2)), queries=8,
             learning=(2, 4), tuning=(2, 4))  # fmt: skip


def relative(before: Tensor, slope: Tensor, after: Tensor) -> dict[str, float]:
    """Mean and standard deviation over examples of both errors, from outputs (n, C) and their slope."""
    gap, found = (after - before - slope).norm(dim=1), {}
    for kind, size in {"outputs": after, "change": after - before}.items():
        each = gap / size.norm(dim=1).clamp_min(1e-12)
        found |= {f"of_{kind}": float(each.mean()), f"of_{kind}_std": float(each.std())}
    return found


@torch.no_grad()
def errors(start: nn.Module, moved: nn.Module, inputs: Tensor) -> dict[str, float]:
    """Errors of the linear model at the start, of where its weights have moved."""
    here, there = (dict(model.named_parameters()) for model in (start, moved))
    step = {name: there[name] - value for name, value in here.items()}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        outputs = lambda at: torch.func.functional_call(start, at, (inputs,))  # noqa: E731
        before, slope = torch.func.jvp(outputs, (here,), (step,))
        return relative(before, slope, outputs(there))


def images(size: Size, args: argparse.Namespace, tell) -> None:
    """ResNet-9 on CIFAR-10, from W₀ early and late in training."""
    data = Data(args.images, args.device, size.images)
    per_epoch = N_TASKS * size.images // size.batch
    rng = np.random.default_rng(0)
    subset = np.isin(np.arange(N_TASKS), rng.choice(N_TASKS, INSIDE, replace=False)).astype(float)
    test = data.test[:256].float().permute(0, 3, 1, 2)
    for epochs in size.epochs:
        side = SideBySide(data, 1, epochs * per_epoch, width=size.width, batch=size.batch)
        side.train([data.order(np.ones(N_TASKS), epochs * per_epoch, size.batch, 0)], [0])
        accuracy = float(side.margins()[1].mean())
        start = side.models[0].eval()
        for lr in (1e-3, 1e-2, 1e-1):
            moved = copy.deepcopy(start)
            optimizer = torch.optim.SGD(moved.parameters(), lr=lr)
            steps = INSIDE * size.images // size.batch
            for rows, _ in zip(*data.order(subset, steps, size.batch, 1), strict=True):
                outputs = moved(data.train[rows].float().permute(0, 3, 1, 2))
                nn.functional.cross_entropy(outputs, data.labels[rows]).backward()
                optimizer.step()
                optimizer.zero_grad()
            told = f"W₀ after {epochs} epoch{'s' * (epochs > 1)} (accuracy {accuracy:.2f}), an epoch of SGD at {lr:g}"
            tell(f"CIFAR-10, ResNet-9 of width {size.width}", start, told, errors(start, moved, test))


def modular(size: Size, args: argparse.Namespace, tell) -> None:
    """The paper's transformer on addition and quadratic, from random weights and from trained ones."""
    subset = whence.Bernoulli(0.9).draw(25, 1, seed=0)[0]
    for operation in ("addition", "quadratic"):
        tasks, (inputs, _) = tasks_and_target(operation)
        recipe = whence.Recipe(steps=size.steps, lr=1e-3, batch_size=256)
        fresh = initial(0, args.device)
        name, few = f"Modular {operation}, transformer of width 128", max(1, size.steps // 10)
        inputs = inputs.to(args.device)
        end = trained(fresh, tasks, recipe, subset)
        tell(name, fresh, f"W₀ random, {size.steps} steps of AdamW at 0.001", errors(fresh, end, inputs))
        start = trained(fresh, tasks, recipe)
        for lr in (1e-5, 1e-4, 1e-3):
            short = whence.Recipe(steps=few, lr=lr, batch_size=256)
            moved = trained(start, tasks, short, subset, seed=1)
            told = f"W₀ after {size.steps} steps, {few} steps of AdamW at {lr:g}"
            tell(name, start, told, errors(start, moved, inputs))


def policies(size: Size, args: argparse.Namespace, tell) -> None:
    """Policies cloned from demonstrations of Meta-World's MT10, as experiments/rl/cloning.py has them."""
    from cloning import Cloning, network

    def policy(states) -> nn.Module:
        made = network(width, 0).to(args.device)
        made.load_state_dict({name: value[0] for name, value in states.items()})
        return made

    with np.load(args.demos) as found:
        demos = dict(found)
    width, few = (8, 2) if args.quick else (256, size.clones // 10)
    recipe = whence.Recipe(steps=size.clones, lr=1e-3, batch_size=128, schedule="cosine", weighting="task")
    cloned = Cloning(demos, width, recipe, args.device)
    seven = np.repeat([[1.0, 0.0]], (7, 3), axis=1)
    joint = cloned.train(np.ones((1, 10)), 0)
    start, inputs, name = policy(joint), cloned.problem.targets.inputs, f"MT10, cloned policy of width {width}"
    alone = policy(cloned.train(seven, 0))
    told = "W₀ of all ten tasks, W of seven from the same random start"
    tell(name, start, told, errors(start, alone, inputs))
    stack = Stack(cloned.problem.at({part: value[0] for part, value in joint.items()}), batched=False)
    for lr in (1e-5, 1e-4, 1e-3):
        short = whence.Recipe(steps=few, lr=lr, batch_size=128, weighting="task")
        moved = policy(train(stack, short, stack.start(1), seven, np.array([1])))
        told = f"W₀ of all ten tasks, {few} steps of AdamW at {lr:g} on seven"
        tell(name, start, told, errors(start, moved, inputs))


def flips(n: int, seed: int) -> list[tuple[str, str]]:
    """Coin flips of two people, and whether the coin is still heads up."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        did = rng.random(2) < 0.5
        pairs = zip(rng.choice(NAMES, 2), did, strict=True)
        told = [f"{who} {'flips' if flip else 'does not flip'} it." for who, flip in pairs]
        found.append((f"A coin is heads up. {' '.join(told)} Still heads up?", "no" if did.sum() == 1 else "yes"))
    return found


def prompts(n: int, seed: int, encode) -> tuple[Tensor, Tensor]:
    """Tokens of prompts of four solved examples and a question, (n, length), and the token of the answer."""
    parts, rng = flips(50, 0), np.random.default_rng(seed)
    tokens, labels = [], []
    for question, answer in flips(n, seed + 1):
        shown = [parts[i] for i in rng.choice(len(parts), N_DEMOS, replace=False)]
        lines = [f"{asked} {said}\n".rjust(LONGEST) for asked, said in shown]
        tokens.append(encode("".join(lines) + f"{question} ".rjust(LONGEST - 4)))
        labels.append(encode(answer)[0])
    length = min(map(len, tokens))
    return torch.tensor([each[-length:] for each in tokens]), torch.tensor(labels)


class Answer(nn.Module):
    """Logits of the answer, after the last token; of tokens, or of their embeddings."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        kind = "inputs_embeds" if x.is_floating_point() else "input_ids"
        return self.model(**{kind: x, "use_cache": False, "logits_to_keep": 1}).logits[:, -1]


def learned(model: Answer, tokens: Tensor, labels: Tensor, steps: int, lr: float, batch: int) -> Answer:
    """A copy of the model after some steps of AdamW."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(tokens), (batch,), generator=rng)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
            loss = nn.functional.cross_entropy(model(tokens[rows]).float(), labels[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def language(name: str, start: Answer, encode, size: Size, args: argparse.Namespace, tell) -> None:
    """Errors of a language model in its weights, and in the embeddings of its prompts."""
    some, (steps, batch) = size.queries, size.tuning
    tokens, labels = (part.to(args.device) for part in prompts(4 * some, 1, encode))
    asked, others = tokens[:some], tokens[some : 2 * some]
    for lr in (1e-6, 1e-5, 1e-4):
        moved = learned(start, tokens[some:], labels[some:], steps, lr, batch)
        tell(name, start, f"weights, {steps} steps of AdamW at {lr:g}", errors(start, moved, asked))
    # The question stays the same: only what stands before it changes.
    question = torch.arange(tokens.shape[1], device=tokens.device) >= N_DEMOS * tokens.shape[1] // (N_DEMOS + 1)
    embed = start.model.get_input_embeddings()
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        here, there = embed(asked), embed(torch.where(question, asked, others))
        before, slope = torch.func.jvp(start, (here,), (there - here,))
        found = relative(before, slope, start(there))
    tell(name, start, "embeddings, four other examples", found)


def languages(size: Size, args: argparse.Namespace, tell) -> None:
    """Models from their configuration, trained a little; and one that is given."""
    transformers = import_transformers()

    def letters(text: str) -> list[int]:
        return list(text.encode())

    for width, layers in size.llamas:
        torch.manual_seed(0)
        heads = max(1, width // 64)
        config = transformers.LlamaConfig(
            vocab_size=256, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads, attn_implementation="eager",
        )  # fmt: skip
        fresh = Answer(transformers.LlamaForCausalLM(config)).to(args.device).eval()
        tokens, labels = (part.to(args.device) for part in prompts(64 if args.quick else 4096, 9, letters))
        steps, batch = size.learning
        start = learned(fresh, tokens, labels, steps, 3e-4 * min(1.0, 512 / width), batch)
        language(f"Llama of width {width}, {layers} layers", start, letters, size, args, tell)
    if args.model:
        kind = {"gguf_file": next(args.model.glob("*.gguf")).name} if list(args.model.glob("*.gguf")) else {}
        tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, **kind)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, attn_implementation="eager", dtype="float32", **kind
        )
        encode = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
        language(args.model.name, Answer(model).to(args.device).eval(), encode, size, args, tell)


PARTS = {"images": images, "modular": modular, "policies": policies, "languages": languages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="images, as cifar10.py writes them")
    parser.add_argument("--demos", type=Path, help="demonstrations, as experiments/rl/cloning.py writes them")
    parser.add_argument("--model", type=Path, help="folder of a language model of Hugging Face, or of a GGUF file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=PARTS, help="one part, added to what --out has")
    parser.add_argument("--small", action="store_true", help="sizes for one core of a processor")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, in seconds")
    args = parser.parse_args()
    size = QUICK if args.quick else SMALL if args.small else FULL
    args.out.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.allow_tf32 = False  # its rounding is as large as small errors are
    path = args.out / "first_order.json"
    before = json.loads(path.read_text(encoding="utf-8"))["parts"] if args.only and path.is_file() else {}
    report = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "parts": before}
    for part in [args.only] if args.only else PARTS:
        if (part == "images" and not args.images) or (part == "policies" and not args.demos):
            print(f"left out: {part}, for which --{'images' if part == 'images' else 'demos'} is not given")
            continue
        begun, rows = time.time(), []
        report["parts"][part] = {"command": command(), "rows": rows}

        def tell(model: str, start: nn.Module, setting: str, found: dict[str, float], rows=rows, begun=begun) -> None:
            n_params = sum(value.numel() for value in start.parameters())
            rows.append({"model": model, "parameters": n_params, "setting": setting, **found})
            path.write_text(json.dumps(report, indent=1), encoding="utf-8")
            print(f"{model} ({n_params:,}), {setting}: {found['of_outputs']:.2%} ± {found['of_outputs_std']:.2%} of "
                  f"the outputs, {found['of_change']:.1%} of their change; {time.time() - begun:.0f} s",
                  flush=True)  # fmt: skip

        PARTS[part](size, args, tell)


if __name__ == "__main__":
    main()
