"""Digests, by name, of what the outcomes of a function depend on: its source, its data, its settings.

A run folder is resumed only if they have not changed. If a function has no ``fingerprint``, it is inspected: the text
of its file and of the files of the same project that it imports, without comments and formatting; the data it refers
to (module-level values, closures, defaults, arguments of a partial); and the attributes of an object. Installed
libraries, files that are read while a row is measured, and the environment are not included.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import random
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Protocol, runtime_checkable

import numpy as np

from whence.errors import InputError
from whence.measuring.functions import FunctionInFile
from whence.measuring.outcome_fn import OutcomeFn, given, name_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, Path)
_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
_IN_MEMORY = ("argument ", "attribute ", "closure ", "module value ")
_SHORT = 60  # characters of a value that is kept as it is


@runtime_checkable
class _Model(Protocol):
    """A model of torch, or anything else that can give its state."""

    def state_dict(self) -> object: ...


def fingerprint_of(outcome_fn: OutcomeFn) -> dict[str, str]:
    """What the outcomes depend on, by name.

    >>> from whence.measuring.outcome_fn import as_outcome_fn
    >>> found = fingerprint_of(as_outcome_fn(functools.partial(int, base=16)))
    >>> found["argument base"]
    '16'
    """
    said = outcome_fn.fingerprint
    if said is None:
        return dict(parts_of(given(outcome_fn)))
    if not isinstance(said, Mapping):
        raise InputError(
            f"The 'fingerprint' of the outcome function {name_of(outcome_fn)} must be a mapping of names to text. "
            f"Got {said!r}."
        )
    return {str(name): str(value) for name, value in said.items()}


def state_of(outcome_fn: OutcomeFn) -> dict[str, str]:
    """The part of it that is in memory, and may have changed while measuring."""
    if getattr(given(outcome_fn), "fingerprint", None) is not None:
        return {}
    return {name: value for name, value in parts_of(given(outcome_fn)) if name.startswith(_IN_MEMORY)}


def parts_of(function: object) -> Iterator[tuple[str, str]]:
    """Names and digests of what a function depends on."""
    if isinstance(function, functools.partial):
        arguments = {str(place): value for place, value in enumerate(function.args)} | function.keywords
        yield from _values("argument", arguments)
        yield from parts_of(function.func)
        return
    if isinstance(function, MethodType):
        yield from parts_of(function.__self__)
        return
    if isinstance(function, FunctionInFile):  # the file may have changed since it was read
        yield from _sources(Path(function.path), function.source_text)
        function = function.function
        yield from _data(function, set())
    elif isinstance(function, FunctionType):
        yield from _source_of(function)
        yield from _data(function, set())
    elif not inspect.isbuiltin(function) and not inspect.isclass(function):
        yield from _source_of(type(function))
        call = getattr(type(function), "batch", None) or type(function).__call__
        yield from _data(call, set())
    own = {name: value for name, value in getattr(function, "__dict__", {}).items() if not name.startswith("__")}
    yield from _values("attribute", own)


# ---- source ----------------------------------------------------------------------------------------------


def _source_of(defined: FunctionType | type) -> Iterator[tuple[str, str]]:
    """Digests of the files of a function or class, or of its own text or code if it has no file."""
    file = getattr(sys.modules.get(defined.__module__), "__file__", None)
    path = Path(file) if file and file.endswith(".py") else None
    if path is not None and path.is_file():
        yield from _sources(path, path.read_text(encoding="utf-8", errors="replace"), defined.__module__)
        return
    try:
        text = _normal(inspect.cleandoc(inspect.getsource(defined)))
    except (OSError, TypeError):
        text = repr(_code(defined.__code__)) if isinstance(defined, FunctionType) else ""
    yield f"source of {name_of(defined)}", _hash(text.encode())


def _sources(path: Path, text: str, module: str = "") -> Iterator[tuple[str, str]]:
    """Digest of a file and of each file of its project that it imports, directly or not."""
    path = path.absolute()
    root = path.parents[module.count(".") + (path.name == "__init__.py")]
    seen, waiting = {path: text}, [path]
    while waiting and not _is_installed(root):
        place = waiting.pop()
        for found in _imported(place, seen[place], root):
            if found not in seen:
                seen[found] = found.read_text(encoding="utf-8", errors="replace")
                waiting.append(found)
    for place in sorted(seen):
        yield os.path.relpath(place, root), _hash(_normal(seen[place]).encode())


def _is_installed(root: Path) -> bool:
    libraries = [Path(sysconfig.get_path(kind)) for kind in ("stdlib", "purelib", "platlib")]
    return any(root == library or library in root.parents for library in libraries)


def _imported(path: Path, text: str, root: Path) -> Iterator[Path]:
    """Files below the root that a file imports, wherever in it."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(root, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(path.parents):
            start = path.parents[node.level - 1] if node.level else root
            own = node.module or ""
            names = [(start, own), *((start, f"{own}.{alias.name}".strip(".")) for alias in node.names)]
        else:
            continue
        for start, name in names:
            base = start.joinpath(*name.split(".")) if name else start
            yield from (file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file())


