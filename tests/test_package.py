"""The package as a whole: what importing it costs, and that its public names are what they claim to be."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import whence

SOURCE = Path(whence.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
HEAVY = ("sklearn", "pandas", "torch", "matplotlib", "scipy", "numpy", "joblib", "typer", "rich", "pyarrow")


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SOURCE).stdout


def imports(tree):
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_importing_whence_imports_nothing_heavy():
    loaded = run(f"import sys, whence; print([name for name in {HEAVY} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_importing_whence_is_fast():
    """Twice the processor time of starting Python, and a generous constant for a busy machine; the best of three."""

    def fastest(code):
        times = []
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run(code)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    assert fastest("import whence") < 2 * fastest("pass") + 0.5


def test_a_name_loads_only_what_it_needs():
    loaded = run("import sys, whence; whence.InputError; print('numpy' in sys.modules, 'sklearn' in sys.modules)")
    assert loaded.split() == ["False", "False"]
    loaded = run("import sys, whence; whence.Outcomes; print('sklearn' in sys.modules, 'pandas' in sys.modules)")
    assert loaded.split() == ["False", "False"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baselines", "evaluation", "icl", "plots"])
def test_modules_are_there_on_a_fresh_import(name):
    """Without anything else imported before, as in the first line of a user's session."""
    pytest.importorskip("torch")
    assert run(f"import whence; print(whence.{name}.__name__)").strip() == f"whence.{whence._MODULES[name]}"


def test_public_names_are_sorted_and_those_that_type_checkers_see():
    assert list(whence.__all__) == sorted(set(whence.__all__))
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    (checking,) = (
        node for node in tree.body if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    seen = {}
    for node in checking.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "re-exported under its own name"
            seen[alias.name] = node.module
    assert sorted(seen) == list(whence.__all__)
    for name, module in seen.items():
        assert getattr(import_module(module), name) is getattr(whence, name)


@pytest.mark.parametrize("name", whence.__all__)
def test_every_public_name_resolves_and_is_documented(name):
    thing = getattr(whence, name)
    assert thing.__doc__
    assert len(thing.__doc__.split()) >= 5
    assert thing.__name__ == name
    assert thing.__module__.startswith("whence.")


def test_unknown_names_are_named():
    with pytest.raises(AttributeError, match="module 'whence' has no attribute 'atribute'"):
        _ = whence.atribute


def test_dir_lists_the_public_names():
    assert set(whence.__all__) <= set(dir(whence))
    assert dir(whence) == sorted(dir(whence))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_are_short_documented_and_free_of_pickle(path):
    text = path.read_text(encoding="utf-8")
    n_lines = text.count("\n")
    assert n_lines <= 400
    tree = ast.parse(text)
    assert ast.get_docstring(tree)
    assert not {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"} & {
        name.split(".")[0] for name in imports(tree)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant)
            assert node.value.value is False


def test_version_is_that_of_the_distribution():
    assert whence.__version__ == version("whence")
