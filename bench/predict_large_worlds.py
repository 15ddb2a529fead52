#!/usr/bin/env python3
"""What a training step takes on many ranks, predicted from costs measured on two.

    bench/predict_large_worlds.py --costs FILE --messages FILE [--build DIR]
        [--mpi NAME] [--over memory|tcp] [--microbatches-per-rank K] [--schedule NAME] [--json]

    weft train --profile costs.json ...          gives the first file
    weft bench mpi --json >messages.json         gives the second

Each of p ranks gets as many blocks as a rank had where costs were measured: the model
grows with p. A step has K * p microbatches per replica. The pipeline is simulated
(`weft gen | weft lower | weft sim`): each stage takes what the mean measured one took,
a hop what MPI took for a boundary's bytes between two processes. What data parallelism
adds is reckoned, not simulated: with D replicas and S bytes of parameters on a rank, each
rank sends and receives in a step

    reduce-scatter of gradients   (D - 1) / D * S
    all-gather of parameters      (D - 1) / D * S

(together what an all-reduce moves; with --shard full and a window smaller than the rank's
stages, parameters are gathered more often), at the measured bandwidth of large messages. The
worst is assumed, that nothing of it is hidden behind compute. `computing` is the share of
the step in which ranks compute.
"""

import argparse
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RANKS = (4, 16, 64, 256, 1024)
REPLICAS = (1, 2, 4, 8)


def mean_costs(costs):
    """f, i, w of a stage in ms: the mean over the measured stages."""
    stages = costs["stages"]
    return {key: sum(stage[key] for stage in stages) / len(stages) for key in ("f", "i", "w")}


def find_way(messages, options):
    """As the MPI and what it goes over are called in the file; by default the first."""
    for way in messages["ways"]:
        if options.mpi in (None, way["mpi"]) and options.over in (None, way["over"]):
            return way
    sys.exit(f"{options.messages}: no messages of {options.mpi or 'any MPI'} over {options.over or 'anything'}")


def transfer_ms(way, size):
    """By the two measured sizes around it, linearly."""
    rows = way["messages"]
    for low, high in zip(rows, rows[1:]):
        if size <= high["bytes"] or high is rows[-1]:
            per_byte = (high["weft_ns"] - low["weft_ns"]) / (high["bytes"] - low["bytes"])
            return (low["weft_ns"] + (size - low["bytes"]) * per_byte) / 1e6
    raise AssertionError("no sizes")


def simulate(options, ranks, microbatches, costs, hop_ms):
    """(step in ms, bubble) of one replica"""
    weft = os.path.join(options.build, "weft")
    times = [f"--f={costs['f']:.6f}", f"--i={costs['i']:.6f}", f"--w={costs['w']:.6f}",
             f"--hop={hop_ms:.6f}"]
    table = subprocess.run([weft, "gen", options.schedule, "-p", str(ranks), "-m", str(microbatches)],
                           stdout=subprocess.PIPE, check=True, timeout=600).stdout
    program = subprocess.run([weft, "lower", "-"], input=table, stdout=subprocess.PIPE, check=True,
                             timeout=600).stdout
    done = subprocess.run([weft, "sim", "--json", *times, "-"], input=program, stdout=subprocess.PIPE,
                          check=True, timeout=600)
    result = json.loads(done.stdout)
    return result["makespan"], result["bubble_ratio"]


def predict(options, costs, way):
    hop_ms = transfer_ms(way, options.boundary_bytes)
    bandwidth = way["messages"][-1]["bytes"] / way["messages"][-1]["weft_ns"] * 1e6  # bytes per ms
    rows = []
    for ranks in RANKS:
        microbatches = options.microbatches_per_rank * ranks
        step_ms, bubble = simulate(options, ranks, microbatches, costs, hop_ms)
        for replicas in REPLICAS:
            moved = 2 * (replicas - 1) / replicas * options.parameter_bytes
            data_ms = moved / bandwidth
            rows.append({"ranks": ranks, "replicas": replicas, "microbatches": microbatches,
                         "pipeline_ms": step_ms, "bubble": bubble, "data_parallel_ms": data_ms,
                         "step_ms": step_ms + data_ms,
                         "computing": (1 - bubble) * step_ms / (step_ms + data_ms),
                         "tokens_per_s": replicas * microbatches * options.tokens / (step_ms + data_ms) * 1e3})
    return hop_ms, bandwidth, rows


def print_rows(options, costs, way, hop_ms, bandwidth, rows):
    print(f"{options.schedule}, {way['mpi']}{' over ' + way['over'] if way['over'] else ''}: f {costs['f']:.2f} ms, i {costs['i']:.2f}, w {costs['w']:.2f} of a "
          f"stage; a hop of {options.boundary_bytes >> 10} KiB {hop_ms:.3f} ms;\n"
          f"{options.parameter_bytes / 1e6:.1f} MB of parameters per rank at {bandwidth / 1e6:.2f} GB/s; "
          f"{options.microbatches_per_rank} microbatches per rank, {options.tokens} tokens each\n")
    print(f"{'p':>5} {'D':>3} {'ranks':>6} {'m':>6} {'pipeline ms':>12} {'bubble':>8} {'+ data ms':>10} "
          f"{'step ms':>10} {'computing':>10} {'tokens/s':>11}")
    for row in rows:
        print(f"{row['ranks']:>5} {row['replicas']:>3} {row['ranks'] * row['replicas']:>6} "
              f"{row['microbatches']:>6} {row['pipeline_ms']:>12.1f} {100 * row['bubble']:>6.1f} % "
              f"{row['data_parallel_ms']:>10.2f} {row['step_ms']:>10.1f} "
              f"{100 * row['computing']:>8.1f} % {row['tokens_per_s']:>11.0f}")


def main():
    parser = argparse.ArgumentParser(description="A step on many ranks, from costs measured on two.")
    parser.add_argument("--costs", required=True, help="of weft train --profile")
    parser.add_argument("--messages", required=True, help="of weft bench mpi --json")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"), help="where the command is")
    parser.add_argument("--mpi", help="openmpi or mpich; default: the first that was measured")
    parser.add_argument("--over", help="memory or tcp, likewise")
    parser.add_argument("--schedule", default="ZBH1")
    parser.add_argument("--microbatches-per-rank", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256, help="of a microbatch")
    parser.add_argument("--boundary-bytes", type=int, default=262144, help="between two stages")
    parser.add_argument("--parameter-bytes", type=int, default=12964864, help="of a rank")
    parser.add_argument("--json", action="store_true", help="write one JSON document")
    options = parser.parse_args()
    with open(options.costs, encoding="utf-8") as file:
        costs = mean_costs(json.load(file))
    with open(options.messages, encoding="utf-8") as file:
        way = find_way(json.load(file), options)
    hop_ms, bandwidth, rows = predict(options, costs, way)
    if options.json:
        print(json.dumps({"schema": "weft-predict-large-worlds/1", "hop_ms": hop_ms,
                          "bytes_per_ms": bandwidth, "costs": costs, "rows": rows}))
    else:
        print_rows(options, costs, way, hop_ms, bandwidth, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
