"""The documentation: every snippet runs and prints what its page shows, and the site builds, whole and by itself.

What runs, and how outputs are compared, is described in ``docs/snippets.py``. The README speaks of things that a
reader has and this repository has not, such as ``train_my_model`` or a table of runs: `readme_folder` stands for them,
and `IN_THE_READERS_PLACE` for what it leaves out.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import whence
from browser import PATIENCE, launched

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import hooks  # noqa: E402
import snippets  # noqa: E402

PAGES = sorted(
    path
    for path in (ROOT / "docs").rglob("*.md")
    if path.parent.name != "api" or "```python" in path.read_text(encoding="utf-8")
)
MODULES = ("whence.baselines", "whence.evaluation", "whence.hf", "whence.icl", "whence.display.plots")
FOREIGN = re.compile(r"^(https?:)?//")


@pytest.fixture(scope="module", autouse=True)
def demo_once():
    """The demo takes seconds and always writes the same runs: pages that begin with it share one run of it."""
    kept = {}

    def run(arguments):
        if arguments[:2] != ["demo", "-o"]:
            return plain(arguments)
        path = Path(arguments[2])
        if "demo" not in kept:
            kept["demo"] = plain(arguments), path.read_text(encoding="utf-8")
        path.write_text(kept["demo"][1], encoding="utf-8")
        return kept["demo"][0]

    plain = snippets.run_whence
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snippets, "run_whence", run)
        yield


# ---- pictures --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pictures_are_what_their_commands_draw(tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    import pictures

    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    pictures.main(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    left = {path.name for path in pictures.IMAGES.iterdir()} - drawn
    assert all(re.fullmatch(r"(estimators_\w+|finetune_smollm|mt10)\.png", name) for name in left - {"report.png"})
    # Recorded results are drawn alike everywhere; a fit differs in its last digits, and a page by the fonts there are.
    limits = {"breast_cancer.png": 0.01, "price.png": 0.01, "demo.png": 0.04, "report.png": 0.2}
    for name in drawn:
        found, kept = (pyplot.imread(folder / name) for folder in (tmp_path, pictures.IMAGES))
        assert found.shape == kept.shape, name
        assert np.abs(found - kept).mean() < limits[name], f"{name} is out of date: python docs/pictures.py"
    for name in left - {
        "report.png"
    }:  # which take minutes to hours: they come with a page of results that names its command
        page = (ROOT / "benchmarks" / "results" / name).with_suffix(".md").read_text(encoding="utf-8")
        assert f"images/{name}" in page
        assert re.search("python (benchmarks|experiments)/", page)


# ---- snippets --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_snippets_run_and_print_what_the_page_shows(page):
    with snippets.own_folder():
        for ran in snippets.run_page(page.read_text(encoding="utf-8"), page.name):
            assert not ran.complaint, f"{page.name}, line {ran.snippet.line}. {ran.complaint}"


def test_pages_have_snippets_to_run():
    texts = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}
    shown = {name: sum(one.shown is not None for one in snippets.snippets(text)) for name, text in texts.items()}
    assert all(shown[name] >= 3 for name in ("csv", "mixtures", "pytorch", "llm", "icl", "rl", "cli"))
    assert not any("\n?\n" in text or "PARAGRAPH" in text for text in texts.values()), "a page is not finished"


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b", "a  b\n", True),
        ("a b", "a b c", False),
        ("a ...", "a b c", True),
        ("... c", "a b c", True),
        ("a ... c ... e", "a b c d e", True),
        ("a ... x ... e", "a b c d e", False),
        ("a ... a", "a", False),
        ("loss 0.51", "loss 0.53", True),
        ("loss 0.51", "loss 0.54", False),
        ("loss 0.51", "cost 0.51", False),
        ("+0.1 to", "-0.1 to", False),
        ("10,000 runs", "10,200 runs", True),
        ("3 of 5", "4 of 5", False),
        ("(1.2e-05)", "(1.3e-05)", True),
        ("(1.2e-05)", "(1.2e-04)", False),
    ],
)
def test_what_counts_as_the_same_output(shown, printed, same):
    assert snippets.same_words(shown, printed) is same


@pytest.mark.parametrize("module", [hooks, snippets], ids=lambda module: module.__name__)
def test_examples_of_docstrings(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def checked(page):
    with snippets.own_folder():
        return [ran.complaint for ran in snippets.run_page(page, "page.md")]


@pytest.mark.filterwarnings("default")
def test_a_page_that_lies_is_found_out():
    assert checked("```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n") == [""]
    (complaint,) = checked("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert "The page shows\n\n3" in complaint
    (complaint,) = checked("```python\nimport warnings\nwarnings.warn('careful')\n```\n")
    assert "UserWarning: careful" in complaint
    (complaint,) = checked("```sh\nwhence fit nothing.csv --outcome loss\n```\n")
    assert "[exit status 2]" in complaint


def test_names_and_files_last_to_the_end_of_a_page():
    page = "```python\n# part.py\nx = 3\n```\n\n```python\nimport part\ny = part.x\n```\n\n```python\nprint(y)\n```\n"
    assert checked(page + "\n```text\n3\n```\n") == ["", "", ""]
    assert "part" not in sys.modules


def test_commands_that_cannot_be_run_are_refused():
    with pytest.raises(ValueError, match="cannot be run: rm -r"):
        snippets.run_commands("rm -r .")
    with pytest.raises(FileNotFoundError, match="no such file in the repository"):
        snippets.run_commands("python benchmarks/nothing.py")


# ---- the README ------------------------------------------------------------------------------------------

IN_THE_READERS_PLACE = {
    '{"code": (inputs, labels), ...}': "tasks",  # the dots are the reader's other tasks
    "# problem.py\n": "# problem.py\nimport whence\nfrom reader import model, tasks, inputs, labels\n",
    "# exp.py\nTASKS": "# exp.py\nfrom reader import train_my_model, loss, accuracy\nTASKS",
    " -n 500 ": " -n 60 ",  # less of the same
    "data/*.jsonl": "data/a.jsonl data/b.jsonl",  # as a shell expands it
    "--budget 20 --verify 3": "--budget 5 --verify 1 --steps 3",
}
READER = """
import torch
from torch import nn

