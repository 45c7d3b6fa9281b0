# SPDX-License-Identifier: MIT
"""bench-gpu: images/s of a training step on a GPU, ours and PyTorch's, alternating; and the own kernels
against the speed of memory.

usage: run.py BUILD [--runs N] [--seconds S] [--case a,b] [--precision a,b]

PyTorch runs with the better of its settings (plain, compile). Figures are medians over the runs. Prints a
table and writes BUILD/bench/gpu.jsonl. Without a GPU it prints SKIP and why; without PyTorch ours alone.
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = {"keras_cnn": 256, "resnet20": 256, "resnet50": 128}


def one(command):
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode:
        return None, (r.stderr or r.stdout).strip().splitlines()[-1:] or ["failed"]
    return json.loads(r.stdout.strip().splitlines()[-1]), None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("build")
    p.add_argument("--runs", type=int, default=3)
    p.add_argument("--seconds", default="4")
    p.add_argument("--case", default=",".join(BATCH))
    p.add_argument("--precision", default="bf16,tf32")
    a = p.parse_args()
    ours_bin = f"{a.build}/bench/gpu_step"
    first, why = one([ours_bin, "keras_cnn", "f32", "16", "0.2"])
    if not first:
        print(f"bench-gpu: SKIP: {why[0]}")
        return 0
    print(f"# {first['device']}")
    has_torch = subprocess.run([sys.executable, "-c", "import torch, sys; sys.exit(not torch.cuda.is_available())"],
                               capture_output=True).returncode == 0
    if not has_torch:
        print("# no PyTorch with CUDA here: ours alone")
    os.makedirs(f"{a.build}/bench", exist_ok=True)
    with open(f"{a.build}/bench/gpu.jsonl", "a") as out:
        for case in a.case.split(","):
            for precision in a.precision.split(","):
                mine, theirs, peer = [], {}, None
                for _ in range(a.runs):
                    r, why = one([ours_bin, case, precision, str(BATCH[case]), a.seconds])
                    if not r:
                        print(f"{case} {precision}: {why[0]}")
                        break
                    mine.append(r["images_per_s"])
                    for setting in ("plain", "compile") if has_torch else ():
                        r, why = one([sys.executable, f"{HERE}/torch_side.py", case, precision, str(BATCH[case]),
                                      a.seconds, setting])
                        if r:
                            theirs.setdefault(setting, []).append(r)
                if not mine:
                    continue
                row = {"bench": "gpu", "case": case, "precision": precision, "batch": BATCH[case], "unit": "images/s",
                       "ours": statistics.median(mine), "runs": len(mine), "device": first["device"],
                       "date": datetime.date.today().isoformat()}
                best = max(theirs.values(), key=lambda v: statistics.median(r["images_per_s"] for r in v), default=None)
                if best:
                    row["peer"] = best[0]["peer"]
                    row["theirs"] = statistics.median(r["images_per_s"] for r in best)
                    row["ratio"] = round(row["ours"] / row["theirs"], 3)
                out.write(json.dumps(row) + "\n")
                print(f"{case:10} {precision:5} {row['ours']:12.1f} images/s"
                      + (f"  {row['theirs']:12.1f} {row['peer']}  ratio {row['ratio']}" if best else ""), flush=True)
    return subprocess.run([f"{a.build}/bench/gpu_roofline"]).returncode


sys.exit(main())
