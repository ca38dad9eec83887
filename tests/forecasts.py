"""Compares the speeds that `plan` predicts with the speeds that `run` measures, on this machine.

Usage: python3 tests/forecasts.py PROGRAM WAY MODEL [BUDGETS]
  WAY      cpu: BUDGETS are sparsity modes, like dense,exact
           gpu:N: BUDGETS are sizes of GPU memory for GPU N of `thermocline devices`, like 0.5GiB,1GiB
           ram: BUDGETS are values of `--ram`, for weights and contexts, like 1GiB,2GiB. The CPU computes
  BUDGETS  default for gpu and ram: ten budgets from a tenth of the model to all of it
Prints one row per budget, the median error, and the budget that each column prefers. Measured speeds are the median of three answers.
"""

import json
import pathlib
import statistics
import subprocess
import sys

TOKENS = 48
ANSWERS = 3


def printed(*command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Comparison:
    """One model computed in one way."""

    def __init__(self, program, way, model):
        self.program, self.model = program, model
        self.way, _, gpu = way.partition(":")
        if self.way not in ("cpu", "gpu", "ram"):
            sys.exit(f"forecasts.py: expected cpu, gpu:N or ram, got {way!r}")
        self.options = ["--device", gpu or "cpu", "--context", "64"]

    def predicted(self, budget, more=()):
        command = [self.program, "plan", "-m", self.model, "--json", *self.options, *self.named(budget), *more]
        return printed(*command)["tokens_per_second"] or 0.0

    def measured(self, budget):
        command = [self.program, "run", "-m", self.model, *self.options, *self.named(budget), "--raw", "-p", "The sea is", "--json",
                   "-n", str(TOKENS), "--temp", "0", "--speculation", "off", "--no-counts", "--quiet"]
        return statistics.median(printed(*command)["stats"]["decode_tokens_per_second"] for _ in range(ANSWERS))

    def named(self, budget):
        return [{"cpu": "--sparsity", "gpu": "--vram", "ram": "--ram"}[self.way], budget]


def tenths(model):
    bytes = pathlib.Path(model).stat().st_size
    return [f"{bytes * part // 10 >> 20}MiB" for part in range(1, 11)]


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    program, way, model = sys.argv[1:4]
    comparison = Comparison(program, way, model)
    budgets = sys.argv[4].split(",") if len(sys.argv) == 5 else ["dense"] if way == "cpu" else tenths(model)
    # The other budgets use the speeds that this call keeps.
    comparison.predicted(budgets[0], ["--measure"])
    rows = [(budget, comparison.predicted(budget), comparison.measured(budget)) for budget in budgets]
    print("| budget | predicted [tokens/s] | measured [tokens/s] | error |\n|---|---:|---:|---:|")
    for budget, predicted, measured in rows:
        print(f"| {budget} | {predicted:.2f} | {measured:.2f} | {predicted / measured - 1:+.0%} |")
    error = statistics.median(abs(predicted / measured - 1) for _, predicted, measured in rows)
    best = [max(rows, key=lambda row: row[column])[0] for column in (1, 2)]
    print(f"\nThe median error is {error:.0%}. The best budget is {best[0]} by prediction and {best[1]} by measurement.")


if __name__ == "__main__":
    main()
