"""Models in files: everything a fitted model is made of, without pickle, so that it predicts the same to the last bit.

A file is a zip archive of plain arrays (npz) and one JSON text that says how objects are made of them. Only classes of
this package are written or made, and making them runs nothing: attributes are put in their places. A checksum covers
all of it. What is inside is of one version of whence; another one refuses it and asks for the runs.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import InputError
from whence.outcomes.writing import whole_file

if TYPE_CHECKING:
    from whence.surrogates.model import Model

FORMAT = "whence model 1"
TREE = "model.json"
_PLAIN = (bool, int, float, str, type(None))


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a fitted model to a file that `load` reads; the file appears whole or not at all.

    Parameters
    ----------
    model : Model
        With surrogates of whence; those of other libraries cannot be saved without pickle.
    path : path
        Ending in .whence, by custom.
    """
    import whence

    packer = _Packer()
    tree = {"format": FORMAT, "version": whence.__version__, "model": packer.packed(model)}
    text = json.dumps(tree, allow_nan=True)
    with whole_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in packer.arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
        archive.writestr(TREE, f"{zlib.crc32(text.encode()):08x}{text}")


def load(path: str | os.PathLike[str]) -> Model:
    """Return the model that a file holds.

    Parameters
    ----------
    path : path
        What `Model.save` or ``whence fit --save`` wrote.

    Examples
    --------
    >>> import tempfile, whence
    >>> S = whence.Exhaustive().draw(4)
    >>> model = whence.fit(whence.Outcomes(S, S[:, 0] - S[:, 1] * S[:, 2]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model.whence")
    ...     again = whence.load(f"{folder}/model.whence")
    >>> bool((again.predict(S) == model.predict(S)).all())
    True
    """
    import whence

    path = Path(path)
    try:
        if not zipfile.is_zipfile(path):
            if not path.exists():
                raise InputError(f"{path}: there is no such file.")
            raise InputError(f"{path}: this is not a model that whence saved, or it is cut short.")
        with zipfile.ZipFile(path) as archive:
            written = archive.read(TREE).decode()
            if f"{zlib.crc32(written[8:].encode()):08x}" != written[:8]:
                raise ValueError("its checksum does not match its contents")
            tree = json.loads(written[8:])
            if (tree["format"], tree["version"]) != (FORMAT, whence.__version__):
                raise InputError(
                    f"{path}: this model was saved by whence {tree['version']}, and this is {whence.__version__}. "
                    "Fit the runs again."
                )
            arrays = {}
            for name in archive.namelist():
                if name != TREE:
                    with archive.open(name) as entry:
                        arrays[name.removesuffix(".npy")] = np.lib.format.read_array(entry, allow_pickle=False)
        found = _Unpacker(arrays).unpacked(tree["model"])
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except Exception as error:  # a damaged archive makes zipfile and numpy raise almost anything
        raise InputError(f"{path}: this model is damaged ({type(error).__name__}: {str(error)[:120]}).") from error
    if type(found).__name__ != "Model":
        raise InputError(f"{path}: this file holds a {type(found).__name__} and not a model.")
    return found  # type: ignore[no-any-return]


class _Packer:
    """Objects as JSON, in which arrays are named; an object that comes twice is written once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # so that no id is used again

    def packed(self, value: Any) -> Any:
        if isinstance(value, _PLAIN):
            return value
        if isinstance(value, np.generic):
            return {"scalar": self.packed(np.asarray(value))}
        if id(value) in self.seen:
            return {"same": self.seen[id(value)]}
        self.seen[id(value)] = len(self.kept)
        self.kept.append(value)
        if isinstance(value, np.ndarray):
            return {"array": self._named(value)}
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        if isinstance(value, dict | MappingProxyType):
            return {"dict": [[self.packed(key), self.packed(each)] for key, each in value.items()]}
        for kind in (list, tuple, set, frozenset):
            if type(value) is kind:
                return {kind.__name__: [self.packed(each) for each in value]}
        return self._of_ours(value)

    def _named(self, array: np.ndarray[Any, Any]) -> str:
        if array.dtype.hasobject:
            raise InputError("A model with arrays of Python objects cannot be saved.")
        name = f"a{len(self.arrays)}"
        self.arrays[name] = np.asarray(array)
        return name

    def _of_ours(self, value: Any) -> Any:
        cls = value if isinstance(value, type) else type(value)
        if cls is value or not cls.__module__.startswith("whence.") or cls.__module__.startswith("whence.cli"):
            raise InputError(
                f"Only classes of whence can be saved, and this model has {cls.__name__} of {cls.__module__}. "
                "Save the runs instead, and fit them again."
            )
        entry = {"class": f"{cls.__module__}:{cls.__qualname__}"}
        if isinstance(value, tuple):  # a named one
            return entry | {"items": [self.packed(each) for each in value]}
        return entry | {"state": {name: self.packed(each) for name, each in vars(value).items()}}


class _Unpacker:
    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        self.arrays = arrays
        self.made: list[Any] = []

    def unpacked(self, entry: Any) -> Any:
        if isinstance(entry, _PLAIN):
            return entry
        (kind, held), *more = entry.items()
        if kind == "same":
            return self.made[held]
        if kind == "scalar":
            return self.unpacked(held)[()]
        place = len(self.made)
        self.made.append(None)
        if kind == "class":
            return self._made(place, held, dict(more))
        self.made[place] = self._plain(kind, held)
        return self.made[place]

    def _plain(self, kind: str, held: Any) -> Any:
        if kind == "array":
            array = self.arrays[held]
            array.setflags(write=False)
            return array
        if kind == "bytes":
            return bytes.fromhex(held)
        if kind == "dict":
            return {self.unpacked(key): self.unpacked(each) for key, each in held}
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(self.unpacked, held))

    def _made(self, place: int, name: str, more: dict[str, Any]) -> Any:
        module, _, qualified = name.partition(":")
        if not module.startswith("whence."):
            raise ValueError(f"{name} is not of whence")
        cls: Any = import_module(module)
        for part in qualified.split("."):
            cls = getattr(cls, part)
        if not isinstance(cls, type):
            raise ValueError(f"{name} is not a class")
        if "items" in more:
            self.made[place] = tuple.__new__(cls, [self.unpacked(each) for each in more["items"]])
            return self.made[place]
        made: Any = object.__new__(cls)
        self.made[place] = made
        vars(made).update({attribute: self.unpacked(each) for attribute, each in more["state"].items()})
        return made
