#!/usr/bin/env python3
"""How far plans for graphs of stages are from their lower bounds.

    bench/graph_gaps.py [--build DIR] [--effort S] [--threads N] [--jobs N] [--memory PERCENT,...]
        [--cases NAME,...] [--json FILE]

The graphs: a U-Net of 16 stages with a skip connection from every down stage to its up stage, on 8
ranks (each has both ends of its skip connections) and 16 microbatches; the same with one stage per
rank; two encoders of three stages and a decoder of two, on 8 ranks and 32 microbatches; the same
with twice the stages, which the planner places; 32 stages with skip connections over four of them,
on 32 ranks and 64 microbatches. A stage takes F 4, I 4.2, W 3.5, the last one 1.3 times as long.
The memory is a share of what 1F1B takes on the rank with the most. The effort is an amount of work
(docs/planner.md), so the figures do not depend on how busy the machine is.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
STAGE = {"f": 4, "i": 4.2, "w": 3.5, "activation": 1, "activation_after_i": 0.6}


def chain(first, count, to=None):
    """Edges along `count` stages, and to a last one."""
    stages = list(range(first, first + count)) + ([] if to is None else [to])
    return list(zip(stages, stages[1:]))


def u_net(depth):
    return 2 * depth, chain(0, 2 * depth) + [(k, 2 * depth - 1 - k) for k in range(depth - 1)]


def encoders(length, decoder):
    join = 2 * length
    return join + decoder, (chain(0, length, join) + chain(length, length, join)
                            + chain(join, decoder))


def skips(count, over):
    return count, chain(0, count) + [(k, k + over) for k in range(0, count - over, over // 2)]


CASES = {  # graph, ranks, microbatches, ranks of stages: None: the planner chooses
    "u-net": (u_net(8), 8, 16, [*range(8), *range(7, -1, -1)]),
    "u-net 1": (u_net(4), 8, 16, list(range(8))),
    "encoders": (encoders(3, 2), 8, 32, None),
    "encoders 2": (encoders(6, 4), 8, 32, None),
    "skips": (skips(32, 4), 32, 64, None),
}


def one_f_one_b(count, edges, ranks, rank_of):
    """Activations of 1F1B on the rank with the most."""
    height = [0] * count
    for a, b in sorted(edges, reverse=True):
        height[a] = max(height[a], height[b] + 1)
    held = [0] * ranks
    for stage in range(count):
        rank = rank_of[stage] if rank_of else stage * ranks // count
        held[rank] += height[stage] + 1
    return max(held)


def plan(options, folder, case):
    name, percent = case
    (count, edges), ranks, microbatches, rank_of = CASES[name]
    stages = [dict(STAGE) for _ in range(count)]
    stages[-1].update({kind: 1.3 * STAGE[kind] for kind in "fiw"})
    graph = {"schema": "weft-graph/1", "stages": count,
             "edges": [{"from": a, "to": b} for a, b in sorted(set(edges))]}
    costs = {"schema": "weft-costs/1", "stages": stages, "hop": {"latency": 0.2}}
    paths = {}
    for what, content in ("graph", graph), ("costs", costs):
        paths[what] = os.path.join(folder, f"{name} {percent:g} {what}.json")
        with open(paths[what], "w", encoding="utf-8") as out:
            json.dump(content, out)
    limit = one_f_one_b(count, edges, ranks, rank_of) * percent / 100
    words = [os.path.join(options.build, "weft"), "plan", "--graph", paths["graph"],
             "--costs", paths["costs"], "-p", ranks, "-m", microbatches,
             "--memory", limit, "--effort", options.effort, "--json",
             "--threads", options.threads, "-o", paths["graph"] + ".csv"]
    if rank_of:
        words += ["--stage-ranks", ",".join(map(str, rank_of))]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stderr}")
    answer = json.loads(done.stdout)
    return {"name": name, "memory": percent, "value": answer["makespan"],
            "bound": answer["bound"], "gap": 100 * answer["gap"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    parser.add_argument("--effort", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--memory", type=lambda text: list(map(float, text.split(","))),
                        default=[1000, 100, 60])
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--json")
    options = parser.parse_args()
    cases = [(name, percent) for name in options.cases for percent in options.memory]
    rows = []
    print("graph        memory     makespan        bound     gap", flush=True)
    with tempfile.TemporaryDirectory() as folder, \
            concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda case: plan(options, folder, case), cases):
            rows.append(row)
            print(f"{row['name']:10}  {row['memory']:5g} % {row['value']:12.2f}"
                  f" {row['bound']:12.2f} {row['gap']:6.2f} %", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
