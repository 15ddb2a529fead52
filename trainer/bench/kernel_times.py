#!/usr/bin/env python3
"""Where the time of a training step goes on a GPU, by kernel: the step's roofline.

    kernel_times.py [--weft FILE] [--model NAME] [--batch B] [--csv FILE] [--keep FILE] [-- OPTION...]

Runs two steps of `weft train --device cuda` under Nsight Compute (ncu), which must be installed,
and takes the second one, from its embedding to its last AdamW. For each kernel: calls, time,
share, the rate that was achieved, and the time it would take at the rates that an H200 was seen
to reach: TFLOP/s of matrix products for products and attention, TB/s of a copy for all others.
Operations and bytes are those that the kernel's task needs, each number read or written once. A
product is named by what it computes; ncu's name of it comes last.

ncu runs one kernel at a time, so the sum is without gaps and without overlap. OPTIONs are further
ones of `weft train`. --keep FILE keeps ncu's report, and --csv FILE reads such a report instead
of running anything.
"""
import argparse
import csv
import pathlib
import re
import subprocess
import sys
import tempfile

MODELS = {"gpt2-124m": (12, 768, 12), "gpt2-350m": (24, 1024, 16), "gpt2-774m": (36, 1280, 20)}
VOCABULARY, TOKENS = 50304, 1024
FLOPS_BEST, BYTES_BEST = 790e12, 4.3e12
PREFIX = "weft_gpt_"
NS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}


class Launch:
    """A kernel that ran: its name, blocks [x, y, z] and nanoseconds."""

    def __init__(self, name, grid, ns):
        self.own = PREFIX in name
        self.name = re.sub(r"\(.*", "", name[name.index(PREFIX) + len(PREFIX):]) if self.own else name
        self.grid, self.ns, self.label = grid, ns, None


def run_ncu(options, report):
    command = ["ncu", "--target-processes", "all", "--clock-control", "none", "--cache-control", "none",
               "--metrics", "gpu__time_duration.sum", "--print-units", "base", "--csv",
               "--log-file", report,
               # The first step is not measured: it has more launches than these.
               "--launch-skip", str(20 * MODELS[options.model][0]),
               options.weft, "train", "--synthetic", "--model", options.model,
               "--batch", str(options.batch), "-m", "1", "--ranks", "1", "--steps", "2",
               "--lr", "0.0003", "--eval-every", "100", "--eager",
               "--device", "cuda"] + options.options
    print(" ".join(command), flush=True)
    return subprocess.run(command, check=False).returncode


def read_report(path):
    """Launches in the order of the report, which has a row per kernel, or per kernel and metric."""
    lines = pathlib.Path(path).read_text(errors="replace").splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        sys.exit("kernel_times.py: ncu measured nothing; its report:\n" + "\n".join(lines[-20:]))
    launches, unit = [], "ns"
    for row in csv.DictReader(line for line in lines[start:] if line.startswith('"')):
        value = row.get("Metric Value", row.get("gpu__time_duration.sum", ""))
        if not row["ID"]:  # the line of units
            unit = value
            continue
        if row.get("Metric Name", "gpu__time_duration.sum") != "gpu__time_duration.sum":
            continue
        grid = [int(n) for n in re.findall(r"\d+", row["Grid Size"])] + [1, 1, 1]
        scale = NS[row.get("Metric Unit", unit)]
        launches.append(Launch(row["Kernel Name"], grid, float(value.replace(",", "")) * scale))
    return launches


def last_step(launches):
    """From the last embedding that an AdamW follows to the last AdamW."""
    end = max((n for n, k in enumerate(launches) if k.name == "adamw"), default=-1)
    begin = max((n for n, k in enumerate(launches[:end + 1]) if k.name == "embed"), default=-1)
    if begin < 0:
        sys.exit(f"kernel_times.py: no whole step among {len(launches)} kernels: "
                 "is ncu stopped too early?")
    return launches[begin:end + 1]


def merge_products(step):
    """What cublasLt runs between two of our kernels and only adds up parts belongs to the product
    before it."""
    merged = []
    for launch in step:
        if not launch.own and merged and not merged[-1].own and "reduce" in launch.name.lower():
            merged[-1].ns += launch.ns
        else:
            merged.append(launch)
    return merged


def label_products(step):
    """A product's task follows from the kernels around it (trainer/cuda/cuda_passes.c)."""
    def near(n):
        if not 0 <= n < len(step):
            return ""
        return step[n].name if step[n].own else "product"
    weights, forward = 0, False
    for n, launch in enumerate(step):
        if launch.own:
            launch.label = launch.name
            forward = forward or launch.name == "embed"
            forward = forward and launch.name != "cross_entropy"
            continue
        before, after, later = near(n - 1), near(n + 1), near(n + 2)
        if forward:
            launch.label = ("qkv forward" if after.startswith("attention_forward") else
                            "attention projection forward" if before.startswith("attention_forward") else
                            "logits forward" if after == "cross_entropy" else
                            "fc forward" if before == "norm" else "mlp projection forward")
        elif after == "column_parts":
            order = ["mlp projection weights", "fc weights", "attention projection weights", "qkv weights"]
            launch.label = order[weights % 4]
            weights += 1
        elif after == "add_parts":
            launch.label = "logits weights"
        elif after == "attention_products":
            launch.label = "attention projection input"
        elif before.startswith("attention_backward"):
            launch.label = "qkv input"
        elif after == "product" and later == "norm_backward":
            launch.label = "mlp projection input"
        elif before == "product" and after == "norm_backward":
            launch.label = "fc input"
        elif after == "norm_backward":
            launch.label = "logits input"
        else:
            launch.label = "product, which one is not known"


