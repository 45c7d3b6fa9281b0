# SPDX-License-Identifier: MIT
"""cases.py: `make check-cluster-sql`: a cluster of three hosts, and case after case on it.
  run cases.py [NAME...]   names of cases, of their files (plain, daemon, link, ...), or numbers of parts that
                           last about equally long; --list"""
import sys
import time
import traceback

import case_admission
import case_daemon
import case_database
import case_feed
import case_hostile
import case_link
import case_plain
import case_rig
import case_rows
from fault import Broken
from lab import Lab
from tap import Tap, bail

PARTS = {"1": [case_rig, case_admission], "2": [case_daemon, case_rows], "3": [case_hostile, case_feed],
         "4": [case_plain, case_link, case_database]}


def all_cases():
    """(part, file, case)"""
    for part, files in PARTS.items():
        for file in files:
            for case in file.CASES:
                yield part, file.__name__.removeprefix("case_"), case


def chosen(words):
    for part, file, case in all_cases():
        if not words or {part, file, case.__name__} & set(words):
            yield case


def main():
    if "--list" in sys.argv:
        print("\n".join(f"{part} {file}: {case.__name__}" for part, file, case in all_cases()))
        return 0
    cases = list(chosen(sys.argv[1:]))
    if not cases:
        bail(f"no case is named {sys.argv[1:]}; --list shows all")
    tap = Tap()
    lab = Lab(3, tap)
    lab.warm_up()
    for case in cases:
        start = time.monotonic()
        for h in lab.hosts:
            h.mark()
        try:
            case(lab)
        except Broken:
            tap.prefix = ""
        except Exception:
            tap.ok(False, f"{case.__name__} runs to its end", traceback.format_exc())
            lab.explain()
        tap.prefix = ""
        lab.repair()
        print(f"# {case.__name__}: {time.monotonic() - start:.1f} s", flush=True)
    lab.close()
    return tap.done()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        bail("interrupted")
