# SPDX-License-Identifier: MIT
"""plan.py: which cells the study has. An arm is a way to train; a cell is an arm with a learning rate
and a seed. One factor at a time around the centre; groups in the order in which they are run.
"""

CENTRE = dict(data="cifar10", net="cnn", hosts=4, replicas=1, merge="average", every="8",
              momentum=None, merge_warmup=None, shards="even", rows=10000, epochs=6, batch=32)
BASE_LR = 0.01
GRID = (1, 2, 4)		# 1, sqrt(R), R at the centre; widened where the best is at an edge
WIDEST = (0.25, 16)
LR_WARMUP = 0.5			# epochs
TUNE_SEED, TUNE_HELD = 1000, 5000
HELD = 1000			# rows held out for the curves of the other cells


def arm(**change):
    return dict(CENTRE, **change)


def one(**change):
    return arm(hosts=1, replicas=1, merge=None, every=None, **change)


def madlib(k, **change):
    return arm(merge="madlib", every="epoch" if k == 1 else "%d epochs" % k, **change)


def own(merge, **change):
    """A merge function with its preset's interval."""
    return arm(merge=merge, every=None, **change)


OWN = ("bmuf", "diloco", "lookahead")
EVERY_8 = ("slowmo", "easgd", "adasum", "trimmed_mean", "median")


def merges(**change):
    arms = {"gradient": own("gradient", **change), "average, H 8": arm(**change),
            "madlib, K 1": madlib(1, **change), "madlib, K 3": madlib(3, **change)}
    arms.update({"%s, H 8" % m: arm(merge=m, **change) for m in EVERY_8})
    arms.update({"%s, own H" % m: own(m, **change) for m in OWN})
    arms["none"] = own("none", **change)
    arms["one host"] = one(**change)
    return arms


def claim(data):
    return {"one host": one(data=data),
            "average, H 8, 2 hosts x 2": arm(data=data, hosts=2, replicas=2),
            "average, H 8, 4 x 1": arm(data=data),
            "madlib, K 1, 4 x 1": madlib(1, data=data),
            "madlib, K 3, 4 x 1": madlib(3, data=data),
            "madlib, K 1, 2 x 2": madlib(1, data=data, hosts=2, replicas=2),
            "madlib, K 3, 2 x 2": madlib(3, data=data, hosts=2, replicas=2)}


def intervals():
    arms = {"H %d" % h: arm(every=str(h)) for h in (2, 4, 8, 16, 32, 64)}
    arms["H epoch"] = arm(every="epoch")
    arms["gradient"] = own("gradient")
    return arms


def shards():
    arms = {}
    for s in ("even", "skewed", "sorted"):
        arms["gradient, " + s] = own("gradient", shards=s)
        arms["average, H 8, " + s] = arm(shards=s)
        arms["average, H 32, " + s] = arm(every="32", shards=s)
        arms["madlib, K 1, " + s] = madlib(1, shards=s)
    return arms


def networks():
    arms = {}
    for net in ("mlp", "resnet8"):
        change = dict(net=net, rows=5000 if net == "resnet8" else 10000)
        arms["gradient, " + net] = own("gradient", **change)
        arms["average, H 8, " + net] = arm(**change)
        arms["madlib, K 1, " + net] = madlib(1, **change)
        arms["one host, " + net] = one(**change)
    return arms


def replicas():
    return {"%d x %d" % (h, r): arm(hosts=h, replicas=r)
            for h, r in ((1, 4), (2, 1), (2, 2), (4, 1), (2, 4), (4, 2), (8, 1))}


# name: title, reference of the paired differences, seeds, arms
FULL = {
    "claim_cifar10": ("The default against MADlib's rule, CIFAR-10",
                      "average, H 8, 2 hosts x 2", 5, claim("cifar10")),
    "claim_fashion": ("The default against one host, Fashion-MNIST", "one host", 5,
                      claim("fashion")),
    "merges": ("Merge functions", "average, H 8", 3, merges()),
    "shards": ("Shards", "gradient, even", 3, shards()),
    "intervals": ("Merge interval, average", "gradient", 3, intervals()),
    "momentum": ("Local momentum at a merge, average, H 8", "keep", 3,
                 {"keep": arm(momentum="keep"), "average": arm(momentum="average"),
                  "reset": arm(momentum="reset")}),
    "networks": ("Networks", None, 3, networks()),
    "replicas": ("Hosts x replicas", "4 x 1", 3, replicas()),
    "warmup": ("Synchronous epochs before the first local step, average, H 8", "1", 3,
               {"%g" % w: arm(merge_warmup=w) for w in (0, 0.5, 1, 2)}),
    "fashion_merges": ("Merge functions, Fashion-MNIST", "average, H 8", 3,
                       merges(data="fashion")),
}

STANDARD = {"merges": ("Merge functions", "average, H 8", 3, merges())}
