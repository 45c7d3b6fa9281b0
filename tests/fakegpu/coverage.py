#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""coverage.py: how much of the CUDA back end the tests on simulated GPUs have run, line by line.

usage: coverage.py BUILD [--list]

BUILD holds objects that were built with --coverage and what their runs have left (*.gcda). The host part
(kernels/cuda/*.c, *.cu and headers, nccl_merge/nccl) and the kernels (*.cuh, compiled for the processor) are counted
apart. Prints a table; fails below 90 % of either, where a whole file was never run, and where lines were not run that
tests/fakegpu/uncovered gives no reason for. --list prints the lines that were not run, and reasons without a line.
"""
import fnmatch
import glob
import json
import os
import re
import subprocess
import sys

LEAST = 90.0
HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
FOLDERS = ("kernels/cuda/", "nccl_merge/nccl/")


def counts(build):
    """{file: {line: times}}"""
    found = {}
    notes = glob.glob(f"{build}/**/*.gcno", recursive=True)
    notes = [os.path.abspath(n) for n in notes]
    r = subprocess.run([os.environ.get("GCOV", "gcov"), "--json-format", "--stdout", *notes], cwd=TOP,
                       capture_output=True, text=True)
    if r.returncode:
        sys.exit("coverage: gcov: " + r.stderr.strip()[-500:])
    for text in r.stdout.splitlines():
        if not text.startswith("{"):
            continue
        for file in json.loads(text)["files"]:
            name = os.path.relpath(os.path.join(TOP, file["file"]), TOP)
            if not name.startswith(FOLDERS):
                continue
            lines = found.setdefault(name, {})
            for line in file["lines"]:
                n = line["line_number"]
                lines[n] = lines.get(n, 0) + line["count"]
    return found


def reasons():
    """[(files, lines, reason)]: what tests/fakegpu/uncovered says"""
    out = []
    with open(f"{HERE}/uncovered") as f:
        for n, line in enumerate(f, 1):
            line = line.rstrip("\n")
            if not line or line.startswith("#"):
                continue
            parts = [p for p in line.split("\t") if p]
            if len(parts) != 3:
                sys.exit(f"coverage: tests/fakegpu/uncovered:{n}: three fields, apart by tabs")
            out.append((parts[0], re.compile(parts[1]), parts[2]))
    return out


def unexplained(file, missed, why, used):
    """Of the lines that were not run, those that no reason is given for."""
    with open(os.path.join(TOP, file)) as f:
        text = f.read().split("\n")
    out = []
    for n in missed:
        mine = [k for k, (files, lines, _) in enumerate(why)
                if fnmatch.fnmatch(file, files) and lines.search(text[n - 1].strip())]
        used.update(mine)
        if not mine:
            out.append(n)
    return out


def ranges(numbers):
    out = []
    for n in sorted(numbers):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def main():
    found, why, bad = counts(os.path.abspath(sys.argv[1])), reasons(), []
    kernel = {f: v for f, v in found.items() if f.endswith(".cuh")}
    host = {f: v for f, v in found.items() if f not in kernel}
    missed = {f: [n for n, c in v.items() if not c] for f, v in found.items()}
    for what, files in (("host part", host), ("kernels", kernel)):
        print(f"{'lines':>7} {'run':>6} {'%':>6}  {what}")
        lines = run = 0
        for f in sorted(files):
            n, hit = len(files[f]), len(files[f]) - len(missed[f])
            lines, run = lines + n, run + hit
            print(f"{n:7} {hit:6} {100 * hit / n:6.1f}  {f}"
                  + (f": {ranges(missed[f])}" if missed[f] and "--list" in sys.argv else ""))
            if not hit:
                bad.append(f"nothing of {f} was run")
        share = 100 * run / max(lines, 1)
        print(f"{lines:7} {run:6} {share:6.1f}  all of the {what}\n")
        if share < LEAST:
            bad.append(f"{share:.1f} % of the {what} were run, {LEAST:.0f} % are asked for")
    used = set()
    for f in sorted(found):
        left = unexplained(f, missed[f], why, used)
        if left:
            bad.append(f"{f}: lines {ranges(left)} were not run, and tests/fakegpu/uncovered gives no reason")
    if "--list" in sys.argv:
        for k, (files, lines, _) in enumerate(why):
            if k not in used:
                print(f"no line that was not run: {files} {lines.pattern}")
    for text in bad:
        print("coverage: " + text)
    sys.exit(1 if bad else 0)


main()
