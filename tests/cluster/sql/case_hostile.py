# SPDX-License-Identifier: MIT
"""case_hostile.py: what strangers can send to the ports of daemons in the middle of a job, and what a
wire can do to them. The handshakes are those of nccl_merge/tcp/hello.c and userspace/cnnd/wire.c."""
import os
import random
import resource
import socket
import struct

import fault
import proc
from fault import Fault
from host import MERGE_PORTS, until
from lab import train
from proxy import Flip, Proxy, dial, open_bridge

MAGIC = 0x4D4E4E43
MESH_HELLO, MEMBER_HELLO = 128, 80
DATA, CONTROL = 0, 1


def _ports(lab):
    """(address, port) of everything that daemons listen on."""
    return [p for h in lab.hosts for p in proc.listening(h.cnnd.pid)]


def _mesh_hello(job, to, epoch=1, kind=DATA):
    """Of a host of a higher rank, as dialers are; other fields zero."""
    return struct.pack("<IHH16sIIIIII", MAGIC, 1, 1, bytes.fromhex(job), to + 1, to, epoch, kind, 0, 0) + \
        bytes(24) + os.urandom(32) + bytes(24)


def _member_hello(job):
    return struct.pack("<IHHII16s", MAGIC, 1, 1, 0, 0, bytes.fromhex(job)) + os.urandom(16) + os.urandom(32)


def _say(place, *pieces, wait=.2):
    """Sends the pieces, reading what comes in between; what came last."""
    got = b""
    try:
        with dial(*place) as s:
            s.settimeout(wait)
            for piece in pieces:
                s.sendall(piece)
                try:
                    got = s.recv(4096)
                except socket.timeout:
                    pass
    except OSError:
        pass
    return got


def _undisturbed(f, name):
    """The job goes on with all hosts."""
    lab = f.lab
    before = [lab.merges(i) for i in range(lab.n)]
    good = until(lambda: all(lab.merges(i) > b >= 0 for i, b in enumerate(before)), 5, .05)
    lab.tap.ok(good and f.statement.running(), f"{name}: the job goes on", f.statement.text(), before)


def strangers(lab):
    """Noise, idle connections and forged greetings at every port of a running job."""
    random.seed(1)
    open_bridge()
    with Fault(lab, "strangers", fault.MERGE) as f:
        ports = _ports(lab)
        lab.tap.ok(len(ports) >= lab.n + 1, f"{len(ports)} ports are open in a job: a mesh each, and the membership's")
        lab.tap.ok(all(a.startswith("10.99.0.") for a, _ in ports), "none of them on every address", ports)
        for place in ports:
            for i in range(10):
                noise = random.randbytes(4096)
                _say(place, [noise, b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", struct.pack("<I", MAGIC) + noise,
                             noise[:10]][i % 4], wait=.01)
        _undisturbed(f, "noise")
        rank = {lab.net.address(i): i for i in range(lab.n)}
        for place in ports:
            for epoch in (0, 1, 2, 1000, 0xFFFFFFFF):
                for kind in (DATA, CONTROL, 7):
                    _say(place, _mesh_hello(f.job, rank[place[0]], epoch, kind), bytes(32), wait=.05)
            _say(place, _mesh_hello("00" * 16, rank[place[0]]), bytes(32), wait=.05)
            _say(place, _member_hello(f.job), os.urandom(32), random.randbytes(256), wait=.05)
            _say(place, _member_hello("00" * 16), bytes(32), random.randbytes(256), wait=.05)
        _undisturbed(f, "wrong secrets, stale and future epochs")
        _idle(f, ports)
        f.stopped()
        f.same_commit(range(lab.n))
        f.afterwards()


def _idle(f, ports):
    lab = f.lab
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    sockets, refused = [], 0
    for i in range(1000):
        try:
            sockets.append(dial(*ports[i % len(ports)], seconds=1))
        except OSError:
            refused += 1
    held = [sum(1 for s in proc.tcp(h.cnnd.pid) if s[3] == "10.99.0.99" and s[0] == 1) for h in lab.hosts]
    lab.tap.ok(max(held) <= 64, f"1,000 idle connects ({refused} refused): daemons hold {held}")
    _undisturbed(f, "1,000 idle connects")
    none = until(lambda: not any(s[3] == "10.99.0.99" for h in lab.hosts for s in proc.tcp(h.cnnd.pid)
                                 if s[0] == 1), 10, .1)
    lab.tap.ok(none, f"after a while none of them is held ({none:.1f} s)")
    for s in sockets:
        s.close()


