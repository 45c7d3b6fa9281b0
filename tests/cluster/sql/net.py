# SPDX-License-Identifier: MIT
"""net.py: the network of a cluster: a namespace per host, veth pairs to a bridge in one more, and what
can happen to a link. Names are free: the caller has a mount namespace of its own (run)."""
import subprocess


def command(*words, check=True):
    r = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and r.returncode:
        raise RuntimeError(f"{' '.join(words)}: {r.stdout.strip()}")
    return r.returncode == 0


def ip(*words, check=True):
    return command("ip", *words, check=check)


class Net:
    """Host i has 10.99.0.(i+1) on its eth0; its other end at the bridge is vI."""

    def __init__(self, hosts):
        self.hosts = hosts
        self._add("hub")
        ip("-n", "hub", "link", "add", "name", "bridge0", "type", "bridge")
        ip("-n", "hub", "link", "set", "bridge0", "up")
        for i in range(hosts):
            self.attach(f"host{i}", f"v{i}", f"{self.address(i)}/24")

    def attach(self, name, port, address, mac=None):
        """mac: the same each time where one takes another's place, as others keep it for a minute."""
        self._add(name)
        ip("-n", "hub", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", "hub", "link", "set", port, "master", "bridge0", "up")
        ip("-n", name, "addr", "add", address, "dev", "eth0")
        if mac:
            ip("-n", name, "link", "set", "eth0", "address", mac)
        ip("-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def _add(name):
        ip("netns", "add", name)
        # no neighbour discovery that delays or floods anything
        inside = ["nsenter", f"--net=/run/netns/{name}"]
        command(*inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6", check=False)
        command(*inside, "ip", "link", "set", "lo", "up")

    @staticmethod
    def address(i):
        return f"10.99.0.{i + 1}"

    @staticmethod
    def enter(i):
        """Words in front of a command that is to run on host i."""
        return ["nsenter", f"--net=/run/netns/host{i}", "--"]

    def link(self, i, up):
        """The cable of host i: both ends see that it is pulled, nothing passes."""
        ip("-n", "hub", "link", "set", f"v{i}", "up" if up else "down")

    def silence(self, i, on):
        """Nothing passes between host i and any other, and no end of a cable tells."""
        for k in range(self.hosts):
            if k != i:
                self._blackhole(k, i, on)
                self._blackhole(i, k, on)

    def part(self, i, k, on):
        """Hosts i and k do not reach each other, but all others."""
        self._blackhole(i, k, on)
        self._blackhole(k, i, on)

    def _blackhole(self, at, to, on):
        # a wrong hardware address: the sender believes that it sends
        verb = ["replace", self.address(to), "lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"]
        if not on:
            verb = ["del", self.address(to), "dev", "eth0"]
        ip("-n", f"host{at}", "neigh", *verb, check=on)

    def rate(self, i, mbit):
        """Of what host i sends and gets; None: as fast as it goes."""
        for ns, dev in ((f"host{i}", "eth0"), ("hub", f"v{i}")):
            command("tc", "-n", ns, "qdisc", "del", "dev", dev, "root", check=False)
            if mbit:
                command("tc", "-n", ns, "qdisc", "add", "dev", dev, "root", "tbf", "rate", f"{mbit}mbit",
                        "burst", "32kb", "latency", "400ms")

    def heal(self):
        for i in range(self.hosts):
            self.link(i, True)
            self.silence(i, False)
            self.rate(i, None)
