# SPDX-License-Identifier: MIT
"""bench-merge: merges between hosts next to MPI_Allreduce and Gloo, alternating on the same links.

usage: run.py BUILD [--hosts 2,4] [--sizes 1M,4M,16M,64M] [--runs N] [--rate MBIT] [--level inter,intra]
       [--only NAME,...] [--no_pin] [--congestion NAME]

A host is a network namespace on a bridge (root) and, unless --no_pin, has a processor for itself, as far
as there are enough. Every tool sums the same floats and checks them; in
each of the runs all tools take their turn, in another order, and figures are medians over the runs.
Ours: as it ships (with MAC), and its variants; MPI (tcp only, yielding when idle) and Gloo with each of
their algorithms, of which the best counts; the link: one TCP stream from one host to another. --rate
limits what each host sends; --congestion is the congestion control of all tools (cubic; '': the system's). Inside a host: the sum of R replicas next to a copy of R times their bytes
by as many threads. The bus bandwidth is bytes / time * 2 (n-1)/n. Prints tables and writes
BUILD/bench/merge.jsonl. Quote the ratios, not the figures.
"""
import argparse
import atexit
import datetime
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ID = "mb%d" % os.getpid()
LIMIT_PORT = "7900"
MPI_ALGORITHMS = {"default": [], "ring": ["4"], "rabenseifner": ["6"]}
GLOO_ALGORITHMS = ("ring", "bcube", "ring_chunked", "halving_doubling")
OURS = {
    "tcp": [],
    "tcp direct": ["--ring_from", "64G"],
    "tcp ring": ["--ring_from", "1"],
    "tcp no MAC": ["--no_mac"],
    "ucx": ["--transport", "ucx", "--ucx_tls", "tcp,self"],
}


class Failed(Exception):
    pass


def run(argv, timeout=120, **more):
    p = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, timeout=timeout, **more)
    if p.returncode:
        raise Failed("%s: %s" % (os.path.basename(argv[0]), (p.stderr or p.stdout).strip()[-300:]))
    return p.stdout


def ip(*argv):
    run(["ip", *argv])


