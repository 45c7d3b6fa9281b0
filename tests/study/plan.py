# SPDX-License-Identifier: MIT
"""plan.py: which cells the study has. An arm is a way to train; a cell is an arm with a learning rate
and a seed. One factor at a time around the centre; groups in the order in which they are run.
"""

CENTRE = dict(data="cifar10", net="cnn", hosts=4, replicas=1, merge="average", every="8",
              momentum="keep", merge_warmup=None, shards="even", rows=10000, epochs=6, batch=32)
BASE_LR = 0.01
GRID = (1, 2, 4)		# 1, sqrt(R), R at the centre; widened where the best is at an edge
WIDEST = (0.25, 16)
LR_WARMUP = 0.5			# epochs
TUNE_SEED, TUNE_HELD = 1000, 5000
HELD = 1000			# rows held out for the curves of the other cells


def arm(**change):
    return dict(CENTRE, **change)


def one(**change):
    return arm(hosts=1, replicas=1, merge=None, every=None, momentum=None, **change)


def madlib(k, **change):
    return arm(merge="madlib", every="epoch" if k == 1 else "%d epochs" % k, **change)


def own(merge, **change):
    """A merge function with its preset's interval and momentum."""
    return arm(merge=merge, every=None, momentum=None, **change)


OWN = ("bmuf", "diloco", "lookahead")
EVERY_8 = ("slowmo", "easgd", "adasum", "median")	# of 4 hosts, trimmed_mean is the median


def merges(**change):
    arms = {"gradient": own("gradient", **change), "average, H 8": arm(**change),
            "madlib, K 1": madlib(1, **change), "madlib, K 3": madlib(3, **change)}
    arms["none"] = own("none", **change)
    arms["one host"] = one(**change)
    arms.update({"%s, H 8" % m: arm(merge=m, momentum=None, **change) for m in EVERY_8})
    arms.update({"%s, own H" % m: own(m, **change) for m in OWN})
    return arms


def claim_cifar10():
    return {"one host": one(),
            "one host, batch 128": one(batch=128),
            "average, H 8, 2 x 2": arm(hosts=2, replicas=2),
            "average, H 8, 4 x 1": arm(),
            "average, H 8, 2 x 2, momentum averaged": arm(hosts=2, replicas=2,
                                                          momentum="average"),
            "madlib, K 1, 4 x 1": madlib(1),
            "madlib, K 3, 4 x 1": madlib(3),
            "madlib, K 1, 2 x 2": madlib(1, hosts=2, replicas=2),
            "madlib, K 3, 2 x 2": madlib(3, hosts=2, replicas=2)}


def claim_fashion(rows):
    change = dict(data="fashion", rows=rows)
    return {"one host": one(**change),
            "average, H 8, 2 x 2": arm(hosts=2, replicas=2, **change),
            "one host, batch 128": one(batch=128, **change),
            "average, H 8, 2 x 2, momentum averaged": arm(hosts=2, replicas=2,
                                                          momentum="average", **change)}


def momentum():
    return {"keep": arm(), "average": arm(momentum="average"), "reset": arm(momentum="reset"),
            "H 32, keep": arm(every="32"), "H 32, average": arm(every="32", momentum="average"),
            "H 4, keep": arm(every="4"), "H 4, average": arm(every="4", momentum="average"),
            "sorted, keep": arm(shards="sorted"),
            "sorted, average": arm(shards="sorted", momentum="average")}


def more_rows():
    return {"gradient": own("gradient", rows=40000),
            "average, H 8": arm(rows=40000),
            "average, H 2": arm(every="2", rows=40000),
            "average, H 8, momentum averaged": arm(momentum="average", rows=40000),
            "madlib, K 1": madlib(1, rows=40000),
            "one host": one(rows=40000)}


def intervals():
    arms = {"H %d" % h: arm(every=str(h)) for h in (2, 4, 8, 16, 32, 64)}
    arms["H epoch"] = arm(every="epoch")
    arms["gradient"] = own("gradient")
    return arms


def shards():
    arms = {}
    for s in ("even", "sorted", "skewed"):
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


def like_centre(a):
    """The arm whose learning rate is used: the same function, at the centre."""
    if a["merge"] == "average":
        return arm()
    return dict(CENTRE, merge=a["merge"], every=a["every"], hosts=a["hosts"],
                momentum="keep" if a["merge"] == "madlib" else None)


def own_rate(a):
    return a


def fewer_rows(a):
    """The arm itself, on as many rows as the centre has."""
    return dict(a, rows=CENTRE["rows"])


# name: title, reference of the paired differences, seeds, arms, whose learning rate an arm uses
FULL = {
    "claim_cifar10": ("The default against MADlib's rule, CIFAR-10",
                      "average, H 8, 2 x 2", 5, claim_cifar10(), own_rate),
    "claim_fashion": ("The default against one host, Fashion-MNIST", "one host", 5,
                      claim_fashion(10000), own_rate),
    "claim_fashion_more": ("The default against one host, Fashion-MNIST, 30,000 rows", "one host",
                           5, claim_fashion(30000), fewer_rows),
    "merges": ("Merge functions", "average, H 8", 3, merges(), own_rate),
    "shards": ("Shards", "gradient, even", 3, shards(), like_centre),
    "intervals": ("Merge interval, average", "gradient", 3, intervals(), like_centre),
    "more_rows": ("40,000 rows", "gradient", 3, more_rows(), like_centre),
    "networks": ("Networks", None, 3, networks(), like_centre),
    "momentum": ("Local momentum at a merge, average", "keep", 3, momentum(), like_centre),
    "warmup": ("Synchronous epochs before the first local step, average, H 8", "1", 3,
               {"0": arm(merge_warmup=0), "0.5": arm(merge_warmup=0.5), "1": arm(),
                "2": arm(merge_warmup=2)}, like_centre),
    "replicas": ("Hosts x replicas, average, H 8", "4 x 1", 3, replicas(), own_rate),
    "fashion_merges": ("Merge functions, Fashion-MNIST", "average, H 8", 3,
                       merges(data="fashion"), own_rate),
}


def standard(data):
    return {"merges": ("Merge functions, " + data, "average, H 8", 3, merges(data=data), own_rate)}
