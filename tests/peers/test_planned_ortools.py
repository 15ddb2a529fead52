#!/usr/bin/env python3
"""The planner's certificates against CP-SAT: random small problems with one stage per rank, whole
and split backwards, gradients, latency and a memory limit.

    tests/peers/test_planned_ortools.py WEFT [CASES [SEED]]

CP-SAT decides for every microbatch and stage whether its backward is whole, and orders all actions
freely, so it knows nothing of what the planner takes for granted. Its optimum must not be below the
planner's bound, a plan that is called optimal must reach it, and nothing is refused that fits. Needs
OR-tools from PyPI; without it the script says so and ends with status 69.
"""

import json
import random
import subprocess
import sys

try:
    from ortools.sat.python import cp_model
except ImportError:
    print("left out: OR-tools is not installed (pip install ortools)")
    sys.exit(69)


def draw(rng):
    """A problem: shape, costs of each stage, limit."""
    stages = []
    for _ in range(rng.randint(2, 3)):
        # Where I takes no time, gradients and activations are both held for no time in CP-SAT.
        gradients = rng.choice([0, 0, 3])
        i, w = rng.randint(1 if gradients > 0 else 0, 4), rng.randint(1, 4)
        stages.append({"f": rng.randint(1, 5), "i": i, "w": w,
                       "b": max(1, i + w - rng.choice([0, 0, 1, 2])), "activation": 2,
                       "activation_after_i": rng.randint(0, 3), "gradients": gradients})
    microbatches = rng.randint(1, 4)
    return {"microbatches": microbatches, "stages": stages, "latency": rng.randint(0, 2),
            "memory": rng.randint(2, 2 * microbatches + 5)}


class Model:
    """Actions are intervals; a backward is either B, or I and W."""

    def __init__(self, problem):
        self.cp = cp_model.CpModel()
        self.problem = problem
        self.horizon = sum(sum(stage[x] for x in "fiwb") + 2 * problem["latency"]
                           for stage in problem["stages"]) * problem["microbatches"] + 1
        self.ends = []
        before = None
        for stage in problem["stages"]:
            before = self.add_stage(stage, before)
        for s in range(len(problem["stages"]) - 1):
            for k in range(problem["microbatches"]):
                self.cp.add(self.ends[s][k]["back_start"] >=
                            self.ends[s + 1][k]["back_end"] + problem["latency"])
        self.makespan = self.cp.new_int_var(0, self.horizon, "makespan")
        for row in self.ends:
            for one in row:
                self.cp.add(self.makespan >= one["end"])
        self.cp.minimize(self.makespan)

    def time(self):
        return self.cp.new_int_var(0, self.horizon, "")

    def add_microbatch(self, stage, before):
        """Its times, the intervals of the rank, and those in which it holds memory."""
        cp = self.cp
        f_start, back_start, back_end, w_start, end = (self.time() for _ in range(5))
        whole = cp.new_bool_var("")
        length = cp.new_int_var(0, self.horizon, "")
        cp.add(length == stage["b"]).only_enforce_if(whole)
        cp.add(length == stage["i"]).only_enforce_if(whole.negated())
        cp.add(back_end == end).only_enforce_if(whole)
        cp.add(w_start >= back_end).only_enforce_if(whole.negated())
        cp.add(end == w_start + stage["w"]).only_enforce_if(whole.negated())
        cp.add(back_start >= f_start + stage["f"])
        if before is not None:
            cp.add(f_start >= before["f_end"] + self.problem["latency"])
        rank = [cp.new_fixed_size_interval_var(f_start, stage["f"], ""),
                cp.new_interval_var(back_start, length, back_end, ""),
                cp.new_optional_fixed_size_interval_var(w_start, stage["w"], whole.negated(), "")]
        held, kept = self.time(), self.time()
        holds = [(cp.new_interval_var(f_start, held, back_end, ""), stage["activation"]),
                 (cp.new_interval_var(back_end, kept, end, ""), stage["activation_after_i"])]
        return {"f_end": f_start + stage["f"], "back_start": back_start, "back_end": back_end,
                "end": end}, rank, holds

    def add_stage(self, stage, before):
        cp = self.cp
        row, rank, holds = [], [], []
        for k in range(self.problem["microbatches"]):
            one, intervals, memory = self.add_microbatch(stage, before[k] if before else None)
            row.append(one)
            rank += intervals
            holds += memory
        first, size = self.time(), self.time()
        cp.add_min_equality(first, [one["back_start"] for one in row])
        holds.append((cp.new_interval_var(first, size, self.horizon, ""), stage["gradients"]))
        cp.add_no_overlap(rank)
        cp.add_cumulative([one for one, _ in holds], [size for _, size in holds],
                          self.problem["memory"])
        self.ends.append(row)
        return row

    def solve(self):
        """The optimum; None: nothing fits."""
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 2
        solver.parameters.max_time_in_seconds = 60
        status = solver.solve(self.cp)
        assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE), "CP-SAT found no answer in time"
        return round(solver.objective_value) if status == cp_model.OPTIMAL else None


def plan(weft, problem):
    costs = {"schema": "weft-costs/1", "stages": problem["stages"],
             "hop": {"latency": problem["latency"]}}
    done = subprocess.run([weft, "plan", "-p", str(len(problem["stages"])), "-m",
                           str(problem["microbatches"]), "-v", "1", "--costs", "-", "--memory",
                           str(problem["memory"]), "--json"], input=json.dumps(costs),
                          capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout) if done.returncode == 0 else None


def main():
    weft = sys.argv[1]
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    refused = proven = reached = wrong = 0
    for case in range(cases):
        problem = draw(rng)
        found, best = plan(weft, problem), Model(problem).solve()
        complaint = None
        if found is None or best is None:
            refused += found is None
            complaint = "refused, and it fits" if best is not None else \
                "planned, and nothing fits" if found is not None else None
        else:
            proven += found["optimal"]
            reached += found["makespan"] == best
            if found["bound"] > best:
                complaint = f"bound {found['bound']}, optimum {best}"
            elif found["makespan"] < best or (found["optimal"] and found["makespan"] != best):
                complaint = f"makespan {found['makespan']}, optimum {best}"
        if complaint:
            wrong += 1
            print(f"case {case}: {complaint}: {json.dumps(problem)}")
    print(f"{cases} cases: {refused} refused, {proven} proven optimal, {reached} reach the optimum, "
          f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
