# SPDX-License-Identifier: MIT
"""data.py: the study's rows as raw files under the build folder: n * h * w * c bytes, then n labels."""
import gzip
import io
import os
import subprocess
import sys
import tarfile

FASHION = "/usr/share/datasets/fashion-mnist"
CIFAR = os.path.join(os.path.dirname(__file__), "../../../shared/data/cifar10-jpeg.tar.zst")

SETS = {
    "fashion": dict(h=28, w=28, c=1, classes=10, train_rows=60000, test_rows=10000),
    "cifar10": dict(h=32, w=32, c=3, classes=10, train_rows=50000, test_rows=10000),
}


def cifar_archive():
    return os.environ.get("DATA_CIFAR10") or CIFAR


def available(name):
    """Why the set cannot be had, or None."""
    if name == "fashion" and not os.path.isdir(FASHION):
        return "no %s: install dataset-fashion-mnist" % FASHION
    if name == "cifar10" and not os.path.isfile(cifar_archive()):
        return "no CIFAR-10 archive: set DATA_CIFAR10 to a cifar10-jpeg.tar.zst"
    return None


def write(path, parts):
    """Whole or not at all."""
    with open(path + ".new", "wb") as f:
        for part in parts:
            f.write(part)
    os.rename(path + ".new", path)


def fashion(kind, path):
    name = "train" if kind == "train" else "t10k"
    images = gzip.open("%s/%s-images-idx3-ubyte.gz" % (FASHION, name)).read()[16:]
    labels = gzip.open("%s/%s-labels-idx1-ubyte.gz" % (FASHION, name)).read()[8:]
    write(path, [images, labels])


def cifar10(paths):
    from PIL import Image
    rows = {"train": [], "test": []}
    zstd = subprocess.Popen(["zstd", "-dc", cifar_archive()], stdout=subprocess.PIPE)
    with tarfile.open(fileobj=zstd.stdout, mode="r|") as tar:
        for member in tar:
            if not member.isfile():
                continue
            kind, label, _ = member.name.lstrip("./").split("/")
            image = Image.open(io.BytesIO(tar.extractfile(member).read())).convert("RGB")
            rows[kind].append((member.name, label, image.tobytes()))
    if zstd.wait():
        sys.exit("data.py: %s cannot be read" % cifar_archive())
    classes = sorted({r[1] for r in rows["train"]})
    for kind, path in paths.items():
        rows[kind].sort()
        write(path, [b"".join(r[2] for r in rows[kind]),
                     bytes(classes.index(r[1]) for r in rows[kind])])


def files(name, build):
    """The two files of a set, made on first use."""
    folder = os.path.join(build, "study")
    os.makedirs(folder, exist_ok=True)
    paths = {k: os.path.join(folder, "%s.%s" % (name, k)) for k in ("train", "test")}
    missing = [k for k in paths if not os.path.isfile(paths[k])]
    if missing and name == "cifar10":
        cifar10(paths)
    elif missing:
        for k in missing:
            fashion(k, paths[k])
    s = SETS[name]
    for kind, path in paths.items():
        if os.path.getsize(path) != s[kind + "_rows"] * (s["h"] * s["w"] * s["c"] + 1):
            sys.exit("data.py: %s has a wrong size: remove it" % path)
    return paths["train"], paths["test"]


if __name__ == "__main__":
    for n in sys.argv[2:]:
        print(*files(n, sys.argv[1]))
