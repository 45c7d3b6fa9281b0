# SPDX-License-Identifier: MIT
"""cases.py: `make check-cluster-sql`: a cluster of three hosts, and case after case on it.
  run cases.py [NAME...]   names of cases or of their files (plain, daemon, link, ...); --list"""
import sys
import time
import traceback

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

FILES = [case_rig, case_plain, case_rows, case_feed, case_daemon, case_link, case_database, case_hostile]


def chosen(words):
    for file in FILES:
        for case in file.CASES:
            if not words or case.__name__ in words or file.__name__.removeprefix("case_") in words:
                yield case


def main():
    if "--list" in sys.argv:
        print("\n".join(f"{f.__name__.removeprefix('case_')}: {c.__name__}" for f in FILES for c in f.CASES))
        return 0
    tap = Tap()
    lab = Lab(3, tap)
    lab.warm_up()
    for case in chosen(sys.argv[1:]):
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
