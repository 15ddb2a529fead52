#!/usr/bin/env python3
"""How far plans for large pipelines in little memory are from their lower bounds.

    bench/plan_gaps.py [--build DIR] [--effort S] [--threads N] [--jobs N] [--ranks P,...]
        [--stages V,...] [--memory PERCENT,...] [--heads X,...] [--all] [--json FILE]

GPT-like profiles: equal stages, the last of which takes 1.3, 1.6 or 2 times as long (a heavy
head); p = 8, 16, 32 ranks, v = 1, 2, 4 stages on each (a loop), m = p, 2p, 4p microbatches. The
memory is a share of what 1F1B takes, p microbatches through all stages of a rank: 100, 75 and
50 %; and 34 % for a V of two stages per rank. Of the heads, each case has one, in turn; --all: all
three.

Prints every case, then the mean and the largest gap in % for each memory and v. The effort is an
amount of work (docs/planner.md), so the figures do not depend on how busy the machine is.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
LAYER = {"f": 4, "i": 4.2, "w": 3.5}
HOP = 0.2
V_PERCENT = 34


def numbers(text):
    return [float(word) for word in text.split(",")]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    parser.add_argument("--effort", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--ranks", type=numbers, default=[8, 16, 32])
    parser.add_argument("--stages", type=numbers, default=[1, 2, 4])
    parser.add_argument("--memory", type=numbers, default=[100, 75, 50, V_PERCENT])
    parser.add_argument("--heads", type=numbers, default=[1.3, 1.6, 2])
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json")
    return parser.parse_args()


def list_cases(options):
    cases = []
    for percent in options.memory:
        for v in [2] if percent == V_PERCENT else options.stages:
            for row, p in enumerate(options.ranks):
                for column, rounds in enumerate((1, 2, 4)):
                    turn = (row + column) % len(options.heads)
                    for head in options.heads if options.all else options.heads[turn:turn + 1]:
                        cases.append({"memory": percent, "v": int(v), "p": int(p),
                                      "m": int(p * rounds), "head": head})
    return cases


def write_costs(folder, case):
    stages = [dict(LAYER, activation=1, activation_after_i=0.6)
              for _ in range(case["p"] * case["v"])]
    stages[-1].update({kind: time * case["head"] for kind, time in LAYER.items()})
    path = os.path.join(folder, "_".join(map(str, case.values())) + ".json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"schema": "weft-costs/1", "stages": stages, "hop": {"latency": HOP}}, file)
    return path


def plan(options, folder, case):
    limit = case["p"] * case["v"] * case["memory"] / 100
    words = [os.path.join(options.build, "weft"), "plan", "-p", case["p"], "-m", case["m"],
             "-v", case["v"], "--placement", "v" if case["memory"] == V_PERCENT else "loop",
             "--costs", write_costs(folder, case), "--memory", limit,
             "--effort", options.effort, "--threads", options.threads, "--json", "-o",
             os.path.join(folder, "plan.csv" + "_".join(map(str, case.values())))]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout)
    return dict(case, value=answer["makespan"], bound=answer["bound"],
                gap=100 * answer["gap"], optimal=answer["optimal"])


def print_summary(rows):
    print("\nmemory   v  cases  optimal  mean gap  largest")
    for key in dict.fromkeys((row["memory"], row["v"]) for row in rows):
        own = [row for row in rows if (row["memory"], row["v"]) == key]
        gaps = [row["gap"] for row in own]
        print(f"{key[0]:5g} %  {key[1]:2}  {len(own):5}  {sum(row['optimal'] for row in own):7}"
              f"  {sum(gaps) / len(gaps):6.2f} %  {max(gaps):5.2f} %")


def main():
    options = read_options()
    rows = []
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        print("memory   v   p    m  head     makespan        bound    gap", flush=True)
        for row in pool.map(lambda case: plan(options, folder, case), list_cases(options)):
            rows.append(row)
            print(f"{row['memory']:5g} % {row['v']:2} {row['p']:3} {row['m']:4}  {row['head']:4g}"
                  f" {row['value']:12.2f} {row['bound']:12.2f} {row['gap']:5.2f} %", flush=True)
    print_summary(rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
