#!/usr/bin/env python3
"""Checks what a driver's compiler made of the kernels, and prints a table of it.

usage: kernel_mix.py STATISTICS LIST ISA_FOLDER [BUDGET]

STATISTICS is what pipeline_stats printed, LIST what the example `spirv` printed, ISA_FOLDER the machine code in RADV's syntax.
Of kernels of weights it counts the vector instructions of the main loop, the innermost one with the most loads, per byte of
weights; a 32-bit multiplication counts four times. BUDGET has lines "variant TAB type TAB most instructions per byte"; with
it, more than that, scratch memory and spilled registers are errors; lost integer products always are.
"""
import collections
import os
import re
import sys

# Rows whose weights an invocation reads in a turn of the main loop.
ROWS = {
    "gemv-w128r4": 4,
    "gemv-w128r4t2": 4,
    "gemv_dot-w128r4": 4,
    "gemv_dot-w128r4t4": 4,
    "sparse_gate_up-dense": 4,
    "sparse_down-all": 4,
    "sparse_down-fired": 4,
}


def natural_loops(order, successors):
    """The bodies of the loops of blocks in this order, as sets."""
    before = collections.defaultdict(set)
    for block, followers in successors.items():
        for follower in followers:
            before[follower].add(block)
    place = {block: at for at, block in enumerate(order)}
    bodies = {}
    for block in order:
        for head in successors[block]:
            if place[head] > place[block]:
                continue
            body, todo = bodies.setdefault(head, {head}), [block]
            while todo:
                at = todo.pop()
                if at not in body:
                    body.add(at)
                    todo += before[at]
    return list(bodies.values())


def blocks_of(path):
    blocks, at = collections.OrderedDict(), None
    with open(path, "rb") as file:
        text = file.read().replace(b"\0", b"").decode("utf8", "replace")
    for line in text.splitlines():
        line = line.split(";")[0].strip()
        if re.match(r"BB\d+:$", line):
            at = line[:-1]
            blocks[at] = []
        elif at and line:
            blocks[at].append(line)
    return blocks


def main_loop(blocks):
    order, successors = list(blocks), {}
    for i, block in enumerate(order):
        jumps = [re.match(r"s_c?branch\S*\s+(BB\d+)", line) for line in blocks[block]]
        falls = not any(re.match(r"s_(branch|endpgm)\b", line) for line in blocks[block][-1:])
        to = [jump.group(1) for jump in jumps if jump and jump.group(1) in blocks]
        successors[block] = to + (order[i + 1 : i + 2] if falls else [])
    loads = lambda body: sum(bool(LOAD.match(line)) for block in body for line in blocks[block])
    loops = natural_loops(order, successors)
    inner = [body for body in loops if not any(other < body and loads(other) for other in loops)]
    best = max(inner, key=loads, default=set())
    return [line for block in order if block in best for line in blocks[block]]


LOAD = re.compile(r"(buffer|global)_load_(\S+)")


def mix_of(lines):
    """Counts of a loop's instructions, and loads before the first wait for one."""
    mix, waited = collections.Counter(), False
    for line in lines:
        op, load = line.split()[0], LOAD.match(line)
        if load:
            mix["wide" if load.group(2) in ("dwordx4", "b128") else "loads"] += 1
            mix["flight"] += not waited
        elif op.startswith("v_"):
            mix["vector"] += 4 if "mul_lo" in op or "mul_hi" in op else 1
            mix["dot"] += "dot4" in op
        elif "waitcnt" in op and "vmcnt" in line:
            mix["waits"] += 1
            waited = waited or mix["flight"] > 0
    return mix


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    statistics, listed, folder = sys.argv[1:4]
    places = {}
    for line in open(listed):
        path, _, _, _, place = line.rstrip("\n").split("\t")
        places[os.path.basename(path)] = float(place)
    budget = {}
    for line in open(sys.argv[4]) if len(sys.argv) > 4 else []:
        if line.strip() and not line.startswith("#"):
            variant, ty, most = line.split()
            budget[f"{variant}-{ty}"] = float(most)
    errors, notes, seen, rows = [], [], set(), []
    for line in open(statistics):
        label, *pairs = line.rstrip("\n").split("\t")
        values = dict(pair.split("=", 1) for pair in pairs)
        seen.add(label)
        if "FAILED" in values:
            errors.append(f"{label}: the driver does not compile it ({values['FAILED']})")
            continue
        for name in ("Scratch size", "Spilled VGPRs", "Spilled SGPRs"):
            # Scalar registers are spilled to lanes of vector registers, not to memory.
            if name != "Spilled SGPRs" and float(values.get(name, 0)):
                (errors if budget else notes).append(f"{label}: {name} {values[name]}")
        code = [name for name in (f"{label}.0.2.txt",) if os.path.exists(os.path.join(folder, name))]
        variant, _, ty = label.rpartition("-")
        if label.startswith("gemv_dot") and code:
            with open(os.path.join(folder, code[0]), "rb") as file:
                if b"v_dot4" not in file.read():
                    errors.append(f"{label}: no v_dot4, the integer products are lost")
        if variant not in ROWS or not code:
            continue
        mix = mix_of(main_loop(blocks_of(os.path.join(folder, code[0]))))
        per_byte = mix["vector"] / (ROWS[variant] * places[label])
        rows.append((variant, ty, per_byte, mix, values.get("VGPRs", "?")))
        if label in budget and per_byte > budget[label] + 0.05:
            errors.append(f"{label}: {per_byte:.2f} vector instructions per byte, at most {budget[label]} are expected")
    errors += [f"{label}: in the table, but not compiled" for label in budget if label not in seen]
    print("| kernel | weights | vector instructions per byte | loads of 16 bytes, others | before the first wait | VGPRs |")
    print("|---|---|---|---|---|---|")
    for variant, ty, per_byte, mix, registers in rows:
        loads = f"{mix['wide']}, {mix['loads']}"
        print(f"| {variant} | {ty} | {per_byte:.1f} | {loads} | {mix['flight']} | {registers} |")
    print(f"\n{len(seen)} variants compiled")
    for note in notes:
        print(f"note: {note}")
    for error in errors:
        print(f"error: {error}")
    sys.exit(bool(errors))


main()
