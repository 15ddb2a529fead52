#!/usr/bin/env python3
"""Planned schedules on the real runtime, beside every named one: promise and measurement.

    bench/planned_against_named.py [--build DIR] [--transport threads|loopback] [--stage sleep|spin]
        [--scale X] [--rounds N] [--profiles FILE] [--only N] [--json] [--check]

For each of the unequal profiles (bench/unequal_profiles.json) `weft plan` makes a table, and
`weft run` executes it and every named schedule that fits the shape, one after the other, in
N rounds of three steps of which the first is a warm-up. A rank is a thread whose stages take
their time, X times the profile's numbers in ms: asleep, so that two cores are enough for all
ranks. Of each table the step counts that was disturbed least.

`promise` is what the plan says, `measured` the step of the planned table, `ratio` the one over
the other; `named` is the fastest named schedule as measured, `gain` how much less time the
planned one takes. --check: status 1 unless each plan is within 2 % of its promise and faster
than every named schedule.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOLERANCE = 0.02


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    parser.add_argument("--transport", choices=["threads", "loopback"], default="threads")
    parser.add_argument("--stage", choices=["sleep", "spin"], default="sleep")
    parser.add_argument("--scale", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profiles", default=os.path.join(HERE, "unequal_profiles.json"))
    parser.add_argument("--only", type=int, help="the first N profiles")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    return parser.parse_args()


class Weft:
    """The command, in a folder of its own."""

    def __init__(self, build, folder):
        self.program = os.path.abspath(os.path.join(build, "weft"))
        self.folder = folder

    def __call__(self, *words):
        done = subprocess.run([self.program, *map(str, words)], cwd=self.folder,
                              capture_output=True, text=True, check=False, timeout=3600)
        if done.returncode != 0:
            sys.exit(f"weft {' '.join(map(str, words))}: status {done.returncode}\n{done.stderr}")
        return done.stdout


def write_costs(folder, profile, scale):
    stages = [dict(zip("fiw", (scale * time for time in stage))) for stage in profile["stages"]]
    with open(os.path.join(folder, "costs.json"), "w", encoding="ascii") as file:
        json.dump({"schema": "weft-costs/1", "unit": "ms", "stages": stages}, file)


def make_tables(weft, profile):
    """Names, and a file for each: the plan first."""
    shape = ["-p", len(profile["stages"]), "-m", profile["microbatches"], "--costs", "costs.json"]
    plan = json.loads(weft("plan", *shape, "--json", "-o", "planned.csv"))
    ranking = json.loads(weft("compare", *shape, "--json"))
    for row in ranking["schedules"]:
        weft("gen", row["name"], *shape[:4], "-v", row["v"], "-o", row["name"] + ".csv")
    return plan, [row["name"] for row in ranking["schedules"]]


def run(weft, table, options):
    words = ["run", table, "--costs", "costs.json", "--transport", options.transport, "--json"]
    if options.transport == "threads":
        words += ["--stage", options.stage]
    return min(json.loads(weft(*words))["makespans"])


def measure(weft, profile, options):
    write_costs(weft.folder, profile, options.scale)
    plan, names = make_tables(weft, profile)
    best = {}
    for _ in range(options.rounds):
        for name in ["planned", *names]:
            found = run(weft, name + ".csv", options)
            best[name] = min(found, best.get(name, found))
    planned = best.pop("planned")
    named = min(best, key=best.get)
    return {"profile": profile["name"], "ranks": len(profile["stages"]),
            "microbatches": profile["microbatches"], "bound": plan["bound"],
            "promise": plan["makespan"], "measured": planned,
            "ratio": planned / plan["makespan"], "named": named, "named_measured": best[named],
            "gain": 1 - planned / best[named], "all_named": best}


def show(row):
    print(f"{row['profile']:28}{row['ranks']:3}{row['microbatches']:4}{row['bound']:10.1f}"
          f"{row['promise']:10.1f}{row['measured']:10.1f}{row['ratio']:8.3f}"
          f"{row['named_measured']:10.1f} {row['named']:22}{100 * row['gain']:6.1f} %", flush=True)


def is_good(row):
    return row["ratio"] <= 1 + TOLERANCE and row["gain"] > 0


def main():
    options = read_options()
    with open(options.profiles, encoding="ascii") as file:
        profiles = json.load(file)["profiles"][:options.only]
    rows = []
    if not options.json:
        print(f"{'profile':28}{'p':>3}{'m':>4}{'bound':>10}{'promise':>10}{'measured':>10}"
              f"{'ratio':>8}{'named':>10} {'fastest of them':22}{'gain':>6}")
    with tempfile.TemporaryDirectory() as folder:
        weft = Weft(options.build, folder)
        for profile in profiles:
            rows.append(measure(weft, profile, options))
            if not options.json:
                show(rows[-1])
    good = sum(map(is_good, rows))
    if options.json:
        json.dump({"rows": rows, "good": good}, sys.stdout)
        print()
    else:
        print(f"{good} of {len(rows)}: within {100 * TOLERANCE:g} % of the promise, "
              "and faster than every named schedule")
    return 1 if options.check and good < len(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
