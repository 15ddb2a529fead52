#!/usr/bin/env python3
"""Weft beside an installed PyTorch: one case, or all that need no launcher.

    bench/pytorch.py [CASE [OPTION ...]]

    lower      tables of all ranks, built and lowered
    dry-run    simulations beside PyTorch's untimed dry run
    run        the runtime beside PyTorch's pipelining over gloo
    train      the trainer beside PyTorch's pipelining, and beside PyTorch in one process
    pipeline   host time per action over MPI: mpirun -n 2 python3 bench/pytorch.py pipeline
    gpu        the same stages on one GPU

'bench/pytorch.py CASE --help' explains a case (bench/pytorch_cases). In each, both sides get the
same work, in turns, and their answers are compared first. Where PyTorch, a GPU or Weft's part is
missing, a case says so and leaves that out. Exit status 1: an answer differs, or a rank failed.
"""

import importlib
import sys

CASES = ("lower", "dry-run", "run", "train", "pipeline", "gpu")


def run(case, words):
    return importlib.import_module("pytorch_cases." + case.replace("-", "_")).main(words)


def main():
    words = sys.argv[1:]
    if not words:
        status = 0
        for case in CASES:
            if case != "pipeline":
                print(f"\n== {case}", flush=True)
                status = run(case, []) or status
        return status
    if words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if words[0] not in CASES:
        print(f"{sys.argv[0]}: unknown case '{words[0]}': expected {', '.join(CASES)}",
              file=sys.stderr)
        return 2
    sys.argv[0] += " " + words[0]  # of the case's help
    return run(words[0], words[1:])


if __name__ == "__main__":
    sys.exit(main())