def work(launch, model, batch):
    """(operations, bytes) that the kernel's task needs, or (0, 0): not known, and small."""
    layers, c, heads = model
    rows = batch * TOKENS
    sizes = {"qkv": (c, 3 * c), "attention": (c, c), "fc": (c, 4 * c), "mlp": (4 * c, c),
             "logits": (c, VOCABULARY)}
    if not launch.own:
        size = sizes.get(launch.label.split()[0])
        return (2 * rows * size[0] * size[1], 0) if size else (0, 0)
    name = launch.label
    pairs = batch * heads * TOKENS * (TOKENS + 1) / 2  # of queries and keys
    each = 2 * pairs * (c // heads)                    # operations of a product over them
    if name.startswith("attention_forward"):
        return 2 * each, 0
    if name.startswith("attention_backward"):
        return (3 if "queries" in name else 4 if "keys" in name else 5) * each, 0
    block = 12 * c * c + 13 * c
    parameters = layers * block + (2 * VOCABULARY + TOKENS) * c + 2 * c
    numbers = {"norm": 2 * rows * c, "norm_backward": 4 * rows * c, "attention_products": 2 * rows * c,
               "column_parts": 256 * 256 * launch.grid[0], "cross_entropy": 2 * rows * VOCABULARY,
               "embed": 2 * rows * c, "embed_backward_positions": rows * c,
               "embed_backward_tokens": rows * c + 4 * min(rows, VOCABULARY) * c,
               "adamw": 15 * 1024 * launch.grid[0], "square_sums": 2 * parameters / (layers + 2)}
    return 0, 2 * numbers.get(name, 0)


def report(step, model, batch):
    rows = {}
    for launch in step:
        row = rows.setdefault(launch.label, {"calls": 0, "ns": 0, "flops": 0, "bytes": 0, "names": set(),
                                             "own": launch.own})
        flops, size = work(launch, model, batch)
        row["calls"] += 1
        row["ns"] += launch.ns
        row["flops"] += flops
        row["bytes"] += size
        row["names"].add("" if launch.own else re.sub(r"\(.*", "", launch.name)[:60])
    total = sum(row["ns"] for row in rows.values())
    print(f"{'kernel':34} {'calls':>5} {'ms':>8} {'share':>6} {'achieved':>13} {'possible ms':>11} {'lost ms':>8}")
    groups = {}
    for label, row in sorted(rows.items(), key=lambda item: -item[1]["ns"]):
        possible = max(row["flops"] / FLOPS_BEST, row["bytes"] / BYTES_BEST) * 1e3
        seconds, ms = row["ns"] / 1e9, row["ns"] / 1e6
        rate = (f"{row['flops'] / seconds / 1e12:6.0f} TFLOP/s" if row["flops"] else
                f"{row['bytes'] / seconds / 1e12:6.2f} TB/s   " if row["bytes"] else "-")
        group = ("products" if not row["own"] else
                 "attention" if label.startswith("attention_") else "other kernels")
        sums = groups.setdefault(group, [0, 0, 0])
        sums[0] += row["calls"]
        sums[1] += ms
        sums[2] += possible if possible else ms
        print(f"{label:34} {row['calls']:5} {ms:8.3f} {100 * row['ns'] / total:5.1f}% {rate:>13} "
              f"{possible or float('nan'):11.3f} {ms - possible if possible else float('nan'):8.3f}  "
              f"{', '.join(sorted(row['names'] - {''}))}")
    print()
    for group, (calls, ms, possible) in sorted(groups.items(), key=lambda item: -item[1][1]):
        print(f"{group:34} {calls:5} {ms:8.3f} {1e8 * ms / total:5.1f}% {'':13} {possible:11.3f} {ms - possible:8.3f}")
    possible = sum(sums[2] for sums in groups.values())
    print(f"{'all':34} {len(step):5} {total / 1e6:8.3f} 100.0% {'':13} {possible:11.3f} {total / 1e6 - possible:8.3f}")
    print(f"{batch * TOKENS} tokens: {batch * TOKENS / total * 1e9:,.0f} tokens/s without gaps, "
          f"at most {batch * TOKENS / possible * 1e3:,.0f} at {FLOPS_BEST / 1e12:.0f} TFLOP/s and "
          f"{BYTES_BEST / 1e12:.1f} TB/s")


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", default=str(here.parent.parent / "build" / "weft"))
    parser.add_argument("--model", choices=MODELS, default="gpt2-124m")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--csv")
    parser.add_argument("--keep")
    parser.add_argument("options", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.csv or options.keep or str(pathlib.Path(folder) / "report.csv")
        if not options.csv:
            status = run_ncu(options, path)
            if status != 0:
                print(f"kernel_times.py: ncu ended with status {status}", file=sys.stderr)
        launches = read_report(path)
    step = merge_products(last_step(launches))
    label_products(step)
    report(step, MODELS[options.model], options.batch)


if __name__ == "__main__":
    main()
