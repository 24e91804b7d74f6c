"""True runs made on another machine, and how they become recorded sets.

    python experiments/paper/runs.py DIR      record every table that the scripts of this folder left in DIR

Each script writes a table (NAME.npz) and what it is (NAME.json: title, command, seconds, machine, date) when it is
made, and does not make it twice. Runs of NAME_more are added after those of the recorded set NAME.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import whence
from whence.datasets import recorded

PLACES = ("--out", "--seconds", "--teaching")  # arguments that say where and how long, not what


def machine() -> str:
    """The graphics card, or the kind of processor."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()


def command() -> str:
    """The command that is running, without the places of this machine."""
    arguments = iter(sys.argv[1:])
    kept = [word for word in arguments if word not in PLACES or not next(arguments)]
    names = [Path(word).name if word.startswith("/") else word for word in kept]
    return " ".join(["python", f"experiments/paper/{Path(sys.argv[0]).name}", *names])


def keep(out: Path, name: str, runs: whence.Outcomes, title: str, seconds: float) -> None:
    """Write a table and what it is."""
    out.mkdir(parents=True, exist_ok=True)
    runs.write(out / f"{name}.npz")
    about = {"title": title, "command": command(), "seconds": round(seconds, 1), "machine": machine()}
    about["date"] = time.strftime("%Y-%m-%d")
    (out / f"{name}.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    print(f"{name}: {runs.n_runs} runs in {seconds:.0f} s", flush=True)


def added(name: str, runs: whence.Outcomes, about: dict[str, str]) -> tuple[whence.Outcomes, dict[str, str]]:
    """The runs of a recorded set with more after them, and what they are together."""
    known = recorded.index()[name]
    if about["command"] in known.command:
        raise SystemExit(f"{name} has the runs of {about['command']} already.")
    before = recorded.load(name)
    together = replace(
        runs,
        subsets=np.concatenate([before.subsets, runs.subsets]),
        values=np.concatenate([before.values, runs.values]),
    )
    both = {"title": f"{known.title} {about['title']}", "command": f"{known.command}; {about['command']}"}
    return together, {**about, **both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for path in sorted(parser.parse_args().folder.glob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        if "title" in about:
            runs, name = whence.read_outcomes(path.with_suffix(".npz")), path.stem.removesuffix("_more")
            if name != path.stem:
                runs, about = added(name, runs, about)
            keys = ("title", "command", "machine", "date")
            recorded.record(name, runs, **{key: about[key] for key in keys})
            print(name, runs)


if __name__ == "__main__":
    main()
