"""Outcome functions named on the command line, as ``exp.py:train`` or ``package.module:train``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from whence.errors import InputError, brief, did_you_mean
from whence.measuring.outcome_fn import OutcomeFn, as_outcome_fn
from whence.outcomes.subset import Subset


class FunctionInFile(OutcomeFn):
    """Outcome function of a file, sent to workers as the text of the file.

    Workers then need not have the file, and rows measured tomorrow use the file as it is now. ``function`` is given if
    the text was executed before.
    """

    def __init__(
        self, path: str, name: str, text: str, function: Callable[[Subset, int], object] | None = None
    ) -> None:
        self.path, self._name, self.source_text = path, name, text
        self.function: Callable[..., object] = function or getattr(_execute(Path(path), text), name)
        self.__qualname__ = name
        said = as_outcome_fn(self.function)
        self.task_names, self.maximize, self.provenance = said.task_names, said.maximize, said.provenance
        self.replicates = said.replicates
        self.__signature__ = inspect.signature(self.function)

    def __call__(self, subset: Subset, seed: int) -> object:
        return self.function(subset, seed)

    def __reduce__(self) -> tuple[type[FunctionInFile], tuple[str, str, str]]:
        return FunctionInFile, (self.path, self._name, self.source_text)


def load_function(text: str) -> tuple[object, list[str] | None]:
    """Object named by ``FILE.py:NAME`` or ``MODULE:NAME``, and the ``TASKS`` of its file, if there are any."""
    where, colon, name = text.rpartition(":")
    if not (where and colon and name.isidentifier()):
        raise InputError(
            f"Say where the outcome function is, as in exp.py:train (or package.module:train). Got '{text}'."
        )
    try:
        if where.endswith(".py"):
            source = Path(where).read_text(encoding="utf-8")
            module = _execute(Path(where), source)
            found = _named(module, name, where)
            if callable(found) and not callable(getattr(found, "batch", None)):
                found = FunctionInFile(where, name, source, found)
        else:
            sys.path.insert(0, "")
            module = importlib.import_module(where)
            found = _named(module, name, where)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{where}: cannot be read ({error.strerror or error}).") from error
    except (Exception, SystemExit) as error:
        package = isinstance(error, ImportError) and "relative import" in str(error) and where.endswith(".py")
        hint = _as_module(Path(where), name) if package else ""
        raise InputError(f"{where}: cannot be loaded ({brief(error)}).{hint}") from error
    tasks = getattr(module, "TASKS", None)
    return found, None if tasks is None else [str(task) for task in tasks]


def _as_module(path: Path, name: str) -> str:
    """How to name a function of a file that is part of a package."""
    path = path.absolute()
    folders = [path.parent]
    while (folders[-1].parent / "__init__.py").is_file():
        folders.append(folders[-1].parent)
    module = ".".join([*(folder.name for folder in reversed(folders)), path.stem])
    above = folders[-1].parent
    where = "" if above == Path.cwd() else f", in the folder {above}"
    return f" It is part of a package: name it as {module}:{name}{where}."


def _named(module: ModuleType, name: str, where: str) -> object:
    kept = {key: value for key, value in vars(module).items() if not (key.startswith("_") or inspect.isclass(value))}
    public = [key for key, value in kept.items() if callable(value) or hasattr(value, "predict")]
    if not hasattr(module, name):
        raise InputError(f"{where}: there is no '{name}' in it. {did_you_mean(name, public)}")
    found: object = getattr(module, name)
    if inspect.isclass(found):
        raise InputError(f"{where}: '{name}' is a class. Make an object of it there, and name that.")
    return found


def _execute(path: Path, text: str) -> ModuleType:
    """Module of a file, registered under its own name."""
    path = path.absolute()
    known = sys.modules.get(path.stem)
    ours = known is None or getattr(known, "__file__", None) == str(path)
    module = ModuleType(path.stem if ours else f"_whence_{path.stem}")
    module.__file__, module.__package__ = str(path), ""
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # what lies beside it can be imported, as by a script
    sys.modules[module.__name__] = module
    exec(compile(text, str(path), "exec"), vars(module))
    return module
