#!/usr/bin/env python3
"""Holds the program's logits against transformers on small random models with random settings.

For every family draws configurations, writes folders, compares logits (CPU; with --gpu a device, with --convert a converted file, too),
prints a table per family, and reduces what is wrong to the keys that do it. Ends with 1 if anything is wrong.
"""

import argparse
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy
import torch
import transformers
from safetensors.numpy import load_file, save_file

from draws import ABSENT, settle
from families import FAMILIES, FLAT, SIZES, TOWERS, VOCABULARY

TOKENS = 24
# Models that the reference has and does not find by their configuration.
WITHOUT_AUTO = {"mistral4": transformers.Mistral4ForCausalLM}
# Largest difference of a logit in parts of the reference's range. Sums in another order leave a thousandth of that.
TOLERANCE = 2e-3
# The most keys that are drawn at a time; few, so that what is wrong is not hidden behind what is refused.
MOST_KEYS = 4


def plain(config):
    """The configuration without what is left out, what is drawn together in its place, and what depends on other keys computed."""
    together = {key: values for key, values in config.items() if key.startswith("+")}
    config = {key: value for key, value in config.items() if key not in together}
    for values in together.values():
        config.update(values)
    config = {key: value for key, value in config.items() if not (isinstance(value, str) and value == ABSENT)}
    values = {key: value(config) if callable(value) else value for key, value in config.items()}
    return values


class Case:
    """A model of a family: a base configuration, changes to it, and a seed of its weights."""

    def __init__(self, family, changes, saved, seed):
        self.family, self.changes, self.saved, self.seed = family, changes, saved, seed
        base, _ = FAMILIES[family]
        self.config = plain({**SIZES, **base, **changes})
        self.type = family.split()[0]

    def model(self):
        """The reference, with weights that make settings show; raises where it does not know them either."""
        torch.manual_seed(self.seed)
        values, auto = copy.deepcopy(self.config), transformers.AutoModelForCausalLM
        if self.type in TOWERS:
            values, auto = dict(text_config=values, vision_config=self.tower()), transformers.AutoModelForImageTextToText
        config = transformers.CONFIG_MAPPING[self.type](**values)
        # Falcon's eager attention adds ALiBi's biases twice in transformers 5.24: behind the product and in the mask.
        kind = "sdpa" if self.config.get("alibi") is True else "eager"
        make = WITHOUT_AUTO[self.type]._from_config if self.type in WITHOUT_AUTO else auto.from_config
        model = make(config, attn_implementation=kind).float().eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith(("A_log", "dt_bias", ".D")):
                    weight.add_(0.1 * torch.randn_like(weight))
                elif weight.dim() > 1:
                    weight.normal_(0, 1.2 / max(weight.shape[-1], 8) ** 0.5)
                else:
                    weight.add_(0.2 * torch.randn_like(weight))
            for name, buffer in model.named_buffers():
                if "bias" in name and buffer.is_floating_point():
                    buffer.normal_(0, 0.1)
        return model

    def tower(self):
        """The configuration of the pictures' tower."""
        width = "hidden_size" if self.type == "qwen2_vl" else "out_hidden_size"
        return {**TOWERS[self.type], width: self.config["hidden_size"]}

    def written(self):
        """The keys of the configuration as files have them."""
        if self.type not in TOWERS:
            return self.config
        tower = dict(vision_config=self.tower())
        return dict(self.config, **tower) if self.type in FLAT else dict(tower, text_config=self.config)

    def write(self, folder):
        """Writes the folder as the library saves it, or with the keys as drawn; yields what the reference computes."""
        model = self.model()
        generator = torch.Generator().manual_seed(self.seed)
        ids = torch.randint(3, VOCABULARY, (1, TOKENS), generator=generator)
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0].float().numpy()
        model.save_pretrained(folder)
        if not self.saved:
            names = {"model_type": self.type, "architectures": [type(model).__name__]}
            (folder / "config.json").write_text(json.dumps({**names, **self.written()}, indent=1))
        (folder / "generation_config.json").unlink(missing_ok=True)
        return ids[0].tolist(), logits


