# SPDX-License-Identifier: MIT
"""bench-gpu: images/s of a training step on a GPU, ours and PyTorch's in turns; the own kernels against the speed of
memory; all-reduces where there are several GPUs.

usage: run.py BUILD [--budget SECONDS] [--seconds S] [--case a,b] [--precision a,b] [--trial]

Ours is measured before and after PyTorch, whose better setting (plain, compile with CUDA graphs) counts. What does not
fit into the budget (420 s) is left out by name, and so are comparisons where PyTorch, or a second GPU, is not there.
Prints tables and writes BUILD/bench/gpu.jsonl. Without a GPU it prints SKIP and why.
--trial: small sizes, to see on simulated libraries that all of it runs; the figures mean nothing and are not written.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {"keras_cnn": 256, "resnet20": 256, "resnet50": 128}
NO_GPU = 77


def run(command, limit):
    """(exit status, output lines, the last line of what it complained of); a limit that has passed is status 124"""
    try:
        r = subprocess.run(command, capture_output=True, text=True, timeout=max(limit, 1))
    except subprocess.TimeoutExpired as late:
        out = late.stdout or b""
        return 124, (out if isinstance(out, str) else out.decode()).splitlines(), "no time left"
    complaint = (r.stderr.strip() or r.stdout.strip() or f"ended with {r.returncode}").splitlines()[-1]
    return r.returncode, r.stdout.splitlines(), complaint


class Bench:
    def __init__(self, a):
        self.a, self.begin, self.failed = a, time.monotonic(), False
        self.device, self.why_not = None, None
        self.batch = dict.fromkeys(BATCH, 2) if a.trial else BATCH
        os.makedirs(f"{a.build}/bench", exist_ok=True)
        self.out = open(os.devnull if a.trial else f"{a.build}/bench/gpu.jsonl", "a")

    def left(self):
        return self.a.budget - (time.monotonic() - self.begin)

    def fail(self, what, why):
        print(f"{what}: FAILED: {why}", flush=True)
        self.failed = True

    def record(self, row):
        row |= {"device": self.device, "date": datetime.date.today().isoformat()}
        self.out.write(json.dumps(row) + "\n")
        self.out.flush()

    def ours(self, case, precision, batch, seconds):
        rc, lines, why = run([f"{self.a.build}/bench/gpu_step", case, precision, str(batch), str(seconds)], self.left())
        return (json.loads(lines[-1]), None) if rc == 0 else (None, (rc, why))

    def kernels(self):
        rc, lines, why = run([f"{self.a.build}/bench/gpu_roofline"] + ["small"] * self.a.trial, self.left())
        print("\n".join(lines), flush=True)
        if rc:
            return self.fail("own kernels", why)
        for line in lines:
            m = re.match(r"(.+?)  +(f32|f16|bf16) +([\d.]+) us +([\d.]+) GB/s +([\d.]+) % of the copy", line)
            if m:
                self.record({"bench": "gpu-kernel", "kernel": m[1], "type": m[2], "unit": "GB/s", "ours": float(m[4]),
                             "share": float(m[5]) / 100})

    def theirs(self, case, precision):
        """The better of PyTorch's settings, or None and why."""
        if self.why_not:
            return None, self.why_not
        rc, lines, why = run([sys.executable, f"{HERE}/torch_side.py", case, precision, str(self.batch[case]),
                              str(self.a.seconds), "plain", "compile"], self.left() - 2 * (self.a.seconds + 10))
        rows = [json.loads(text) for text in lines if text.startswith("{")]
        if not rows:
            return None, why
        if len(rows) < 2:
            print(f"# {case} {precision}: PyTorch's compile is left out: {why}")
        return max(rows, key=lambda r: r["images_per_s"]), None

    def step(self, case, precision):
        what = f"{case} {precision}"
        if self.left() < 2 * (self.a.seconds + 10):
            print(f"{what}: SKIP: no time left of {self.a.budget:.0f} s")
            return
        first, why = self.ours(case, precision, self.batch[case], self.a.seconds)
        if not first:
            return self.fail(what, why[1])
        peer, why = self.theirs(case, precision)
        again, late = self.ours(case, precision, self.batch[case], self.a.seconds)
        if not again:
            return self.fail(what, late[1])
        ours = (first["images_per_s"] + again["images_per_s"]) / 2
        row = {"bench": "gpu-step", "case": case, "precision": precision, "batch": self.batch[case], "unit": "images/s",
               "ours": round(ours, 1), "runs": [first["images_per_s"], again["images_per_s"]]}
        text = f"{case:10} {precision:5} {ours:12.1f} images/s"
        if peer:
            row |= {"peer": peer["peer"], "theirs": peer["images_per_s"], "ratio": round(ours / peer["images_per_s"], 3)}
            text += f"  {row['theirs']:12.1f} {row['peer']}  ratio {row['ratio']}"
        else:
            text += f"  PyTorch: SKIP: {why}"
        self.record(row)
        print(text, flush=True)

    def all_reduce(self):
        """merge_perf's own table, for all numbers of GPUs that are powers of two."""
        n = 2
        while self.left() > 10:
            rc, lines, why = run([f"{self.a.build}/bin/merge_perf", "--level", "intra", "--gpus", "-t", str(n), "-b", "1M",
                                  "-e", "1M" if self.a.trial else "64M", "-f", "8", "-n", "20", "-w", "5"], min(self.left(), 60))
            if rc:
                if n == 2:
                    print(f"all-reduce: SKIP: {why}")
                return
            print("\n".join([f"all-reduce of {n} GPUs"] + lines), flush=True)
            n *= 2


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--budget", type=float, default=420)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--case", default=",".join(BATCH))
    p.add_argument("--precision", default="bf16,tf32")
    p.add_argument("--trial", action="store_true")
    b = Bench(p.parse_args())
    first, why = b.ours("keras_cnn", "f32", 16, 0.2)
    if not first and why[0] == NO_GPU:
        print(f"bench-gpu: SKIP: {why[1]}")
        return 0
    if not first:
        b.fail("bench-gpu", why[1])
        return 1
    b.device = first["device"]
    print(f"# {b.device}", flush=True)
    rc, _, why = run([sys.executable, "-c", "import torch, sys; torch.cuda.is_available() or sys.exit('no CUDA in it')"], 60)
    if rc:
        b.why_not = f"no PyTorch with CUDA for {sys.executable}: {why}"
        print(f"# comparison with PyTorch: SKIP: {b.why_not}")
    b.kernels()
    for precision in b.a.precision.split(","):
        for case in b.a.case.split(","):
            b.step(case, precision)
    b.all_reduce()
    return b.failed


sys.exit(main())
