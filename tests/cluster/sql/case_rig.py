# SPDX-License-Identifier: MIT
"""case_rig.py: that the faults of the network happen: else the other cases would prove nothing."""
import socket
import threading
import time

from proxy import Flip, Proxy, dial, socket_in

PORT = 7999


class Echo:
    """Sends back what it gets, on host i."""

    def __init__(self, lab, i):
        self.s = socket_in(f"host{i}")
        self.s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.s.bind((lab.net.address(i), PORT))
        self.s.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                c, _ = self.s.accept()
            except OSError:
                return
            threading.Thread(target=self.echo, args=(c,), daemon=True).start()

    @staticmethod
    def echo(c):
        try:
            while data := c.recv(65536):
                c.sendall(data)
        except OSError:
            pass
        c.close()

    def close(self):
        self.s.shutdown(socket.SHUT_RDWR)
        self.s.close()


def reaches(lab, a, b):
    try:
        with dial(lab.net.address(b), PORT, f"host{a}", .3) as s:
            s.sendall(b"hello")
            return s.recv(5) == b"hello"
    except OSError:
        return False


def network(lab):
    tap = lab.tap
    tap.prefix = "the rig: "
    echo = [Echo(lab, i) for i in range(lab.n)]

    def table():
        return [(a, b) for a in range(lab.n) for b in range(lab.n) if a != b and reaches(lab, a, b)]

    tap.equal(len(table()), 6, "all hosts reach each other")
    lab.net.silence(1, True)
    tap.equal(table(), [(0, 2), (2, 0)], "a silent host reaches nobody")
    lab.net.silence(1, False)
    lab.net.part(1, 2, True)
    tap.equal(table(), [(0, 1), (0, 2), (1, 0), (2, 0)], "two hosts apart")
    lab.net.part(1, 2, False)
    lab.net.link(2, False)
    tap.equal(table(), [(0, 1), (1, 0)], "a cable pulled")
    lab.net.heal()
    tap.equal(len(table()), 6, "healed")
    lab.net.rate(1, 4)
    start = time.monotonic()
    with dial(lab.net.address(1), PORT, "host0") as s:
        for _ in range(10):
            s.sendall(bytes(20000))
            got = 0
            while got < 20000:
                got += len(s.recv(65536))
    took = time.monotonic() - start
    tap.ok(.25 < took < 3, f"200 kB and back at 4 Mbit/s take {took:.2f} s")
    lab.net.rate(1, None)
    proxy = Proxy(lab.net, 2, 1, (PORT, PORT), Flip(lambda c: True, 3))
    try:
        with dial(lab.net.address(1), PORT, "host2") as s:
            s.sendall(b"hello")
            tap.equal(s.recv(5), b"helLo", "a proxy between two hosts flips a byte")
        tap.ok(reaches(lab, 0, 1), "others do not pass it")
        tap.equal([c.kept for c in proxy.connections], [[b"hello", b"helLo"]], "it keeps what passed")
    finally:
        proxy.close()
    tap.ok(reaches(lab, 2, 1), "it is gone")
    for e in echo:
        e.close()
    tap.prefix = ""


CASES = [network]