def draw(family, rng):
    """Some keys of a family with values other than the base's, which may depend on each other."""
    base, draws = FAMILIES[family]
    changes = {}
    for key in rng.sample(sorted(draws), rng.randint(0, min(MOST_KEYS, len(draws)))):
        changes[key] = settle(rng.choice(draws[key]), rng)
    # A window is only there if the switch is.
    if "sliding_window" in changes and "use_sliding_window" in draws:
        changes["use_sliding_window"] = True
    return Case(family, changes, rng.random() < 0.3, rng.getrandbits(32))


def error(wanted, out):
    got = load_file(out)["logits"]
    if got.shape != wanted.shape or not numpy.isfinite(got).all():
        return float("inf")
    return float(abs(got - wanted).max() / (wanted.max() - wanted.min()))


class Outcome:
    """What the comparisons of a case came to: the largest error of all ways to run it, and why the device was none of them."""

    def __init__(self, worst, not_on_device):
        self.worst, self.not_on_device = worst, not_on_device


class Verdict(Exception):
    """Why a case was not compared: unknown to the reference, or refused by the program."""

    def __init__(self, kind, reason):
        super().__init__(reason)
        self.kind, self.reason = kind, reason


class Program:
    """The program, and the ways in which each case is run."""

    def __init__(self, options):
        self.path, self.gpu, self.converts = options.program, options.gpu, options.convert

    def run(self, arguments):
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            errors = [line for line in lines if line.startswith("error: ")]
            kind = "wrong" if done.returncode < 0 or "panicked" in done.stderr else "refused"
            raise Verdict(kind, (errors or lines)[-1])

    def logits(self, model, ids, out, device):
        ids = ",".join(map(str, ids))
        self.run(["logits", "-m", str(model), "--tokens", ids, "--out", str(out), "--device", device, "--threads", "1"])

    def outcome(self, case):
        """Runs the case in every way. A device that refuses it leaves the other ways to compare."""
        with tempfile.TemporaryDirectory() as scratch:
            folder, out = Path(scratch, "model"), Path(scratch, "logits.safetensors")
            folder.mkdir()
            try:
                ids, wanted = case.write(folder)
            except Exception as unknown:  # noqa: BLE001: whatever the reference says, it knows no such model.
                raise Verdict("unknown", f"{type(unknown).__name__}: {str(unknown).splitlines()[0] if str(unknown) else ''}")
            if not numpy.isfinite(wanted).all():
                raise Verdict("unknown", "the reference is not finite")
            self.logits(folder, ids, out, "cpu")
            worst = error(wanted, out)
            not_on_device = None
            if self.gpu:
                try:
                    self.logits(folder, ids, out, self.gpu)
                    worst = max(worst, error(wanted, out))
                except Verdict as verdict:
                    if verdict.kind != "refused":
                        raise
                    not_on_device = verdict.reason
            if self.converts:
                file = Path(scratch, "model.gguf")
                self.run(["convert", str(folder), "--type", "F32", "--out", str(file)])
                self.logits(file, ids, out, "cpu")
                worst = max(worst, error(wanted, out))
            return Outcome(worst, not_on_device)

    def is_wrong(self, case):
        try:
            return self.outcome(case).worst > TOLERANCE
        except Verdict as verdict:
            return verdict.kind == "wrong"


def shrink(program, case):
    """The fewest changes with which the case is still wrong."""
    changes = dict(case.changes)
    for key in list(changes):
        fewer = {other: value for other, value in changes.items() if other != key}
        if program.is_wrong(Case(case.family, fewer, case.saved, case.seed)):
            changes = fewer
    for key, value in list(changes.items()):
        for inner in list(value) if isinstance(value, dict) else []:
            fewer = {other: kept for other, kept in changes[key].items() if other != inner}
            if program.is_wrong(Case(case.family, {**changes, key: fewer}, case.saved, case.seed)):
                changes = {**changes, key: fewer}
    saved = case.saved and program.is_wrong(Case(case.family, changes, True, case.seed))
    return Case(case.family, changes, saved, case.seed)


