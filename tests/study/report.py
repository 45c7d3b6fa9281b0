# SPDX-License-Identifier: MIT
"""report.py: tables and plots of the study's cells. Every seed is shown; differences are paired by
seed, with a 95 % interval of Student's t; the standard error is that of a share of the test rows.
"""
import math
import os

TEST_ROWS = 10000
# two-sided 95 % points of Student's t by degrees of freedom
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def accuracy(row):
    """Test accuracy in per cent; None: the cell failed or diverged."""
    if not row or "error" in row:
        return None
    a = row["result"].get("test_accuracy")
    return None if a is None else 100 * a


def mean(values):
    return sum(values) / len(values)


def deviation(values):
    m = mean(values)
    return math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1))


def paired(a, b):
    """Mean of a - b, its standard error and the half width of its 95 % interval."""
    d = [x - y for x, y in zip(a, b) if x is not None and y is not None]
    if len(d) < 2:
        return None
    error = deviation(d) / math.sqrt(len(d))
    return mean(d), error, T95[len(d) - 1] * error


def test_error(percent):
    """Standard error of an accuracy measured on the test rows, in points."""
    p = percent / 100
    return 100 * math.sqrt(p * (1 - p) / TEST_ROWS)


class Arm:
    """What was run of an arm."""

    def __init__(self, table, name, arm, seeds, rate, choose):
        self.name, self.arm, self.seeds = name, arm, seeds
        self.lr = choose(table, rate(arm), dry=True)
        self.rows = []
        if self.lr is not None:
            self.rows = [table.get(dict(arm, lr=self.lr, seed=s, tune=False))
                         for s in range(1, seeds + 1)]
        self.scores = [accuracy(r) for r in self.rows]

    def whole(self):
        return bool(self.rows) and all(r is not None for r in self.rows)

    def result(self, key):
        values = [r["result"].get(key) for r in self.rows if r and "error" not in r]
        values = [v for v in values if v is not None]
        return mean(values) if values else None

    def mean(self):
        good = [s for s in self.scores if s is not None]
        return mean(good) if good else None

    def megabytes(self):
        """Payload that all hosts sent, as a mean of the seeds."""
        sums = [sum(e["bytes"] for e in r["epochs"]) for r in self.rows if r and "error" not in r]
        return mean(sums) / 1e6 if sums else 0

    def first(self):
        for r in self.rows:
            if r and "error" not in r:
                return r
        return None


def text(value, form="%.2f"):
    return "-" if value is None else form % value


def table_of(title, reference, arms):
    """One group as Markdown."""
    by_name = {a.name: a for a in arms}
    ref = by_name.get(reference)
    out = ["### " + title, ""]
    head = ["arm", "lr", "test accuracy by seed, %", "mean", "test loss", "MB sent"]
    if ref:
        head.insert(4, "against '%s', points [95 %% interval]" % reference)
    out.append("| " + " | ".join(head) + " |")
    out.append("|" + "---|" * len(head))
    for a in arms:
        if not a.whole():
            continue
        cells = [a.name, "%g" % a.lr,
                 " ".join("diverged" if s is None else "%.2f" % s for s in a.scores),
                 text(a.mean()), text(a.result("test_loss"), "%.3f"), "%.0f" % a.megabytes()]
        if ref:
            d = None if a is ref else paired(a.scores, ref.scores)
            cells.insert(4, "" if d is None else "%+.2f [%+.2f, %+.2f]" % (
                d[0], d[0] - d[2], d[0] + d[2]))
        out.append("| " + " | ".join(cells) + " |")
    means = [a.mean() for a in arms if a.whole() and a.mean() is not None]
    if means:
        out += ["", "Standard error of one test: %.2f points at %.1f %%." % (
            test_error(max(means)), max(means))]
    none = next((a for a in arms if a.arm["merge"] == "none" and a.whole()), None)
    if none:
        out += ["", "'none', seed by seed: replicas " + "; ".join(
            ", ".join("%.2f" % (100 * r["accuracy"]) for r in row["result"]["test_replicas"])
            for row in none.rows) + " % (their mean is in the table); the mean of their weights: " +
            ", ".join("%.2f %% (loss %.2f)" % (
                100 * row["result"]["test_averaged_weights_accuracy"],
                row["result"]["test_averaged_weights_loss"]) for row in none.rows) + "."]
    return out + [""]


# ---- plots ----

def figure(folder, name, title, x, y, draw):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    f, axes = pyplot.subplots(figsize=(7, 4.2), dpi=110)
    if draw(axes):
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
        f.tight_layout()
        f.savefig(os.path.join(folder, name + ".png"), metadata={"Software": None})
    pyplot.close(f)


def curve(row, key):
    e = row["epochs"]
    return [x["epoch"] for x in e], [x["seconds"] for x in e], [x.get(key) for x in e]


