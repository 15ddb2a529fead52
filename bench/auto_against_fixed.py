#!/usr/bin/env python3
"""Training with --schedule auto beside fixed schedules, on a model that is cut unequally.

    bench/auto_against_fixed.py [--build DIR] [--splits A,B;C,D] [--microbatches M] [--steps N]
        [--rounds N] [--fixed NAME,NAME] [--json]

`weft train` on Weft's own sources, as many ranks as the split has numbers, each a thread: for
each split N rounds of every fixed schedule and of auto, one after the other. Of each run the
median step counts, of auto before the change (`before`) and after it (`after`); of the rounds
the fastest. `promised` and `measured` are what auto says of the pipeline's part of a step;
tokens/s are those of whole steps, with norms and updates.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = ["--layers", "8", "--dim", "256", "--heads", "8", "--context", "128", "--batch", "16"]
WARM_UP = 2  # steps after a beginning or a change


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    parser.add_argument("--splits", default="4,4;5,3;6,2;3,5;2,6")
    parser.add_argument("--microbatches", default="4")
    parser.add_argument("--steps", default="20")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--fixed", default="1F1B,ZBH1")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def train(options, split, schedule):
    """The lines of a run: steps, and the last one."""
    words = [os.path.join(options.build, "weft"), "train", *MODEL, "--split", split, "-p",
             str(len(split.split(","))), "-m", options.microbatches, "--steps", options.steps,
             "--schedule", schedule, "--eval-every", "1000000", "--json"]
    done = subprocess.run(words, cwd=os.path.join(HERE, ".."), capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[:-1], lines[-1]


def median(steps):
    return statistics.median(step["tokens_per_s"] for step in steps[WARM_UP:])


def measure_auto(options, split):
    steps, last = train(options, split, "auto")
    first = steps[0]["schedule"]
    changed = next((k for k, step in enumerate(steps) if step["schedule"] != first), len(steps))
    later = steps[changed:] if changed < len(steps) else steps
    return {"before": median(steps[:changed]), "after": median(later), "from": first,
            "schedule": last["schedule"], "promised": last["promised_gain"] or 0,
            "measured": last["gain"] or 0, "hash": last["parameters_hash"]}


def measure(options, split):
    row = {"split": split, "fixed": {}}
    hashes = set()
    for _ in range(options.rounds):
        for name in options.fixed.split(","):
            steps, last = train(options, split, name)
            row["fixed"][name] = max(median(steps), row["fixed"].get(name, 0))
            hashes.add(last["parameters_hash"])
        auto = measure_auto(options, split)
        hashes.add(auto.pop("hash"))
        if "auto" not in row or auto["after"] > row["auto"]["after"]:
            row["auto"] = auto
    row["same_bits"] = len(hashes) == 1
    return row


def show(row):
    auto = row["auto"]
    fixed = "".join(f"{rate:10.0f}" for rate in row["fixed"].values())
    print(f"{row['split']:12}{fixed}{auto['before']:10.0f}{auto['after']:10.0f}"
          f"{100 * (auto['after'] / auto['before'] - 1):+8.1f} %{100 * auto['promised']:9.1f} %"
          f"{100 * auto['measured']:9.1f} %  {auto['schedule']}"
          f"{'' if row['same_bits'] else '  OTHER PARAMETERS'}", flush=True)


def main():
    options = read_options()
    rows = []
    if not options.json:
        fixed = "".join(f"{name:>10}" for name in options.fixed.split(","))
        print(f"tokens/s    {fixed}{'before':>10}{'after':>10}{'change':>10}{'promised':>11}"
              f"{'measured':>11}  schedule")
    for split in options.splits.split(";"):
        rows.append(measure(options, split))
        if not options.json:
            show(rows[-1])
    if options.json:
        json.dump(rows, sys.stdout)
        print()
    return 0 if all(row["same_bits"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
