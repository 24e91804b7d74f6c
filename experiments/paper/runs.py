"""True runs made on another machine, and how they become recorded sets.

    python experiments/paper/runs.py DIR      record every table that the scripts of this folder left in DIR

Each script writes a table (NAME.npz) and what it is (NAME.json: title, command, seconds, machine, date) when it is
made, and does not make it twice.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import whence
from whence.datasets.recorded import record

PLACES = ("--out", "--seconds")  # arguments that say where and how long, not what


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for path in sorted(parser.parse_args().folder.glob("*.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        if "title" in about:
            runs = whence.read_outcomes(path.with_suffix(".npz"))
            record(path.stem, runs, about["title"], about["command"], machine=about["machine"], date=about["date"])
            print(path.stem, runs)


if __name__ == "__main__":
    main()