@functools.lru_cache(maxsize=1024)
def _normal(text: str) -> str:
    """Text of a program without comments and formatting."""
    try:
        return ast.unparse(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return text


def _code(code: CodeType) -> tuple[bytes, list[object], tuple[str, ...]]:
    constants: list[object] = [_code(value) if isinstance(value, CodeType) else repr(value) for value in code.co_consts]
    return code.co_code, constants, code.co_names


# ---- data ------------------------------------------------------------------------------------------------


def _data(function: object, seen: set[int], home: str = "") -> Iterator[tuple[str, str]]:
    """Values that a function refers to, and, recursively, those of the functions of its project that it refers to."""
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    home = home or function.__module__
    closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    filled = {name: cell.cell_contents for name, cell in closure.items() if _is_filled(cell)}
    defaults = dict(enumerate(function.__defaults__ or ())) | (function.__kwdefaults__ or {})
    yield from _values("closure", filled)
    yield from _values(f"default of {function.__name__}", defaults)
    names, place = _names(function.__code__), "" if function.__module__ == home else f"{function.__module__}."
    named = {f"{place}{name}": function.__globals__[name] for name in names if name in function.__globals__}
    for module in [value for value in named.values() if isinstance(value, ModuleType) and _is_own(value.__name__)]:
        named |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    yield from _values("module value", named)
    for value in (*named.values(), *filled.values()):
        if getattr(value, "__module__", None) == function.__module__ or _is_own(getattr(value, "__module__", "")):
            yield from _data(value, seen, home)


def _is_own(module: object) -> bool:
    """Whether a module is a file of the user: not of a library, and not of whence."""
    if not isinstance(module, str):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and module.split(".")[0] != "whence" and not _is_installed(Path(file).absolute().parent)


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(code: CodeType) -> list[str]:
    inner = [name for value in code.co_consts if isinstance(value, CodeType) for name in _names(value)]
    return [*code.co_names, *inner]


def _values(kind: str, values: Mapping[str, object] | Mapping[int | str, object]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if (found := digest(value)) is not None:
            yield f"{kind} {name}", found


def digest(value: object) -> str | None:
    """Short text of a value: itself if it is short, else a hash; None for code.

    >>> digest(0.5), digest(np.zeros(3)) == digest(np.zeros(3)), digest(np.zeros(3)) == digest(np.ones(3)), digest(len)
    ('0.5', True, False, None)
    """
    if isinstance(value, (ModuleType, type, *_GENERATORS)) or (callable(value) and not isinstance(value, _Model)):
        return None
    if isinstance(value, _PLAIN):
        text = str(value) if isinstance(value, Path) else repr(value)
        return text if len(text) <= _SHORT else _hash(text.encode())
    try:
        return _hash(*_pieces(value))
    except Exception:  # a value that cannot be inspected is identified by its type
        return type(value).__qualname__


def _pieces(value: object) -> Iterator[bytes]:
    """Bytes that identify a value."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield f"{key!r}:".encode()
            yield from _pieces(value[key])
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} of {len(value)}".encode()
        for item in value:
            yield from _pieces(item)
    elif isinstance(value, _Model):
        yield from _pieces(value.state_dict())
    elif "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
        plain = value.detach().cpu().contiguous()
        yield f"{plain.dtype} {tuple(plain.shape)}".encode()
        yield plain.flatten().view(sys.modules["torch"].uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray) and value.dtype != object:
        yield f"{value.dtype} {value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, _PLAIN):
        yield repr(value).encode()
    else:
        import joblib

        yield str(joblib.hash(value)).encode()


def _hash(*pieces: bytes) -> str:
    found = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        found.update(piece)
        found.update(b"\0")
    return found.hexdigest()
