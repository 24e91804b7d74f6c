"""What the documentation is built with beyond mkdocs itself: equations as MathML, and results that follow their files.

Equations are converted when the site is built, so that pages need no script to show them. The files of
``benchmarks/results`` and the docstrings of ``experiments`` become pages of their own, under *Results*. A comment such
as ``<!-- from benchmarks/results/icl.md: Speed -->`` stands for the section of that name, and ``<!-- pages -->`` for a
table of all pages of results.
"""

from __future__ import annotations

import ast
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
EXPERIMENTS = ROOT / "experiments"
INCLUDE = re.compile(r"^<!-- from (\S+): (.+) -->$", re.MULTILINE)
GROUPS = {  # of pages of results, by their names
    "Surrogates": r"surrogates|weights|priors|calibration|lds_interval|optimism_tried",
    "Estimates": r"scores|ladder|fusion.*|gradex_fidelity|estimators_.*|baselines.*",
    "Language models": r"finetune_smollm|icl",
    "Agents and searches": r"mt10|search",
    "Speed and faults": r".*",
}
EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


def on_config(config: Any) -> Any:
    """List the pages of results in the navigation."""
    section = next(part["Results"] for part in config.nav if isinstance(part, dict) and "Results" in part)
    paper = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/results/paper").glob("*.md"))
    section.append({"The paper": ["results/paper.md", *paper]})
    section += [{group: paths} for group, paths in grouped_pages().items()]
    section.append("results/experiments.md")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of results."""
    for path, text in {**result_pages(), "results/experiments.md": experiments_page()}.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in the sections of other files, and the table of results."""
    markdown = markdown.replace("<!-- pages -->", table_of_results())
    return INCLUDE.sub(lambda found: section(ROOT / found[1], found[2]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Turn equations into MathML."""
    return EQUATION.sub(lambda found: mathml(found[2]), html)


def result_pages() -> dict[str, str]:
    """Text of each file of results, by the path of its page; pictures are one folder nearer than from where it lies."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.md"))}
    return {f"results/{name}": text.replace("](../../docs/", "](../") for name, text in texts.items()}


def grouped_pages() -> dict[str, list[str]]:
    """Paths of the pages of results in each group, the first that fits."""
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for path in result_pages():
        name = Path(path).stem
        found[next(group for group, names in GROUPS.items() if re.fullmatch(names, name))].append(path)
    return found


def table_of_results() -> str:
    """Return a row per page of results, in groups: its title, and the commands that made it."""
    rows = ["| page | made by |", "|---|---|"]
    texts = result_pages()
    for group, paths in grouped_pages().items():
        rows.append(f"| **{group}** | |")
        for path in paths:
            title, name = texts[path].partition("\n")[0].removeprefix("# "), path.removeprefix("results/")
            made = dict.fromkeys(re.findall(r"`[^`\n]*?((?:benchmarks|experiments)/\w+\.py)", texts[path]))
            rows.append(f"| [{title}]({name}) | {', '.join(f'`python {script}`' for script in made)} |")
    return "\n".join([*rows, "| [Experiments](experiments.md) | one file per table or figure of the paper |"])


def section(path: Path, title: str) -> str:
    """Return what stands under a heading of a file, without the heading."""
    _, _, after = path.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    if not after:
        raise PluginError(f"{path.name} has no section '{title}'")
    return after.partition("\n## ")[0].strip()


def experiments_page() -> str:
    """What each experiment is about and how it is run, in the words of its docstring."""
    parts = ["# Experiments", "One file per table or figure of the paper, each runnable alone."]
    for path in [*sorted(EXPERIMENTS.glob("*.py")), *sorted(EXPERIMENTS.glob("paper/*.py"))]:
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        title, _, rest = said.partition("\n")
        parts += [f"## `{path.relative_to(EXPERIMENTS).as_posix()}`", f"**{title.strip()}**", rest.strip()]
    return "\n\n".join(parts) + "\n"


def mathml(given: str) -> str:
    r"""Return an equation between \( \) or \[ \], as arithmatex leaves it, as MathML.

    >>> mathml(r"\(x\)")
    '<math xmlns="http://www.w3.org/1998/Math/MathML" display="inline"><mrow><mi>x</mi></mrow></math>'
    """
    latex = html.unescape(given).strip()
    return convert(latex[2:-2].strip(), display="block" if latex.startswith(r"\[") else "inline")
