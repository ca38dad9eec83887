"""Asks for an answer by every schema of a folder of the JSON-Schema-Test-Suite. Usage: json_schema.py URL FOLDER"""

import collections
import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

import jsonschema

url, folder = sys.argv[1], pathlib.Path(sys.argv[2])
TRIES = 2  # answers by a schema, with other seeds


def ask(schema, seed):
    """The status, and the answer with its end or the refusal."""
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "max_tokens": 96, "temperature": 1, "seed": seed,
    }
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            choice = json.load(response)["choices"][0]
            return 200, (choice["message"]["content"], choice["finish_reason"])
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


counts, refusals, wrong, longest = collections.Counter(), collections.Counter(), [], 0.0
for path in sorted(folder.glob("*.json")):
    for group in json.loads(path.read_text()):
        schema, name = group["schema"], f"{path.stem}: {group['description']}"
        counts["schemas"] += 1
        verdicts = set()
        for seed in range(TRIES):
            began = time.monotonic()
            status, said = ask(schema, seed)
            longest = max(longest, time.monotonic() - began)
            if status == 400:
                verdicts.add("refused")
                refusals[path.stem] += 1
                break
            assert status == 200, (name, status, said)
            text, end = said
            if end == "length":
                verdicts.add("unfinished")
                continue
            try:
                jsonschema.validators.validator_for(schema)(schema).validate(json.loads(text))
                verdicts.add("right")
            except Exception as error:  # of the text, or of a schema that refers to what only the suite's own server has
                verdicts.add("wrong")
                wrong.append(f"{name}: {text[:80]!r}: {str(error).splitlines()[0][:100]}")
        verdict = next(kind for kind in ("refused", "wrong", "right", "unfinished") if kind in verdicts)
        counts[verdict] += 1

total = counts["schemas"]
for kind in ("right", "unfinished", "refused", "wrong"):
    print(f"{kind:<11} {counts[kind]:>4} of {total}  {100 * counts[kind] / total:5.1f} %")
print(f"longest request {longest:.2f} s")
print("refused by keyword: " + ", ".join(f"{name} {count}" for name, count in refusals.most_common(12)))
for line in wrong[:20]:
    print("wrong: " + line)