def keep(case, folder):
    """Writes a case as a fixture: the folder, and what the reference computes of it."""
    folder.mkdir(parents=True)
    model = case.model()
    ids, logits = case.write(folder)
    layers = {}
    decoder = model.get_decoder()
    decoder = getattr(decoder, "model", decoder)
    for n, layer in enumerate(decoder.h if hasattr(decoder, "h") else decoder.layers):
        layer.register_forward_hook(lambda _, __, out, n=n: layers.__setitem__(n, out[0] if isinstance(out, tuple) else out))
    greedy, margins, all_ids = [], [], torch.tensor([ids])
    with torch.no_grad():
        model(input_ids=all_ids, use_cache=False)
        hidden = torch.stack([layers[n].reshape(TOKENS, -1) for n in sorted(layers)]).float().numpy()
        for _ in range(16):
            last = model(input_ids=all_ids, use_cache=False).logits[0, -1]
            best = last.topk(2)
            greedy.append(int(best.indices[0]))
            margins.append(float(best.values[0] - best.values[1]))
            all_ids = torch.cat([all_ids, torch.tensor([[greedy[-1]]])], dim=1)
    save_file(
        {
            "input_ids": numpy.array(ids, dtype=numpy.int32), "logits": logits, "hidden": hidden,
            "greedy_ids": numpy.array(greedy, dtype=numpy.int32), "greedy_margin": numpy.array(margins, dtype=numpy.float32),
        },
        folder / "expected.safetensors",
    )


def family(program, name, options):
    """Tries a family, tells what is wrong, and yields its row of the table."""
    rng, started = random.Random(f"{options.seed} {name}"), time.monotonic()
    counts, reasons = Counter(), Counter()
    while counts["tried"] < options.count and counts["unknown"] < 5 * options.count:
        case = draw(name, rng)
        try:
            outcome = program.outcome(case)
            kind = "wrong" if outcome.worst > TOLERANCE else "right"
            reason = f"off by {outcome.worst:.2g} of the range"
            if outcome.not_on_device:
                counts["cpu"] += 1
                reasons[f"CPU only: {outcome.not_on_device}"[:200]] += 1
        except Verdict as verdict:
            kind, reason = verdict.kind, verdict.reason
        counts[kind] += 1
        counts["tried"] += kind != "unknown"
        if kind == "refused" or (kind == "unknown" and options.verbose):
            reasons[re.sub(r"\S*/model\b", "model", reason)[:200]] += 1
        if kind == "wrong":
            least = shrink(program, case)
            form = "as saved" if least.saved else "as drawn"
            changes = {key: least.config.get(key, least.changes[key]) for key in least.changes}
            print(f"WRONG {name} ({reason}, {form}, seed {case.seed}): {changes}", flush=True)
            if options.keep:
                keep(least, Path(options.keep, f"{least.type}-{'-'.join(sorted(least.changes)) or 'base'}-{case.seed}"))
    seconds = time.monotonic() - started
    row = [name, counts["tried"], counts["right"], counts["wrong"], counts["refused"], counts["cpu"], f"{seconds:.0f} s"]
    print("| " + " | ".join(map(str, row)) + " |", flush=True)
    for reason, times in reasons.most_common():
        print(f"    {times} x {reason}", flush=True)
    return counts["wrong"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/debug/thermocline")
    parser.add_argument("--count", type=int, default=50, help="configurations of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gpu", nargs="?", const="0", metavar="DEVICE", help="compare on a device, too: the first, or the one named")
    parser.add_argument("--convert", action="store_true", help="compare after conversion, too")
    parser.add_argument("--keep", help="write what is wrong, reduced, as fixtures into this folder")
    parser.add_argument("--verbose", action="store_true", help="say what the reference does not know")
    parser.add_argument("families", nargs="*", default=[], help="all by default")
    options = parser.parse_args()
    if not shutil.which(options.program):
        parser.error(f"--program: no program {options.program}")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print("| family | tried | right | wrong | refused | CPU only | time |\n|---|---|---|---|---|---|---|")
    wrong = sum(family(Program(options), name, options) for name in options.families or FAMILIES)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
