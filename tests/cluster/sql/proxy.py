# SPDX-License-Identifier: MIT
"""proxy.py: sockets on hosts of the cluster, and a proxy that two daemons do not know of: packets to
the merge ports of one are routed to a namespace that believes it has its address, and which connects
on from the bridge. It may flip bytes, cut, repeat, and keeps the beginning of every connection."""
import ctypes
import os
import select
import socket
import threading

from net import command, ip

CLONE_NEWNET = 0x40000000
PROXY, BRIDGE = "10.99.0.100", "10.99.0.99"
KEEP = 4096  # bytes of each connection that are recorded
libc = ctypes.CDLL(None, use_errno=True)


def socket_in(namespace):
    """A TCP socket of that namespace; the calling thread stays where it is."""
    back = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    finally:
        libc.setns(back, CLONE_NEWNET)
        os.close(there)
        os.close(back)


def open_bridge():
    """The bridge's namespace becomes one more host, for strangers."""
    ip("-n", "hub", "addr", "replace", f"{BRIDGE}/24", "dev", "bridge0")


def dial(address, port, namespace="hub", seconds=3):
    s = socket_in(namespace)
    s.settimeout(seconds)
    s.connect((address, port))
    return s


class Connection:
    def __init__(self, a, b, port):
        self.a, self.b, self.port = a, b, port
        self.passed = [0, 0]  # bytes from dialer to acceptor, and back
        self.kept = [b"", b""]

    def close(self):
        for s in (self.a, self.b):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Proxy:
    """Of connections that host `dialer` opens to ports of host `target`.

    tamper(connection, data, at): returns what is passed on instead of data, which begins at byte `at`
    of the direction from dialer to acceptor; None ends the connection."""

    def __init__(self, network, dialer, target, ports, tamper=None):
        self.net, self.dialer, self.target = network, dialer, target
        self.tamper = tamper or (lambda c, data, at: data)
        self.connections = []
        self.address = network.address(target)
        self.ports = range(ports[0], ports[1] + 1)
        network.attach("proxy", "vproxy", f"{PROXY}/24", "02:00:00:00:01:00")
        inside = ["nsenter", "--net=/run/netns/proxy", "--", "sh", "-c"]
        # nobody but the dialer is to learn that this address is here, too
        command(*inside, "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore; "
                "echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce")
        ip("-n", "proxy", "addr", "add", f"{self.address}/32", "dev", "lo")
        open_bridge()
        self.listeners = []
        for port in self.ports:
            s = socket_in("proxy")
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind((self.address, port))
            s.listen(16)
            self.listeners.append(s)
        ip("-n", f"host{dialer}", "route", "add", self.address, "via", PROXY, "dev", "eth0", "table", "100")
        ip("-n", f"host{dialer}", "rule", "add", "to", self.address, "ipproto", "tcp", "dport",
           f"{ports[0]}-{ports[1]}", "lookup", "100")
        self.ending = False
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        while not self.ending:
            for s in select.select(self.listeners, [], [], .1)[0]:
                a, _ = s.accept()
                port = s.getsockname()[1]
                try:
                    b = dial(self.address, port)
                except OSError:
                    a.close()
                    continue
                b.settimeout(None)
                for x in (a, b):
                    x.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                c = Connection(a, b, port)
                self.connections.append(c)
                for way in (0, 1):
                    threading.Thread(target=self._pass, args=(c, way), daemon=True).start()

    def _pass(self, c, way):
        source, to = (c.a, c.b) if way == 0 else (c.b, c.a)
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                if len(c.kept[way]) < KEEP:
                    c.kept[way] += data[:KEEP - len(c.kept[way])]
                at = c.passed[way]
                c.passed[way] += len(data)
                if way == 0:
                    data = self.tamper(c, data, at)
                    if data is None:
                        break
                to.sendall(data)
        except OSError:
            pass
        c.close()

    def close(self):
        self.ending = True
        self.thread.join()
        ip("-n", f"host{self.dialer}", "rule", "del", "lookup", "100", check=False)
        ip("-n", f"host{self.dialer}", "route", "flush", "table", "100", check=False)
        for c in self.connections:
            c.close()
            c.a.close()
            c.b.close()
        for s in self.listeners:
            s.close()
        # the namespace itself goes with its last socket, some time later
        ip("-n", "hub", "link", "del", "vproxy")
        ip("netns", "del", "proxy")


class Flip:
    """tamper: flips one byte of each of the first `times` connections for which of(connection) holds:
    byte `at`, or, once it is armed, any."""

    def __init__(self, of, at=None, times=1):
        self.of, self.at, self.times = of, at, times
        self.armed = at is not None
        self.done = []

    def __call__(self, c, data, at):
        first = self.at or 0
        if not self.armed or len(self.done) >= self.times or at + len(data) <= first or not self.of(c) or \
                c in self.done:
            return data
        self.done.append(c)
        where = max(0, first - at) if self.at is not None else len(data) // 2
        return data[:where] + bytes([data[where] ^ 0x20]) + data[where + 1:]
