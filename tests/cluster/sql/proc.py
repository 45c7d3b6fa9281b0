# SPDX-License-Identifier: MIT
"""proc.py: what /proc says about processes of this process namespace."""
import os
import re


def pids():
    return [int(p) for p in os.listdir("/proc") if p.isdigit()]


def read(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def stat(pid):
    """(state, parent), or None when it is gone."""
    text = read(f"/proc/{pid}/stat")
    if not text:
        return None
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def alive(pid):
    s = stat(pid)
    return bool(s) and s[0] not in "ZX"


def title(pid):
    return read(f"/proc/{pid}/cmdline").replace("\0", " ").strip() or read(f"/proc/{pid}/comm").strip()


def children(pid):
    return [p for p in pids() if (stat(p) or ("", 0))[1] == pid and alive(p)]


def living():
    """pid: title of all that run."""
    return {p: title(p) for p in pids() if alive(p)}


def fds(pid):
    found = {}
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                found[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                pass
    except OSError:
        pass
    return found


def threads(pid):
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def anonymous_kb(pid):
    m = re.search(r"^RssAnon:\s+(\d+)", read(f"/proc/{pid}/status"), re.M)
    return int(m.group(1)) if m else 0


def tcp(pid):
    """TCP sockets that pid holds: (state, local address, local port, remote address, remote port);
    state is the kernel's number, 1 established, 10 listening."""
    inodes = {m.group(1) for m in (re.match(r"socket:\[(\d+)\]", t) for t in fds(pid).values()) if m}
    found = []
    for line in read(f"/proc/{pid}/net/tcp").splitlines()[1:]:
        w = line.split()
        if w[9] in inodes:
            found.append((int(w[3], 16), *_address(w[1]), *_address(w[2])))
    return found


def listening(pid):
    return sorted((a, p) for s, a, p, _, _ in tcp(pid) if s == 10)


def _address(text):
    host, port = text.split(":")
    raw = bytes.fromhex(host)[::-1]
    return ".".join(str(b) for b in raw), int(port, 16)
