# SPDX-License-Identifier: MIT
"""bench-train: images/s of a training step, ours and PyTorch's, alternating, on the same rows.

usage: run.py BUILD [--runs N] [--threads 1,2] [--case keras_cnn,resnet20] [--metric wall|cpu]

Both sides train real shuffled uint8 rows after one warm-up epoch. PyTorch runs with the best of its
settings (memory layout, compile, OMP_WAIT_POLICY), found by one short run each. Figures are medians
over the runs; 'cpu' counts images per second of processor time and is for machines that do other
things too. Prints a table and writes BUILD/bench/train.jsonl. Quote the ratios, not the figures.
"""
import argparse
import datetime
import gzip
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
FASHION = "/usr/share/datasets/fashion-mnist/"
CIFAR = os.environ.get("CIFAR10_JPEG", "../shared/data/cifar10-jpeg.tar.zst")
CASES = {"keras_cnn": (28, 28, 1, 12800), "resnet20": (32, 32, 3, 5120)}
SETTINGS = [(s, p) for s in ("plain", "last", "last+compile") for p in ("PASSIVE", "ACTIVE")]


def fashion(rows):
    x = gzip.open(FASHION + "train-images-idx3-ubyte.gz").read()[16:]
    y = gzip.open(FASHION + "train-labels-idx1-ubyte.gz").read()[8:]
    return x[: rows * 784] + y[:rows]


def cifar(rows):
    """The first images of each class, mixed by a fixed seed."""
    from PIL import Image

    text = subprocess.run(["zstd", "-dc", CIFAR], check=True, stdout=subprocess.PIPE).stdout
    tar, found = tarfile.open(fileobj=io.BytesIO(text)), {}
    for member in tar:
        parts = member.name.split("/")
        if member.isfile() and parts[0] == "train":
            files = found.setdefault(parts[1], [])
            if len(files) < rows // 10:
                files.append(tar.extractfile(member).read())
    pairs = [(f, k) for k, c in enumerate(sorted(found)) for f in found[c]]
    random.Random(1).shuffle(pairs)
    pixels = b"".join(Image.open(io.BytesIO(f)).convert("RGB").tobytes() for f, _ in pairs)
    return pixels + bytes(k for _, k in pairs)


def prepare(build, case):
    """The raw file of a case; without CIFAR-10 ResNet-20 trains on made-up rows, and says so."""
    h, w, c, rows = CASES[case]
    path, note = f"{build}/bench/{case}.u8", ""
    if case == "resnet20" and not os.path.exists(CIFAR):
        path, note = path + ".random", f"{CIFAR} is not there: random rows"
    if not os.path.exists(path):
        if note:
            data = random.Random(1).randbytes(rows * h * w * c) + bytes(i % 10 for i in range(rows))
        else:
            data = fashion(rows) if case == "keras_cnn" else cifar(rows)
        with open(path + ".part", "wb") as f:
            f.write(data)
        os.rename(path + ".part", path)
    return path, note


def one(command, epochs, metric, **env):
    """Median over the epochs after the warm-up."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env={**os.environ, **env}, timeout=900)
    lines = [l.split() for l in result.stdout.splitlines()]
    column = 3 if metric == "wall" else 5
    rates = [float(l[column]) for l in lines if l and l[0] == "epoch"]
    version = [l[1] for l in lines if l and l[0] == "version"]
    if result.returncode or len(rates) != epochs:
        return None, None
    return statistics.median(rates[1:]), version[0].split("+")[0] if version else None


def sides(build, case, path, threads, epochs):
    h, w, c, rows = CASES[case]
    numbers = [str(v) for v in (h, w, c, rows, 128, threads, epochs)]
    ours = [f"{build}/bench/train_step", case, path, *numbers]
    theirs = [sys.executable, f"{HERE}/torch_side.py", case, path, *numbers]
    return ours, theirs


def best_setting(build, case, path, threads, metric):
    """One short run each; what does not work (compile without a compiler) drops out."""
    found = (0, None, None)
    for setting, policy in SETTINGS:
        _, theirs = sides(build, case, path, threads, 2)
        rate, version = one([*theirs, setting], 2, metric, OMP_WAIT_POLICY=policy,
                            OMP_NUM_THREADS=str(threads))
        print(f"#   pytorch {setting}, OMP_WAIT_POLICY={policy}: "
              f"{'does not run' if rate is None else f'{rate:.0f}'}", flush=True)
        if rate and rate > found[0]:
            found = (rate, (setting, policy), version)
    return found[1:]


def bench(build, case, threads, runs, metric):
    path, note = prepare(build, case)
    print(f"# {case}, {threads} threads{': ' + note if note else ''}", flush=True)
    setting, version = best_setting(build, case, path, threads, metric)
    if not setting:
        sys.exit("PyTorch does not run")
    ours, theirs = sides(build, case, path, threads, 2)
    a, b = [], []
    for _ in range(runs):
        a.append(one(ours, 2, metric)[0])
        b.append(one([*theirs, setting[0]], 2, metric, OMP_WAIT_POLICY=setting[1],
                     OMP_NUM_THREADS=str(threads))[0])
    if None in a or None in b:
        sys.exit("a run failed")
    a, b = statistics.median(a), statistics.median(b)
    return {"bench": "train", "case": case, "threads": threads,
            "unit": "images/s" if metric == "wall" else "images/s of processor time",
            "ours": round(a, 1), "peer": f"pytorch {version} {setting[0]}", "theirs": round(b, 1),
            "ratio": round(a / b, 2), "runs": runs, "date": datetime.date.today().isoformat()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--case", default=",".join(CASES))
    parser.add_argument("--metric", choices=("wall", "cpu"), default="wall")
    a = parser.parse_args()
    lines = [bench(a.build, case, int(t), a.runs, a.metric)
             for case in a.case.split(",") for t in a.threads.split(",")]
    print(f"{'model':<10} {'threads':>7} {'ours':>9} {'theirs':>9} {'ratio':>6}   peer")
    for l in lines:
        print(f"{l['case']:<10} {l['threads']:>7} {l['ours']:>9} {l['theirs']:>9} {l['ratio']:>6}"
              f"   {l['peer']}")
    with open(f"{a.build}/bench/train.jsonl", "w") as f:
        f.writelines(json.dumps(l) + "\n" for l in lines)


main()