def curves(arms, names, key, by_seconds):
    def draw(axes):
        any_line = False
        for a in arms:
            if a.name not in names or not a.whole() or not a.first():
                continue
            rows = [r for r in a.rows if "error" not in r]
            steps, seconds, _ = curve(rows[0], key)
            ys = [curve(r, key)[2] for r in rows]
            n = min(len(y) for y in ys)
            y = [mean([v[i] for v in ys]) if all(v[i] is not None for v in ys) else math.nan
                 for i in range(n)]
            axes.plot((seconds if by_seconds else steps)[:n], y, marker="o", ms=3,
                      ls="--" if a.arm["merge"] == "none" else "-", label=a.name)
            if a.arm["merge"] == "none" and not by_seconds:
                z = [mean([r["epochs"][i]["held_averaged_weights_loss"] for r in rows])
                     for i in range(n)] if key == "held_loss" else None
                if z:
                    axes.plot(steps[:n], z, ls=":", marker="x", ms=3,
                              label="none: weights averaged for the test alone")
            any_line = True
        return any_line
    return draw


def distances(arms, names):
    def draw(axes):
        any_line = False
        for a in arms:
            row = a.first() if a.name in names else None
            d = row and row["result"].get("distances")
            if d:
                axes.plot(range(1, len(d) + 1), d, lw=1, label=a.name)
                any_line = True
        axes.set_yscale("log")
        return any_line
    return draw


def plots(groups, folder):
    m = groups.get("merges", [])
    main = ("one host", "gradient", "average, H 8", "madlib, K 1", "madlib, K 3", "none")
    for key, name, what in (("held_loss", "loss_iterations", "loss on rows held out"),
                            ("loss", "training_loss_iterations", "training loss")):
        figure(folder, name, "With a merge and without (4 hosts; mean of the seeds)",
               "iteration (epoch)", what, curves(m, main, key, False))
    figure(folder, "loss_seconds", "Loss against time, 4 hosts as threads of 2 shared cores",
           "seconds (of the first seed)", "loss on rows held out", curves(m, main, "held_loss", True))
    figure(folder, "distances", "Distance between replicas before each merge, seed 1",
           "merge of weights", "sqrt(sum p |x - mean|^2)",
           distances(m, ("average, H 8", "madlib, K 1", "slowmo, H 8", "diloco, own H")))

    def interval(axes):
        points = [(a.arm["every"], a.scores) for a in groups.get("intervals", [])
                  if a.whole() and a.arm["every"] and all(s is not None for s in a.scores)]
        steps = [79 if e == "epoch" else int(e) for e, _ in points]
        if not points:
            return False
        axes.errorbar(steps, [mean(s) for _, s in points],
                      [deviation(s) for _, s in points], marker="o", capsize=3,
                      label="average, mean and deviation of the seeds")
        axes.set_xscale("log", base=2)
        for a in groups.get("intervals", []):
            if a.name == "gradient" and a.whole():
                axes.axhline(a.mean(), ls="--", c="gray", label="gradient, every step")
        return True
    figure(folder, "accuracy_interval", "Accuracy against the merge interval", "steps between merges",
           "test accuracy, %", interval)

    def traffic(axes):
        found = False
        seen = set()
        for a in m + groups.get("intervals", []) + groups.get("momentum", [])[:3]:
            at = (a.megabytes(), a.mean()) if a.whole() else (0, None)
            if at[0] and at[1] is not None and at not in seen:
                seen.add(at)
                axes.plot(*at, "o", ms=4)
                name = "momentum: " + a.name if a in groups.get("momentum", []) else a.name
                axes.annotate(name, at, fontsize=6, xytext=(4, -2), textcoords="offset points")
                found = True
        axes.set_xscale("log")
        return found
    figure(folder, "bytes", "Bytes and accuracy", "MB sent by all hosts", "test accuracy, %", traffic)

    def shard(axes):
        found = False
        for prefix in ("gradient", "average, H 8", "average, H 32", "madlib, K 1"):
            y = [next((a.mean() for a in groups.get("shards", [])
                       if a.name == "%s, %s" % (prefix, s) and a.whole()), None)
                 for s in ("even", "skewed", "sorted")]
            if all(v is not None for v in y):
                axes.plot(("even", "skewed", "sorted by class"), y, marker="o", label=prefix)
                found = True
        return found
    figure(folder, "shards", "Accuracy against the class skew of the shards", "shards",
           "test accuracy, %", shard)


def write(table, groups, folder, choose):
    """tables.md and the plots; what was not run is listed."""
    arms = {g: [Arm(table, name, arm, seeds, rate, choose) for name, arm in arms.items()]
            for g, (_, _, seeds, arms, rate) in groups.items()}
    out = ["Written by `make convergence-plots` from cells.jsonl: %d cells." % len(table.done), ""]
    left = []
    for g, (title, reference, _, _, _) in groups.items():
        if any(a.whole() for a in arms[g]):
            out += table_of(title, reference, arms[g])
        left += ["%s: %s" % (title, a.name) for a in arms[g] if not a.whole()]
    failed = [r for r in table.done.values() if "error" in r]
    if failed:
        out += ["### Cells that failed", ""] + ["- %s: %s" % (
            {k: v for k, v in r["cell"].items() if v is not None}, r["error"]) for r in failed] + [""]
    out += ["### Not run", ""] + (["- " + line for line in left] or ["Nothing."])
    with open(os.path.join(folder, "tables.md"), "w") as f:
        f.write("\n".join(out) + "\n")
    try:
        plots(arms, folder)
    except ImportError:
        print("# no matplotlib: no plots")
    print("# tables and plots are in " + os.path.normpath(folder))
    return arms
