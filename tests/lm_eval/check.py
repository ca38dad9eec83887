"""Holds what lm-evaluation-harness counted against `logits` of the same program. Usage: check.py FOLDER PROGRAM [FLAG ...]"""

import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

folder, program, flags = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
# Of `serve`'s flags, those that `logits` has as well.
KNOWN = ("-m", "--model", "--sidecar", "--activations", "--threads", "-t", "--sparsity")
pairs = [list(pair) for pair in zip(flags, flags[1:]) if pair[0] in KNOWN]
model = sum(pairs, [])
file = sum((pair for pair in pairs if pair[0] in ("-m", "--model")), [])
decoded = "--prompt-chunk" in flags


def call(*args):
    return subprocess.run([program, *args], check=True, capture_output=True, text=True).stdout


def encode(text):
    return json.loads(call("tokenize", *file, "--json", "--", text))["ids"]


def logits(ids, tensor, form, *more):
    """A tensor that `logits` writes for `ids`: its shape and its values."""
    with tempfile.TemporaryDirectory() as place:
        out = place + "/logits"
        call("logits", *model, "--kv-type", "f32", "--tokens", ",".join(map(str, ids)), *more, "--out", out)
        data = pathlib.Path(out).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    info = json.loads(data[8 : 8 + length])[tensor]
    begin, end = info["data_offsets"]
    return info["shape"], struct.unpack(f"<{(end - begin) // 4}{form}", data[8 + length + begin : 8 + length + end])


def log_probabilities(ids, first):
    """Of each of `ids` from the place `first` on, and whether it was the likeliest."""
    (rows, columns), values = logits(ids[:-1], "logits", "f")
    assert rows == len(ids) - 1, (rows, len(ids))
    for at in range(first, len(ids)):
        row = values[(at - 1) * columns : at * columns]
        top = max(row)
        yield row[ids[at]] - top - math.log(sum(math.exp(value - top) for value in row)), row[ids[at]] == top


def samples(task):
    (path,) = folder.rglob(f"samples_{task}_*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def texts(sample, which):
    """The arguments of a request, which the harness logs as a list or by name."""
    arguments = sample["arguments"]
    request = arguments[which] if isinstance(arguments, list) else arguments[f"gen_args_{which}"]
    return list(request.values()) if isinstance(request, dict) else request


worst, count, right = 0.0, 0, 0
for sample in samples("stories_choice"):
    sums = []
    for which, response in enumerate(sample["resps"]):
        context, continuation = texts(sample, which)
        whole, begin = encode(context + continuation), len(encode(context))
        scored = list(log_probabilities(whole, begin))
        sums.append(sum(score for score, _ in scored))
        said = response[0] if isinstance(response[0], list) else response
        score, greedy = float(said[0]), str(said[1]) == "True"
        worst, count = max(worst, abs(score - sums[-1]) / len(scored)), count + 1
        if not decoded:
            assert greedy == all(top for _, top in scored), (context, continuation, said)
    right += sums.index(max(sums)) == int(sample["target"])
    assert sample["acc"] == float(sums.index(max(sums)) == int(sample["target"])), sample
print(f"{count} log likelihoods, {right} of {len(samples('stories_choice'))} choices right; largest difference from `logits`: {worst:.1e} nats a token")
# Token by token, `logits` computes another way.
assert worst < (0.05 if decoded else 1e-4), worst

if not decoded:
    for sample in samples("stories_end"):
        context = texts(sample, 0)[0]
        said = sample["resps"][0][0] if isinstance(sample["resps"][0], list) else sample["resps"][0]
        _, ids = logits(encode(context), "greedy_ids", "i", "--greedy", "24")
        likeliest = json.loads(call("tokenize", *file, "--ids", ",".join(map(str, ids)), "--json"))["text"]
        assert said == likeliest.split(".")[0], (context, said, likeliest)
    print(f"{len(samples('stories_end'))} generated texts are those of `logits --greedy`")
