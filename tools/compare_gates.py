#!/usr/bin/env python3
"""The part of tools/gates.sh that reads, writes and compares results.

    compare_gates.py store FILE COMMIT FOLDER     the results in FOLDER become FILE
    compare_gates.py compare FILE GATE FOLDER     exit status 1: GATE is worse than in FILE
"""

import json
import os
import subprocess
import sys

PLANS = ("planning-cases", "plan-gaps", "graph-gaps")
PLAN_LIMIT = 0.5  # % of one plan
COUNT_LIMIT = 3  # % of one count
ROUNDING = 1e-6  # relative


def compiler():
    """What instruction counts depend on."""
    words = [os.environ.get("CC", "cc"), "-dumpfullversion"]
    version = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    libc = os.confstr("CS_GNU_LIBC_VERSION")
    return f"cc {version}, {libc}, {os.uname().machine}"


def read(folder, gate):
    """Name to [plan, bound], or to a count."""
    if gate == "instructions":
        with open(os.path.join(folder, gate + ".txt"), encoding="utf-8") as file:
            return {name: int(count) for name, count in
                    (line.rsplit(": ", 1) for line in file.read().splitlines())}
    with open(os.path.join(folder, gate + ".json"), encoding="utf-8") as file:
        rows = json.load(file)
    keys = [key for key in rows[0] if key not in ("value", "bound", "gap", "optimal")]
    return {" ".join(f"{key} {row[key]:g}" if isinstance(row[key], (int, float)) else row[key]
                     for key in keys): [row["value"], row["bound"]] for row in rows}


def store(path, commit, folder):
    results = {"commit": commit, "command": f"tools/gates.sh --build DIR --commit {commit} --store FILE",
               "compiler": compiler()}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
        if before["commit"] == commit:  # and what is not measured again stays
            results = {**before, **results}
    for gate in (*PLANS, "instructions"):
        if any(name.startswith(gate) for name in os.listdir(folder)):
            results[gate] = read(folder, gate)
    lines = []
    for key, value in results.items():
        if isinstance(value, dict):
            rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
            lines.append(f"  {json.dumps(key)}: {{\n{rows}\n  }}")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    with open(path, "w", encoding="utf-8") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def compare_plans(then, now):
    """Prints what differs; true if no plan, mean or bound is worse."""
    good = True
    print(f"{'':34} {'then':>11} {'now':>11}   change")
    for name, (plan, bound) in now.items():
        old_plan, old_bound = then[name]
        change = 100 * (plan / old_plan - 1)
        wrong = ("FALSE BOUND: above the other commit's plan" if bound > old_plan * (1 + ROUNDING) else
                 f"WORSE by more than {PLAN_LIMIT} %" if change > PLAN_LIMIT else "")
        note = "  the other commit's bound was false" if old_bound > plan * (1 + ROUNDING) else ""
        if abs(change) > 100 * ROUNDING or wrong or note:
            print(f"{name:34} {old_plan:11.4f} {plan:11.4f} {change:+7.3f} %  {wrong}{note}".rstrip())
        good = good and not wrong
    equal = sum(abs(plan / then[name][0] - 1) <= ROUNDING for name, (plan, _) in now.items())
    changes = [100 * (plan / then[name][0] - 1) for name, (plan, _) in now.items()]
    gaps = [[100 * (plan / bound - 1) for plan, bound in side]
            for side in ([then[name] for name in now], now.values())]
    worse = mean(changes) > 100 * ROUNDING
    wider = mean(gaps[1]) > mean(gaps[0]) + 100 * ROUNDING
    print(f"{len(now)} plans, {equal} equal: mean change {mean(changes):+.4f} %"
          f"{'  WORSE' if worse else ''}, largest {max(changes):+.3f} %; mean gap to the bound"
          f" {mean(gaps[0]):.4f} -> {mean(gaps[1]):.4f} %{'  WORSE' if wider else ''}")
    return good and not worse and not wider


def compare_counts(then, now):
    good = True
    print(f"{'':34} {'then':>11} {'now':>11}   change")
    for name, count in now.items():
        change = 100 * (count / then[name] - 1)
        wrong = f"MORE than {COUNT_LIMIT} %" if count > (1 + COUNT_LIMIT / 100) * then[name] else ""
        print(f"{name:34} {then[name]:11} {count:11} {change:+7.2f} %  {wrong}".rstrip())
        good = good and not wrong
    return good


def compare(path, gate, folder):
    with open(path, encoding="utf-8") as file:
        base = json.load(file)
    now = read(folder, gate)
    if base[gate].keys() != now.keys():
        sys.exit(f"{gate}: other cases than in {path}: measure commit {base['commit']} again, with"
                 f" '{base['command']}'")
    print(f"then: {base['commit']}")
    if gate in PLANS:
        return compare_plans(base[gate], now)
    if base["compiler"] != compiler():
        sys.exit(f"{gate}: counts of '{base['compiler']}' cannot be compared with those of"
                 f" '{compiler()}'\n  hint: build commit {base['commit']} here and measure it with"
                 f" '{base['command']}', then compare with --base FILE")
    return compare_counts(base[gate], now)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("store", "compare"):
        sys.exit(__doc__)
    if sys.argv[1] == "store":
        store(*sys.argv[2:])
    elif not compare(*sys.argv[2:]):
        sys.exit(1)