torch.manual_seed(0)
NAMES = ["wiki", "code", *(f"source_{i}" for i in range(18))]
truth = torch.randn(6, 3)

def examples(n):
    inputs = torch.randn(n, 6)
    return inputs, (inputs @ truth + torch.randn(n, 3)).argmax(1)

tasks = {name: examples(6) for name in NAMES}
inputs, labels = targets = examples(40)
model = nn.Linear(6, 3)

def train_my_model(names, seed):
    rng = torch.Generator().manual_seed(seed)
    return len(names) + 2 * ("code" in names) + float(torch.rand(1, generator=rng))

def loss(trained):
    return 20 - trained

def accuracy(trained):
    return trained / 20
"""


def readme_folder(folder):
    """What the reader has: runs, a problem, and a language model with its examples."""
    from language_models import examples, tiny_model, tiny_tokenizer

    (folder / "reader.py").write_text(READER, encoding="utf-8")
    rng, names = np.random.default_rng(0), ["wiki", "code", *(f"source_{i}" for i in range(6))]
    subsets, effects = whence.Bernoulli(0.5).draw(len(names), 60, seed=0), rng.normal(size=len(names))
    table = pd.DataFrame(subsets.astype(int), columns=names)
    table.assign(loss=subsets @ effects - subsets[:, 0] * subsets[:, 1]).to_csv(folder / "runs.csv", index=False)
    tiny_model().float().save_pretrained(folder / "MODEL_DIR")
    tiny_tokenizer().save_pretrained(folder / "MODEL_DIR")
    for name, n in {"demos": 8, "val": 10}.items():
        rows = [{"text": one.text, "label": one.label} for one in examples(n, seed=n)]
        pd.DataFrame(rows).to_json(folder / f"{name}.jsonl", orient="records", lines=True)
    (folder / "data").mkdir()
    for seed, name in enumerate("ab", start=20):
        rows = [{"text": one.text, "label": one.label} for one in examples(6, length=9, seed=seed)]
        pd.DataFrame(rows).to_json(folder / "data" / f"{name}.jsonl", orient="records", lines=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_snippets_of_the_readme_run():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for given, stands in IN_THE_READERS_PLACE.items():
        text = text.replace(given, stands)
    # Each section has its own folder.
    for part in filter(snippets.snippets, text.split("\n## ")):
        with snippets.own_folder() as folder:
            readme_folder(folder)
            for ran in snippets.run_page(part, "README.md"):
                assert not ran.complaint, f"README.md, in: {part.splitlines()[0]}. {ran.complaint}"


def test_the_readme_can_be_read_to_the_end():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


# ---- files for contributors ------------------------------------------------------------------------------


def test_contributors_are_sent_to_files_and_tables_that_exist():
    rows = [line for line in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    assert len(rows) == 15
    for row in rows[1:]:
        homes = re.findall(r"`([\w/]+/[\w.]+)`", row)
        assert homes, row
        for home in homes:
            assert (ROOT / home).exists() or (ROOT / "src" / "whence" / home).exists(), home
        text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*.py"))
        for name in re.findall(r"`([A-Z_]{2,}|parts_of)` (?:and `([A-Z_]+)` )?of `tests", row):
            assert all(re.search(rf"^(def )?{one}\b", text, re.MULTILINE) for one in name if one), name


def test_one_version_everywhere():
    asked = {
        "pyproject.toml": rf'^version = "{whence.__version__}"$',
        "CITATION.cff": rf"^version: {whence.__version__}$",
        "docs/cli.md": rf"^whence {whence.__version__}$",
    }
    for file, line in asked.items():
        assert re.search(line, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), file
    released = re.findall(r"^## ([\d.]+) — (\S+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert released[0][0] == whence.__version__
    assert f"date-released: {released[0][1]}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


# ---- the site --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def public_names():
    names = [f"whence.{name}" for name in whence.__all__]
    for path in MODULES:
        module = importlib.import_module(path)
        own = getattr(module, "__all__", None) or [
            name
            for name, thing in vars(module).items()
            if inspect.isfunction(thing) and thing.__module__ == path and not name.startswith("_")
        ]
        names += [f"{path}.{name}" for name in own]
    return names


@pytest.mark.slow
def test_every_public_name_is_in_the_api(site):
    entries = {
        entry
        for page in (site / "api").rglob("*.html")
        for entry in re.findall(r'id="(whence[\w.]*)"', page.read_text())
    }
    names = set(public_names()) - {"whence.evaluation.lds"}  # which is whence.lds
    assert len(names) > 50
    assert not names - entries


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site):
    loading = re.compile(
        r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)=[\"']?([^\"' >]+)"
    )
    linked = re.compile(r"<link\b[^>]*?\bhref=[\"']?([^\"' >]+)")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        foreign = [url for url in [*loading.findall(text), *linked.findall(text)] if FOREIGN.match(url)]
        assert not foreign, f"{page.relative_to(site)} loads {foreign}"
    for sheet in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import\s+)[\"']?([^\"')]+)", sheet.read_text(encoding="utf-8"))
        assert not [url for url in urls if FOREIGN.match(url)]


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a word."""

    def log_message(self, *_):
        pass


