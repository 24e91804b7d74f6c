r"""Files that whence writes: whole or not at all, with a checksum, and never through a symbolic link.

Every writer of the library goes through `whole_file`, every document and line that is read back carries a checksum of
the rest (`as_document`, `as_line`), and a folder that belongs to something else is refused by `refuse_other`, so that
all of them do the same and say it in the same words.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from whence.errors import InputError, some_of

PARTIAL = ".partial-"
_OPENING = b'{"crc":"%08x",'
_LENGTH = len(_OPENING % 0)
_UNFOLLOWED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


# ---- whole files -----------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """File to write to, which takes its place under ``path`` once it is complete and on disk.

    Whatever ends the writing leaves the file that was there before. A link under ``path`` is replaced, not followed.
    """
    path = Path(path)
    partial = path.with_name(f"{PARTIAL}{secrets.token_hex(6)}")
    try:
        _refuse_special(path)
        with open(partial, "x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({why(error)}).") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _refuse_special(path: Path) -> None:
    """Refuse what is no file, such as /dev/null or /dev/stdout: root would replace it for the whole machine."""
    handle = path.is_symlink() and os.readlink(path).startswith("/proc/")
    if handle or (path.exists() and not path.is_file()):
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise InputError(f"{path}: this is {what}, and not a file. Write to a file.")


def open_to_append(path: Path) -> int:
    """Handle of a file that is read and added to; one that is a link is refused."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _UNFOLLOWED, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"'{path.name}' is a symbolic link, which is not followed. Delete it.") from error
        raise


def sync_folder(folder: Path) -> None:
    """Make the names of new files durable, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def why(error: OSError) -> str:
    """Reason of an operating system error, in words.

    >>> why(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full'
    """
    return "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)


# ---- checksums -------------------------------------------------------------------------------------------


def as_line(record: Mapping[str, Any]) -> bytes:
    r"""JSON in one line that begins with a checksum of the rest of it.

    >>> as_line({"row": 3})
    b'{"crc":"1f13039d","row":3}\n'
    """
    body = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    return _OPENING % zlib.crc32(body) + body[1:] + b"\n"


def from_line(line: bytes) -> dict[str, Any] | None:
    """Record of a line, or None where the line is not what was written.

    >>> from_line(b'{"crc":"1f13039d","row":3}'), from_line(b'{"crc":"1f13039d","row":4}')
    ({'row': 3}, None)
    """
    if line[:_LENGTH] != _OPENING % zlib.crc32(b"{" + line[_LENGTH:]):
        return None
    try:
        found: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):  # somebody else wrote the checksum too
        return None
    del found["crc"]
    return found


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object that a person can read and `read_document` checks."""
    body = json.dumps(document, indent=1, allow_nan=False).encode()
    with whole_file(path) as file:
        file.write(_OPENING % zlib.crc32(body) + body[1:] + b"\n")


def read_document(path: Path) -> dict[str, Any]:
    """Object that `write_document` wrote; one that was changed since, by whatever, is refused."""
    found = from_line(path.read_bytes().rstrip(b"\n"))
    if found is None:
        raise InputError(
            f"{path} is damaged: its checksum does not match its contents, or another version wrote it. Restore it, or "
            "use another folder."
        )
    return found


# ---- what a folder is of ---------------------------------------------------------------------------------


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """How two descriptions differ, in words; fingerprints and other long values are not spelled out.

    >>> differences({"seed": 0, "rank": 8, "model": "f" * 32}, {"seed": 1, "rank": 8, "model": "a" * 32})
    ['seed (was 0, is 1)', 'model (changed)']
    """
    return [f"{name} ({_change(name, was, now)})" for name in {**was, **now} if was.get(name) != now.get(name)]


def _change(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if name not in was or name not in now:
        return "no longer there" if name in was else "new"
    shown = [str(side[name]) for side in (was, now)]
    digests = all(len(text) >= 16 and set(text) <= set("0123456789abcdef") for text in shown)
    return "changed" if digests or max(map(len, shown)) > 80 else f"was {shown[0]}, is {shown[1]}"


def refuse_other(subject: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise if a folder was made with other settings than those asked for now; the message names what differs."""
    if found := differences(was, now):
        raise InputError(f"{subject} of something else: {some_of(found, 4)}. Use another folder, or delete this one.")


def refuse_occupied(folder: Path, is_ours: Callable[[str], bool], what: str) -> None:
    """Raise where a folder holds anything that is not ours; hidden files do not count."""
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    if others := [name for name in names if not is_ours(name)]:
        raise InputError(
            f"{folder}: this folder holds other things ('{others[0]}') and no {what}. Use a new or an empty folder."
        )
