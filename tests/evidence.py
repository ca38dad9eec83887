"""Calculates docs/evidence.md with `thermocline plan`. evidence.sh runs it: evidence.py PROGRAM FOLDER."""

import csv
import json
import pathlib
import statistics
import subprocess
import sys

PROGRAM, OUT = sys.argv[1], pathlib.Path(sys.argv[2])
CARD = "rtx4090-i9"
BUDGETS = [8, 12, 16, 24]
RULES = ["neurons", "frequency", "layers"]
# Shape, label, fraction of neurons that fire (from the models' papers and cards; PowerInfer, SOSP 2024, for the OPT models).
MODELS = [
    ("relu-llama-33b", "33B (ReLU-Llama)", 0.10),
    ("falcon-40b", "Falcon 40B (ReLU)", 0.05),
    ("relu-llama-70b", "70B (ReLU-Llama)", 0.10),
    ("opt-30b", "OPT 30B", 0.05),
    ("opt-66b", "OPT 66B", 0.05),
    ("opt-175b", "OPT 175B", 0.05),
]


def plan(shape, machine, gib, rule, ty="q4_0", active=0.10, mode="predicted"):
    """The plan as an object; None if nothing fits."""
    command = [PROGRAM, "plan", "--json", "--shape", shape, "--type", ty, "--active", str(active), "--machine", machine,
               "--sparsity", mode, "--placement", rule, "--context", "2k"]
    if gib is not None:
        command += ["--vram", f"{gib}GiB" if gib else "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        if "VRAM" in done.stderr:
            return None
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def speed(it):
    """The speed of a plan; a dash without a plan or if the model does not fit into RAM."""
    rate = it and it["tokens_per_second"]
    return f"{rate:.2f}" if rate else "-"


def ratio(one, other):
    """The ratio of two plans' speeds; None if one of them has no speed."""
    rates = [it and it["tokens_per_second"] for it in (one, other)]
    return rates[0] / rates[1] if all(rates) else None


def parts(it):
    """Fractions of a token's time: GPU, CPU, hand-over, the rest (head, transfers to the card and back)."""
    gpu = sum(min(layer["gpu_seconds"], layer["seconds"]) for layer in it["layers"])
    wait = sum(max(0.0, layer["seconds"] - layer["gpu_seconds"] - layer["hand_over_seconds"]) for layer in it["layers"])
    hand = sum(layer["hand_over_seconds"] for layer in it["layers"])
    rest = it["seconds"] - sum(layer["seconds"] for layer in it["layers"])
    return [100 * part / it["seconds"] for part in (gpu, wait, hand, rest)]


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def sizes():
    """Speeds by VRAM and model size."""
    rows, chart = [], []
    for shape, label, active in MODELS:
        for ty in ("q4_0", "f16"):
            alone = plan(shape, CARD, 0, "neurons", ty, active)
            cells = [label, ty.upper(), speed(alone)]
            for gib in BUDGETS:
                best = plan(shape, CARD, gib, "neurons", ty, active)
                cells.append(speed(best))
            rows.append(cells)
            if ty == "q4_0":
                chart.append([label] + cells[2:])
    heads = ["model", "type", "CPU alone"] + [f"{gib} GiB" for gib in BUDGETS]
    with open(OUT / "evidence.csv", "w", newline="") as file:
        csv.writer(file).writerows([["model"] + heads[2:]] + chart)
    subprocess.run([PROGRAM, "eval", "plot", "--in", str(OUT / "evidence.csv"), "--out", str(OUT / "evidence.svg"), "--kind", "bars",
                    "--title", "Calculated decoding speed by VRAM", "--subtitle", "Q4_0, Core i9-13900K, GeForce RTX 4090",
                    "--unit", "tokens/s"], check=True)
    return table(heads, rows)


def rules():
    """The three rules side by side at 24 GiB, and the parts of a token's time."""
    rows = []
    for shape, label, active in MODELS:
        for ty in ("q4_0", "f16"):
            plans = [plan(shape, CARD, 24, rule, ty, active) for rule in RULES]
            dense = plan(shape, CARD, 24, "layers", ty, active, "dense")
            best = plans[0]
            shares = [f"{part:.0f}" for part in parts(best)] if speed(best) != "-" else ["-"]
            faster = ratio(best, dense)
            faster = f"{faster:.1f}" if faster else "-"
            rows.append([label, ty.upper()] + [speed(it) for it in plans] + [speed(dense), faster, " / ".join(shares)])
    heads = ["model", "type", "neurons", "PowerInfer's rule", "whole layers", "whole layers, dense", "neurons : dense",
             "GPU / CPU / hand-over / rest [%]"]
    return table(heads, rows)


def server():
    """One card against an A100 that holds the model whole."""
    rows = []
    for shape, label, active in MODELS:
        for ty in ("q4_0", "f16"):
            card = plan(shape, CARD, 24, "neurons", ty, active)
            whole = plan(shape, "a100-80g", 80, "neurons", ty, active, "dense")
            fits = whole is not None and whole["bytes"] >= 0.98 * whole["everything"] and whole["head"]
            if fits:
                share = ratio(card, whole)
                rows.append([label, ty.upper(), speed(card), speed(whole), f"{100 * share:.0f} %" if share else "-"])
            else:
                rows.append([label, ty.upper(), speed(card), "does not fit", "-"])
    return table(["model", "type", "RTX 4090, 24 GiB", "A100 80 GB, dense", "relative speed"], rows)


# Published figures: label, shape, machine, GiB, rule, type, mode, active, tokens/s, source.
PUBLISHED = [
    ("Bamboo 7B, PowerInfer, CPU alone", "bamboo-7b", "rtx4090-i9", 0, "neurons", "f16", "predicted", 0.15, 9.94, "Bamboo's card"),
    ("Bamboo 7B, llama.cpp, CPU alone", "bamboo-7b", "rtx4090-i9", 0, "neurons", "f16", "dense", 0.15, 4.78, "Bamboo's card"),
    ("Bamboo 7B, PowerInfer, RTX 2080 Ti", "bamboo-7b", "rtx2080ti-i7", 11, "frequency", "f16", "predicted", 0.15, 33.50, "Bamboo's card"),
    ("Bamboo 7B, llama.cpp, RTX 2080 Ti", "bamboo-7b", "rtx2080ti-i7", 11, "layers", "f16", "dense", 0.15, 7.64, "Bamboo's card"),
    ("Bamboo 7B, PowerInfer, RTX 4090", "bamboo-7b", "rtx4090-i9", 24, "frequency", "f16", "predicted", 0.15, 92.46, "Bamboo's card"),
    ("Bamboo 7B, llama.cpp, RTX 4090", "bamboo-7b", "rtx4090-i9", 24, "layers", "f16", "dense", 0.15, 58.34, "Bamboo's card"),
    ("OPT 175B, PowerInfer, RTX 4090", "opt-175b", "rtx4090-i9", 24, "frequency", "q4_0", "predicted", 0.05, 2.0, "PowerInfer, section 8.2"),
    ("OPT 175B, llama.cpp, RTX 4090", "opt-175b", "rtx4090-i9", 24, "layers", "q4_0", "dense", 0.05, 2.0 / 2.66,
     "PowerInfer, section 8.2"),
    ("ReLU-Llama 13B, PowerInfer, RTX 2080 Ti", "relu-llama-13b", "rtx2080ti-i7", 11, "frequency", "f16", "predicted", 0.284, 4.16,
     "PowerInfer's Windows page"),
]


def published():
    rows, errors = [], []
    for label, shape, machine, gib, rule, ty, mode, active, told, source in PUBLISHED:
        it = plan(shape, machine, gib, rule, ty, active, mode)
        got = it["tokens_per_second"]
        error = got / told - 1
        errors.append(abs(error))
        rows.append([label, ty.upper(), f"{told:.2f}", f"{got:.2f}", f"{100 * error:+.0f} %", source])
    median = f"{100 * statistics.median(errors):.0f} %"
    return table(["figure", "type", "published [tokens/s]", "calculated [tokens/s]", "error", "source"], rows), median


def main():
    page = pathlib.Path(OUT / "evidence.md")
    held, median = published()
    page.write_text(f"""# Calculated speeds with hot and cold neurons

All speeds on this page are *calculated*, not measured. The planner's time model calculates them
from published figures of machines (`assets/machines`) and published shapes of models
(`thermocline synth --shape`). The fractions of firing neurons come from the models' papers.
Measured speeds are in [benchmarks.md](benchmarks.md). `bash tests/evidence.sh` writes this page.

```
thermocline plan --shape relu-llama-70b --type q4_0 --machine rtx4090-i9 --vram 16GiB
thermocline plan --shape relu-llama-70b --machine rtx4090-i9 --placement layers     # the last layers whole, as in llama.cpp
```

## How far the time model is from published figures

Each row compares a published speed with the calculated speed for the same machine, model and
placement rule. PowerInfer's rule places all attention and the most frequently firing neurons in
VRAM. llama.cpp's rule places the last layers whole. The weight type of Bamboo's figures is inferred
from the bytes per second that the figures imply. The median error is **{median}**.

{held}

## Models from 33B to 175B with 8 to 24 GiB of VRAM

*Calculated*, in tokens/s, with `--sparsity predicted` and a context of 2,048 tokens. The machine
has a Core i9-13900K and an RTX 4090, and the model uses no more VRAM than the column says.
A dash means that the model does not fit into its 192 GiB of RAM.

![Calculated decoding speed by VRAM](evidence.svg)

{sizes()}

## Placement by neurons, by PowerInfer's rule and by whole layers

*Calculated*, in tokens/s, with 24 GiB of VRAM. The first three placements skip silent neurons. The
fourth placement computes all neurons, as llama.cpp does. The last column divides the time per token
of the first placement among the GPU, the CPU, the hand-overs and the rest.

{rules()}

## Comparison with a server card

*Calculated*, in tokens/s. The last column is the speed of the RTX 4090 relative to the A100.
PowerInfer reports 82 % of an A100's speed for OPT 30B.

{server()}
""")
    print(f"{page}: median error {median}")


main()