def _is_mesh(c, kind):
    # a hello of the mesh is 128 bytes with the job at 8, one of the membership 80 with it at 16
    return len(c.kept[0]) >= 40 and c.kept[0][8:16] != bytes(8) and struct.unpack_from("<I", c.kept[0], 36)[0] == kind


def _is_member(c):
    return len(c.kept[0]) >= 40 and c.kept[0][8:16] == bytes(8)


def wire(lab):
    """One flipped byte is found: the mesh is built anew and nobody is lost; on the link of the
    membership it ends that member."""
    for name, target, kinds, lost in (("a merge", 1, lambda c: _is_mesh(c, DATA), None),
                                      ("a heartbeat", 1, lambda c: _is_mesh(c, CONTROL), None),
                                      ("the membership", 0, _is_member, "node2")):
        proxy = Proxy(lab.net, 2, target, MERGE_PORTS, Flip(kinds))
        left = [0, 1] if lost else [0, 1, 2]
        try:
            with Fault(lab, f"a flipped byte of {name}", fault.MERGE, min_hosts=2) as f:
                proxy.tamper.armed = True
                lab.tap.ok(until(lambda: proxy.tamper.done, 10), "a byte was flipped")
                f.go(lambda: None)
                f.goes_on(left, fault.SILENT)
                lab.tap.ok(any("damaged" in line for h in lab.hosts for line in h.log_tail(1000)),
                           "a daemon has noticed")
                f.stopped(lost)
                f.same_commit(left)
                f.afterwards(next_job=False)
        finally:
            proxy.close()


def handshake(lab):
    """A byte of a handshake is flipped: who cannot prove the secret is named in an error, or refused and
    dialed again. A recorded handshake opens nothing: neither of its own job nor of the next."""
    tap = lab.tap
    tap.prefix = "a flipped byte of a nonce: "
    proxy = Proxy(lab.net, 2, 1, MERGE_PORTS, Flip(lambda c: _is_mesh(c, DATA), 90, times=1000))
    s = lab.run(train("damaged"), 30)
    tap.ok("does not know the job's secret" in s.text() and "node1" in s.text() and s.seconds < fault.NAMED,
           f"an error that names the host ({s.seconds:.1f} s)", s.text())
    proxy.close()
    lab.clean()
    tap.prefix = "a flipped byte of a proof: "
    proxy = Proxy(lab.net, 2, 1, MERGE_PORTS, Flip(lambda c: _is_mesh(c, CONTROL), 140, times=2))
    lab.next_works()
    tap.equal(len(proxy.tamper.done), 2, "two connections were damaged")
    proxy.close()
    tap.prefix = ""
    proxy = Proxy(lab.net, 2, 1, MERGE_PORTS)
    try:
        with Fault(lab, "replayed handshakes", fault.MERGE) as f:
            recorded = [(c.port, c.kept[0]) for c in proxy.connections if len(c.kept[0]) >= 160]
            tap.ok(len(recorded) >= 2, f"{len(recorded)} handshakes were recorded")
            for port, data in recorded:
                _say((lab.net.address(1), port), data[:160], wait=.05)
                _say((lab.net.address(1), port), data[:128], data[128:160], wait=.05)
                _say((lab.net.address(1), port), data, wait=.05)
            _undisturbed(f, "to their own job")
            f.stopped()
        with Fault(lab, "replayed handshakes, next job", fault.MERGE) as f:
            for address, port in proc.listening(lab.hosts[1].cnnd.pid):
                for _, data in recorded:
                    _say((address, port), data[:160], wait=.05)
            _undisturbed(f, "to another job")
            f.stopped()
            f.afterwards()
    finally:
        proxy.close()


CASES = [strangers, wire, handshake]
