#!/usr/bin/env python3
"""Writes assets/licences.txt: the crates that the program contains, their licences, and the texts of these.

Run it before a release: python3 packaging/licences.py. It asks cargo for the packages of Cargo.lock, on every platform, and reads the
licence files of their sources. Of several licences that one may choose from, the text of the MIT licence is taken where there is one.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "assets" / "licences.txt"
FIRST = ("license-mit", "licence-mit", "mit", "license.mit")
STARTS = ("license", "licence", "copying", "unlicense", "mit", "notice")


def packages():
    """The packages that the program contains, sorted by name."""
    made = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked"], cwd=ROOT, check=True, capture_output=True)
    metadata = json.loads(made.stdout)
    by_id = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in metadata["packages"] if package["name"] == "thermocline"]
    seen = set()
    while waiting:
        found = waiting.pop()
        if found in seen:
            continue
        seen.add(found)
        parts = nodes[found]["deps"]
        waiting += [part["pkg"] for part in parts if any(kind["kind"] is None for kind in part["dep_kinds"])]
    contained = [by_id[found] for found in seen if by_id[found]["source"]]
    return sorted(contained, key=lambda package: (package["name"], package["version"]))


def text_of(package):
    """The text of a package's licence; empty where it has no file of it."""
    folder = Path(package["manifest_path"]).parent
    names = [name for name in sorted(os.listdir(folder)) if name.lower().startswith(STARTS) and (folder / name).is_file()]
    names = [name for name in names if not name.lower().endswith((".rs", ".toml"))]
    names.sort(key=lambda name: not name.lower().startswith(FIRST))
    return (folder / names[0]).read_text(errors="replace").strip() if names else ""


def main():
    found = packages()
    lines = [f"{package['name']} {package['version']}: {package['license'] or 'see its repository'}" for package in found]
    texts = {}
    for package in found:
        text = "\n".join(line.strip() for line in text_of(package).splitlines())
        if text:
            texts.setdefault(" ".join(text.split()), (text, []))[1].append(package["name"])
    parts = ["\n".join(lines)]
    for text, names in sorted(texts.values(), key=lambda it: it[1]):
        head = textwrap.fill(", ".join(names), 110)
        parts.append(f"{head}\n\n{text}")
    OUT.write_text(("\n\n" + "-" * 40 + "\n\n").join(parts) + "\n")
    print(f"{OUT}: {len(found)} crates, {len(texts)} texts, {OUT.stat().st_size} bytes", file=sys.stderr)


main()