class Network:
    """n namespaces around a bridge in one of its own."""

    def __init__(self, n, rate):
        self.n = n
        self.names = ["%sn%d" % (ID, i) for i in range(n)]
        self.address = ["10.97.0.%d" % (i + 1) for i in range(n)]
        hub = ID + "hub"
        self.all = self.names + [hub]
        atexit.register(self.down)
        ip("netns", "add", hub)
        ip("-n", hub, "link", "add", "name", "bridge0", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge0", "up")
        for i, ns in enumerate(self.names):
            ip("netns", "add", ns)
            ip("-n", hub, "link", "add", "v%d" % i, "type", "veth", "peer", "name", "eth0", "netns", ns)
            ip("-n", hub, "link", "set", "v%d" % i, "master", "bridge0", "up")
            ip("-n", ns, "link", "set", "lo", "up")
            ip("-n", ns, "addr", "add", self.address[i] + "/24", "dev", "eth0")
            ip("-n", ns, "link", "set", "eth0", "up")
            if ARGS.congestion:
                run(inside(ns, ["sh", "-c", "echo %s >/proc/sys/net/ipv4/tcp_congestion_control" % ARGS.congestion]))
            if rate:
                run(["ip", "netns", "exec", ns, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate",
                     "%dmbit" % rate, "burst", "256kb", "latency", "100ms"])

    def down(self):
        for ns in self.all:
            subprocess.run(["ip", "netns", "del", ns], stderr=subprocess.DEVNULL)
        self.all = []


def inside(ns, argv):
    return ["ip", "netns", "exec", ns, *argv]


def cpus():
    return sorted(os.sched_getaffinity(0))


def pinned(host, argv):
    return argv if ARGS.no_pin else ["taskset", "-c", str(cpus()[host % len(cpus())]), *argv]


def group(commands, timeout=120):
    """Runs all at once; what each printed. None is left behind."""
    procs = [subprocess.Popen(c, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) for c in commands]
    try:
        out = [p.communicate(timeout=timeout) for p in procs]
    finally:
        for p in procs:
            if p.poll() is None:
                p.kill()
    for p, o in zip(procs, out):
        if p.returncode:
            raise Failed((o[1] or o[0]).strip()[-300:])
    return [o[0] for o in out]


def iterations(size):
    return max(3, min(40, (32 << 20) // size))


def lines(text):
    """{size: seconds} of lines 'BYTES SECONDS WRONG'"""
    found = {}
    for size, seconds, wrong in re.findall(r"^(\d+) ([\d.]+) (\d+)$", text, re.M):
        if int(wrong):
            raise Failed("%s wrong values" % wrong)
        found[int(size)] = float(seconds)
    return found


class Tools:
    def __init__(self, build, net, sizes):
        self.build, self.net, self.sizes = build, net, sizes
        self.work = [["%d:%d" % (s, iterations(s)) for s in sizes]]

    def ours(self, options):
        found = {}
        for size in self.sizes:
            path = os.path.join(WORK, "perf.json")
            run([self.build + "/bin/merge_perf", "--hosts", str(self.net.n), "--netns",
                 ",".join(self.net.names), "--address", ",".join(self.net.address), "-b", str(size), "-e",
                 str(size), "-n", str(iterations(size)), "-w", "2", "-J", path,
                 *([] if ARGS.no_pin else ["--cpus", ",".join(map(str, cpus()))]), *options])
            row = json.load(open(path))["results"][0]["in_place"]
            found[size] = row["time"] * 1e-6
        return found

    def mpi(self, algorithm):
        more = []
        if algorithm:
            more = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm",
                    *algorithm]
        host = self.net.names[0]
        command = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "plm_rsh_agent",
                   HERE + "/agent.sh", "--mca", "orte_keep_fqdn_hostnames", "1", "-np", str(self.net.n), "-H",
                   ",".join(n + ":1" for n in self.net.names), "--mca", "oob_tcp_if_include", "10.97.0.0/24",
                   "--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include",
                   "10.97.0.0/24", "--mca", "mpi_yield_when_idle", "1", *more,
                   HERE + "/on_cpu.sh", "none" if ARGS.no_pin else ",".join(map(str, cpus())),
                   os.path.abspath(self.build + "/bench/merge_ar_mpi"), *self.work[0]]
        return lines(run([HERE + "/agent.sh", host, "exec " + " ".join(command)]))

    def gloo(self, algorithm):
        store = tempfile.mkdtemp(dir=WORK)
        out = group([inside(ns, pinned(i, [self.build + "/bench/merge_ar_gloo", str(i), str(self.net.n), store,
                                           "eth0", algorithm, *self.work[0]])) for i, ns in enumerate(self.net.names)])
        ranks = [lines(o) for o in out]
        return {s: statistics.mean(r[s] for r in ranks) for s in self.sizes}

    def link(self):
        """Bytes a second of one stream, as {size: seconds} of a bus that is used to the full."""
        limit = self.build + "/bench/merge_limit"
        server = subprocess.Popen(inside(self.net.names[1], pinned(1, [limit, "serve", self.net.address[1], LIMIT_PORT])),
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            server.stdout.readline()
            run(inside(self.net.names[0], pinned(0, [limit, "send", self.net.address[1], LIMIT_PORT,
                                                     str(ARGS.link_bytes)])))
            rate = float(server.communicate(timeout=60)[0])
        finally:
            if server.poll() is None:
                server.kill()
        return {s: s * self.factor() / rate for s in self.sizes}

    def factor(self):
        return 2 * (self.net.n - 1) / self.net.n

    def table(self):
        tools = {"ours " + name: (lambda o=o: self.ours(o)) for name, o in OURS.items()}
        if os.path.exists(self.build + "/bench/merge_ar_mpi"):
            for name, a in MPI_ALGORITHMS.items():
                tools["mpi " + name] = lambda a=a: self.mpi(a)
        else:
            print("# MPI_Allreduce is absent: install libopenmpi-dev and openmpi-bin")
        if os.path.exists(self.build + "/bench/merge_ar_gloo"):
            for name in GLOO_ALGORITHMS:
                tools["gloo " + name] = lambda a=name: self.gloo(a)
        else:
            print("# Gloo is absent: install libgloo-dev")
        tools["link one way"] = self.link
        return {n: t for n, t in tools.items() if not ARGS.only or any(o in n for o in ARGS.only.split(","))}


def size_text(size):
    return "%dM" % (size >> 20) if size % (1 << 20) == 0 else "%dK" % (size >> 10)


def parse_size(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def judge(ours, peer, link):
    """performance.md: the bar of a merge between hosts."""
    if not peer or not link:
        return "no bar without peers and link"
    if peer < .8 * link:
        return "met" if ours >= 1.2 * peer else "missed (%.2f of 1.2 x the better peer)" % (ours / peer)
    best = max(ours / link, ours / peer)
    return "met" if best >= .95 else "missed (%.2f of the link, %.2f of the peer)" % (ours / link, ours / peer)


def emit(case, ours, peer, theirs, runs):
    OUT.write(json.dumps({"bench": "merge", "case": case, "unit": "GB/s", "ours": round(ours, 4), "peer": peer,
                          "theirs": round(theirs, 4), "ratio": round(ours / theirs, 4), "runs": runs,
                          "date": datetime.date.today().isoformat()}) + "\n")
    OUT.flush()


def inter(n):
    net = Network(n, ARGS.rate)
    sizes = [parse_size(s) for s in ARGS.sizes.split(",")]
    tools = Tools(ARGS.build, net, sizes)
    table, got, failed = tools.table(), {}, {}
    for k in range(ARGS.runs):
        order = [t for t in table if t not in failed]
        random.Random(k).shuffle(order)
        for name in order:
            try:
                for size, seconds in table[name]().items():
                    got.setdefault((name, size), []).append(size * tools.factor() / seconds / 1e9)
            except (Failed, subprocess.TimeoutExpired) as e:
                failed[name] = str(e).replace("\n", " ")
    net.down()
    for name, why in failed.items():
        print("# %s failed: %s" % (name, why))
    rate = ", %d Mbit/s" % ARGS.rate if ARGS.rate else ""
    print("\n%d hosts%s: bus bandwidth in GB/s, median of %d" % (n, rate, ARGS.runs))
    print("%-24s" % "" + "".join("%10s" % size_text(s) for s in sizes))
    value = {k: statistics.median(v) for k, v in got.items() if k[0] not in failed}
    for name in table:
        if name not in failed:
            print("%-24s" % name + "".join("%10.3f" % value[name, s] for s in sizes))
    for size in sizes:
        def best(kind):
            return max(((value[k], k[0]) for k in value if k[1] == size and k[0].startswith(kind)),
                       default=(0, ""))
        link, (mpi, mpi_name), (gloo, gloo_name) = value.get(("link one way", size)), best("mpi"), best("gloo")
        for ours in ("tcp", "tcp no MAC", "ucx"):
            mine = value.get(("ours " + ours, size))
            if mine is None:
                continue
            case = "%s, %d hosts, %s%s" % (ours, n, size_text(size), rate)
            for peer, theirs in ((mpi_name, mpi), (gloo_name, gloo), ("link", link)):
                if theirs:
                    emit(case, mine, peer, theirs, ARGS.runs)
            if ours != "ucx":
                print("%-34s bar %s" % (case, judge(mine, max(mpi, gloo), link)))


def intra():
    """R replicas by T threads; the copy moves the same bytes with as many threads."""
    print("\ninside a host: GB/s of all replicas' arenas, median of %d" % ARGS.runs)
    print("%-34s%10s%10s%8s" % ("", "ours", "copy", "ratio"))
    for threads, each in ((2, 1), (2, 2), (1, 4)):
        for size in (1 << 20, 4 << 20, 64 << 20):
            replicas, ours, copy = threads * each, [], []
            for _ in range(ARGS.runs):
                path = os.path.join(WORK, "intra.json")
                run([ARGS.build + "/bin/merge_perf", "--level", "intra", "-t", str(threads), "-g", str(each), "-b",
                     str(size), "-e", str(size), "-n", str(iterations(size)), "-w", "2", "-J", path])
                row = json.load(open(path))["results"][0]["in_place"]
                ours.append(replicas * size / (row["time"] * 1e-6) / 1e9)
                copy.append(float(run([ARGS.build + "/bench/merge_limit", "copy", str(threads),
                                       str(replicas * size), str(iterations(size))])) / 1e9)
            mine, theirs = statistics.median(ours), statistics.median(copy)
            case = "intra, %d replicas, %d threads, %s" % (replicas, threads, size_text(size))
            print("%-34s%10.2f%10.2f%8.2f  bar %s" % (case[7:], mine, theirs, mine / theirs,
                                                      "met" if mine / theirs >= .6 else "missed"))
            emit(case, mine, "memory copy", theirs, ARGS.runs)


parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("build")
parser.add_argument("--hosts", default="2,4")
parser.add_argument("--sizes", default="1M,4M,16M,64M")
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--rate", type=int, default=0)
parser.add_argument("--level", default="inter,intra")
parser.add_argument("--only", default="")
parser.add_argument("--congestion", default="cubic", choices=("", "cubic", "reno", "bbr", "dctcp"))
parser.add_argument("--no_pin", action="store_true")
parser.add_argument("--link_bytes", type=int, default=0)
ARGS = parser.parse_args()
ARGS.link_bytes = ARGS.link_bytes or (ARGS.rate * 125000 if ARGS.rate else 1 << 30)
if os.geteuid():
    sys.exit("bench-merge: network namespaces need root")
WORK = tempfile.mkdtemp(prefix="bench-merge-")
atexit.register(shutil.rmtree, WORK, True)
os.makedirs(ARGS.build + "/bench", exist_ok=True)
OUT = open(ARGS.build + "/bench/merge.jsonl", "w")
if "inter" in ARGS.level:
    for hosts in ARGS.hosts.split(","):
        inter(int(hosts))
if "intra" in ARGS.level:
    intra()
print("\n%s" % OUT.name)
