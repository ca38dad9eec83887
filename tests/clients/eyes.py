"""Makes a folder with two models of tests/fixtures: one that sees pictures, and a reranker.

Usage: eyes.py FOLDER
"""

import json
import shutil
import sys
from pathlib import Path

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
# The token in whose place pictures are: </s>, which the template writes.
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
    "{{ eos_token if p.type == 'image' else p.text }}{% endfor %}{% endif %}\n{% endfor %}"
)


def set_value(file, key, value):
    values = json.loads(file.read_text())
    values[key] = value
    file.write_text(json.dumps(values))


folder = Path(sys.argv[1])
shutil.copytree(FIXTURES / "encoders" / "bert-reranker", folder / "reranker")
eyes = folder / "eyes"
shutil.copytree(FIXTURES / "towers" / "qwen3-vl", eyes)
set_value(eyes / "config.json", "image_token_id", 1)
set_value(eyes / "tokenizer_config.json", "chat_template", TEMPLATE)
