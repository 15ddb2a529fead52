#!/usr/bin/env python3
"""How far plans for the planning cases are from their lower bounds.

    bench/planning_cases.py [--build DIR] [--effort S] [--threads N] [--jobs N] [--json FILE]

The cases are tests/planner/cases.json: 150 random problems with one stage per rank, whose largest
time of a rank is minimised. Prints every case and the mean gap. The effort is an amount of work
(docs/planner.md), so the figures do not depend on how busy the machine is.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
FIELDS = ("f", "i", "w", "activation", "activation_after_i")


def plan(options, folder, case):
    stages = case["stages"] if len(case["stages"]) > 1 else case["stages"] * case["p"]
    costs = {"schema": "weft-costs/1", "hop": {"latency": case["hop"]},
             "stages": [dict(zip(FIELDS, stage)) for stage in stages]}
    path = os.path.join(folder, f"{case['id']}.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(costs, file)
    words = [os.path.join(options.build, "weft"), "plan", "-p", case["p"], "-m", case["m"],
             "-v", 1, "--placement", "loop", "--costs", path, "--memory", case["memory"],
             "--objective", "span", "--effort", options.effort, "--threads", options.threads,
             "--json", "-o", path + ".csv"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout)
    return {"id": case["id"], "value": answer["span"], "bound": answer["bound"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--effort", type=float, default=0.5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json")
    options = parser.parse_args()
    with open(os.path.join(ROOT, "tests", "planner", "cases.json"), encoding="utf-8") as file:
        cases = json.load(file)
    rows = []
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        print("case         span        bound    gap", flush=True)
        for row in pool.map(lambda case: plan(options, folder, case), cases):
            rows.append(row)
            print(f"{row['id']:4} {row['value']:12.2f} {row['bound']:12.2f}"
                  f" {100 * (row['value'] / row['bound'] - 1):5.2f} %", flush=True)
    gaps = [100 * (row["value"] / row["bound"] - 1) for row in rows]
    print(f"{len(gaps)} cases: mean gap {sum(gaps) / len(gaps):.3f} %, largest {max(gaps):.2f} %")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
