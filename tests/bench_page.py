"""Writes the results of tests/bench.sh into the page of benchmarks and its CSV.

Usage: python3 bench_page.py RESULTS FOLDER SECTIONS [quick]
  RESULTS  N.json (`thermocline bench -o json`) beside N.label (the section of the page and the label of the rows); results with the
           same label form one group
  FOLDER   of benchmarks.md, whose tables stand between `<!-- begin SECTION -->` and `<!-- end SECTION -->`, and benchmarks.csv
  SECTIONS  the measured sections, in one argument; the tables and rows of other sections stay unchanged
  quick    the shapes are too small to judge the figures
Exits with 1 if a prompt in some mode is slower than the limit. Both files are written first.
"""

import csv
import json
import pathlib
import statistics
import sys


def speed(mean, deviation):
    digits = 1 if mean >= 10 else 2
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def peer_cells(record):
    """The peer's speed and the ratio with the least and the most; empty without a peer."""
    peer = record["thermocline"].get("peer")
    if peer is None:
        return ["", ""]
    ratios = peer["ratios"]
    return [speed(peer["avg_ts"], peer["stddev_ts"]), f"{peer['ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]


def fraction(value):
    return "" if value is None else f"{value * 100:.0f} %"


def dense_rows(label, records):
    """One row per weight type: generated tokens and the prompt side by side."""
    tokens = next(r for r in records if r["n_gen"] > 0)
    prompt = next((r for r in records if r["n_prompt"] > 0), None)
    row = [label, speed(tokens["avg_ts"], tokens["stddev_ts"]), *peer_cells(tokens)]
    row.append(fraction(tokens["thermocline"]["bandwidth_share"]))
    row += [speed(prompt["avg_ts"], prompt["stddev_ts"]), *peer_cells(prompt)] if prompt else ["", "", ""]
    return [row]


def sparse_rows(label, records):
    """One row per sparsity mode; the label stands in the first."""
    rows = []
    for record in records:
        mode = f"`{record['thermocline']['sparsity']}`"
        cells = [speed(record["avg_ts"], record["stddev_ts"]), *peer_cells(record)]
        rows.append(["" if rows else label, mode, *cells, fraction(record["thermocline"]["bandwidth_share"])])
    return rows


# Least speed of a prompt in any mode, as a fraction of the speed of the same prompt in `dense`.
LEAST_OF_DENSE = 0.97


def of_dense(records):
    """Each mode's record with its speed as a fraction of the speed in `dense`. The records must include `dense`."""
    dense = next(r for r in records if r["thermocline"]["sparsity"] == "dense")
    return [(r, r["avg_ts"] / dense["avg_ts"]) for r in records if r is not dense]


def prompt_rows(label, records):
    """One row per mode: the prompt's speed beside the speed in `dense`."""
    dense = next(r for r in records if r["thermocline"]["sparsity"] == "dense")
    return [
        ["" if at else label, f"`{r['thermocline']['sparsity']}`", speed(r["avg_ts"], r["stddev_ts"]),
         speed(dense["avg_ts"], dense["stddev_ts"]), f"{ratio:.2f}"]
        for at, (r, ratio) in enumerate(of_dense(records))
    ]


def passes_rows(label, records):
    """One row per number of tokens; the label stands in the first."""
    return [
        ["" if at else label, str(r["n_prompt"]), speed(r["avg_ts"], r["stddev_ts"]), *peer_cells(r)]
        for at, r in enumerate(records)
    ]


def streams_rows(label, records):
    """One row per number of streams: medians of the turns' tokens per second, ours and the peer's."""
    ours, peer = {}, {}
    for record in records:
        if "streams" in record:
            ours.setdefault(record["streams"], []).append(record["decode_ts"])
        else:
            peer.setdefault(record["pl"], []).append(record["speed_tg"])
    rows, one = [], None
    for streams, speeds in ours.items():
        here = statistics.median(speeds)
        if not here:
            # The first answers ended before the last began.
            continue
        one = one or here
        there = statistics.median(peer[streams]) if streams in peer else None
        cells = [f"{here:.1f}", f"{here / one:.2f}", f"{there:.1f}" if there else "", f"{here / there:.2f}" if there else ""]
        rows.append(["" if rows else label, str(streams), *cells])
    return rows


DENSE_HEADS = ["weights", "decoding, t/s", "llama.cpp", "ratio", "share of read bandwidth", "prompt, t/s", "llama.cpp", "ratio"]
SPARSE_HEADS = ["firing neurons", "mode", "t/s", "llama.cpp", "ratio", "share of read bandwidth"]
# Heads, the function that makes rows, columns of text.
SECTIONS = {
    "dense": (DENSE_HEADS, dense_rows, 1),
    "passes": (["weights", "tokens per pass", "t/s", "llama.cpp", "ratio"], passes_rows, 1),
    "streams": (["weights", "streams", "total t/s", "relative to one stream", "llama.cpp", "ratio"], streams_rows, 1),
    "families": (["model", *DENSE_HEADS[1:]], dense_rows, 1),
    "sparse": (SPARSE_HEADS, sparse_rows, 2),
    "moe": (SPARSE_HEADS, sparse_rows, 2),
    "prompts": (["model", "mode", "prompt, t/s", "`dense`", "ratio"], prompt_rows, 2),
}


def table(heads, rows, texts):
    rule = ["---"] * texts + ["---:"] * (len(heads) - texts)
    lines = ["| " + " | ".join(heads) + " |", "|" + "|".join(rule) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def replace_section(page, name, text):
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        sys.exit(f"bench_page.py: benchmarks.md: expected one '{begin}' and one '{end}'")
    head, rest = page.split(begin)
    return f"{head}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def rows_of_others(path, chart):
    """Rows of the CSV that were not measured again."""
    if not path.exists():
        return []
    measured = {row[0] for row in chart}
    with open(path, newline="") as file:
        return [row for row in list(csv.reader(file))[1:] if row[0] not in measured]


def main(results, folder, wanted, quick=False):
    sections = {name: [] for name in wanted.split()}
    chart, slow, measured = [], [], {}
    for path in sorted(pathlib.Path(results).glob("*.json")):
        of = tuple(path.with_suffix(".label").read_text().splitlines())
        measured.setdefault(of, []).extend(json.loads(path.read_text()))
    for (section, label), records in measured.items():
        sections[section] += SECTIONS[section][1](label, records)
        if section == "prompts":
            slow += [f"{label}, {r['thermocline']['sparsity']}: {x:.2f}" for r, x in of_dense(records) if x < LEAST_OF_DENSE]
        for record in (r for r in records if r.get("n_gen", 0) > 0 and section != "streams"):
            mode = record["thermocline"]["sparsity"]
            name = label if section in ("dense", "families") else f"{'MoE, ' if section == 'moe' else ''}{label} fire, {mode}"
            ratio = record["thermocline"].get("peer", {}).get("ratio", "")
            chart.append([name, f"{record['avg_ts']:.2f}", f"{ratio:.2f}" if ratio else ""])

    page_path = pathlib.Path(folder, "benchmarks.md")
    page = page_path.read_text()
    for name, rows in sections.items():
        if not rows:
            sys.exit(f"bench_page.py: the section {name} has no result")
        heads, _, texts = SECTIONS[name]
        page = replace_section(page, name, table(heads, rows, texts))
    page_path.write_text(page)
    csv_path = pathlib.Path(folder, "benchmarks.csv")
    others = rows_of_others(csv_path, chart) if len(sections) < len(SECTIONS) else []
    with open(csv_path, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["weights and mode", "tokens per second", "times llama.cpp"])
        out.writerows(others + chart)
    if slow and not quick:
        sys.exit(f"bench_page.py: prompts are slower than {LEAST_OF_DENSE} of their speed in `dense`: {'; '.join(slow)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