@pytest.mark.slow
def test_a_browser_asks_for_nothing_from_elsewhere_and_finds_what_is_searched_for(site):
    with launched() as browser, ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}/"
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        trouble = []
        page.on("request", lambda request: trouble.append(request.url) if not request.url.startswith(home) else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        for path in ("", "method/", "tutorials/csv/", "results/surrogates/", "api/answers/"):
            page.goto(home + path)
            page.wait_for_load_state("networkidle")
        page.goto(home)
        found = page.locator(".md-search-result__item")
        for _ in range(30):  # what is typed before the page's script listens is lost
            page.locator("input.md-search__input").fill("")
            page.locator("input.md-search__input").press_sequentially("noise ceiling")
            for _ in range(50):
                page.wait_for_timeout(100)
                if found.count():
                    break
            else:
                continue
            break
        assert "ceiling" in found.first.text_content().lower()
        server.shutdown()
        assert trouble == []


@pytest.mark.slow
def test_equations_need_no_script(site):
    text = (site / "method" / "index.html").read_text(encoding="utf-8")
    assert text.count("<math") > 20
    assert "arithmatex" not in text
    assert "<merror" not in text
    assert not re.search(r"<m[ion][^>]*>\\", text), "a command that latex2mathml does not know"


@pytest.mark.slow
def test_results_follow_their_files(site):
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        built = (site / "results" / path.stem / "index.html").read_text(encoding="utf-8")
        assert f">{title}" in built
        assert f"{path.stem}/" in (site / "results" / "index.html").read_text(encoding="utf-8")
    experiments = (site / "results" / "experiments" / "index.html").read_text(encoding="utf-8")
    assert all(path.name in experiments for path in (ROOT / "experiments").glob("*.py"))


def test_a_section_that_is_gone_is_an_error(tmp_path):
    path = tmp_path / "some.md"
    path.write_text("# Some\n\n## First\n\none\n\n## Second\n\ntwo\n")
    assert hooks.section(path, "First") == "one"
    assert hooks.section(path, "Second") == "two"
    with pytest.raises(Exception, match=r"some\.md has no section 'Third'"):
        hooks.section(path, "Third")
