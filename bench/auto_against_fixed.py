#!/usr/bin/env python3
"""Training with --schedule auto beside fixed schedules, on a model that is cut unequally.

    bench/auto_against_fixed.py [--build DIR] [--splits A,B;C,D] [--microbatches M] [--steps N]
        [--rounds N] [--fixed NAME,NAME] [--partition] [--json]

`weft train` on Weft's own sources, as many ranks as the split has numbers, each a thread: for
each split N rounds of every fixed schedule and of auto, one after the other. Of each run the
median step counts, of auto those before the change (`before`) and those after it (`after`), in
tokens/s of whole steps, with norms and updates; of the rounds the median. `change` compares
`after` with the first of the fixed schedules, which auto begins with, round by round, and is
the median of that; `promised` and `measured` are medians of what auto says of the pipeline's
part of a step, and `kept` how often the new schedule stayed. Status 1 when parameters differ.

Auto keeps the split, unless --partition is given: then it plans that too, from a trial before the
first step. `promised` is then what the new split promises, and `chosen` the last round's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = ["--layers", "8", "--dim", "128", "--heads", "4", "--context", "64", "--batch", "16"]
WARM_UP = 2  # steps after a beginning or a change


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    parser.add_argument("--splits", default="5,3;3,5")
    parser.add_argument("--microbatches", default="4")
    parser.add_argument("--steps", default="40")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--fixed", default="1F1B,ZBH1")
    parser.add_argument("--partition", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def train(options, split, schedule):
    """The lines of a run: steps, and the last one."""
    words = [os.path.join(options.build, "weft"), "train", *MODEL, "--split", split, "-p",
             str(len(split.split(","))), "-m", options.microbatches, "--steps", options.steps,
             "--schedule", schedule, "--eval-every", "1000000", "--json"]
    if schedule == "auto" and not options.partition:
        words.append("--keep-partition")
    done = subprocess.run(words, cwd=os.path.join(HERE, ".."), capture_output=True, text=True,
                          check=False, timeout=3600)
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
    later = steps[changed:] if last["schedule"] != first else steps
    return {"before": median(steps[:changed]), "after": median(later),
            "kept": last["schedule"] != first, "chosen": ",".join(map(str, last["split"])),
            "promised": (last["split_gain"] if options.partition else last["promised_gain"]) or 0,
            "measured": last["gain"] or 0, "hash": last["parameters_hash"]}


def measure(options, split):
    names = options.fixed.split(",")
    rounds = []
    for _ in range(options.rounds):
        fixed = {name: train(options, split, name) for name in names}
        auto = measure_auto(options, split)
        hashes = {last["parameters_hash"] for _, last in fixed.values()} | {auto["hash"]}
        rates = {name: median(steps) for name, (steps, _) in fixed.items()}
        rounds.append({"fixed": rates, "auto": auto, "same_bits": len(hashes) == 1,
                       "change": auto["after"] / rates[names[0]] - 1})
    return {"split": split, "rounds": rounds, "same_bits": all(r["same_bits"] for r in rounds)}


def middle(row, find):
    return statistics.median(find(one) for one in row["rounds"])


def show(row, names):
    fixed = "".join(f"{middle(row, lambda r, n=name: r['fixed'][n]):10.0f}" for name in names)
    kept = sum(one["auto"]["kept"] for one in row["rounds"])
    print(f"{row['split']:12}{fixed}{middle(row, lambda r: r['auto']['before']):10.0f}"
          f"{middle(row, lambda r: r['auto']['after']):10.0f}"
          f"{100 * middle(row, lambda r: r['change']):+8.1f} %"
          f"{100 * middle(row, lambda r: r['auto']['promised']):9.1f} %"
          f"{100 * middle(row, lambda r: r['auto']['measured']):9.1f} %"
          f"{kept:5} of {len(row['rounds'])}  {row['rounds'][-1]['auto']['chosen']}"
          f"{'' if row['same_bits'] else '  OTHER PARAMETERS'}", flush=True)


def main():
    options = read_options()
    rows = []
    if not options.json:
        fixed = "".join(f"{name:>10}" for name in options.fixed.split(","))
        print(f"tokens/s    {fixed}{'before':>10}{'after':>10}{'change':>10}{'promised':>11}"
              f"{'measured':>11}{'kept':>9}  chosen")
    for split in options.splits.split(";"):
        rows.append(measure(options, split))
        if not options.json:
            show(rows[-1], options.fixed.split(","))
    if options.json:
        json.dump(rows, sys.stdout)
        print()
    return 0 if all(row["same_bits"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
