# SPDX-License-Identifier: MIT
"""tap.py: results in TAP, as tests/tap.sh gives them from shell."""
import sys


class Tap:
    def __init__(self):
        self.n = 0
        self.failed = 0
        self.prefix = ""

    def ok(self, good, name, *why):
        """why: shown, line by line, where it is not good."""
        self.n += 1
        text = f"{self.prefix}{name}".replace("#", "")
        print(f"{'ok' if good else 'not ok'} {self.n} - {text}", flush=True)
        if not good:
            self.failed += 1
            self.note(f"failed: {text}")
            for part in why:
                self.note(part)
        return bool(good)

    def equal(self, got, wanted, name):
        return self.ok(got == wanted, name, f"got {got!r}, wanted {wanted!r}")

    @staticmethod
    def note(text):
        """To standard error, as harnesses show that only."""
        for line in str(text).splitlines():
            print(f"# {line}"[:400], file=sys.stderr, flush=True)

    def done(self):
        print(f"1..{self.n}", flush=True)
        return 1 if self.failed else 0


def bail(why):
    print(f"Bail out! {why}", flush=True)
    sys.exit(1)
