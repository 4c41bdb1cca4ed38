"""Raw bytes to a server and what comes back, with times: for the tests of framing and of slow clients."""

import re
import select
import socket
import time


def connect(address, seconds=10):
    """`address`: (host, port), or the path of a Unix socket."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    out = socket.socket(family, socket.SOCK_STREAM)
    out.settimeout(seconds)
    out.connect(address)
    if family == socket.AF_INET:
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return out


def exchange(address, segments, seconds=3.0, pause=0.01, enough=None):
    """Sends the segments one after the other, then reads until the server closes, `seconds` are over or there are `enough` answers.
    Returns (bytes, seconds from the first byte of the answer to the end of the connection or None)."""
    with connect(address) as peer:
        answer, first, closed = b"", None, None
        end = time.monotonic() + seconds
        for i, segment in enumerate(segments):
            try:
                peer.sendall(segment)
            except OSError:
                break  # refused already: the answer is there to be read
            if i + 1 < len(segments):
                time.sleep(pause)
        peer.setblocking(False)
        while time.monotonic() < end and (enough is None or len(statuses(answer)) < enough):
            if not select.select([peer], [], [], max(0.0, end - time.monotonic()))[0]:
                break
            try:
                piece = peer.recv(65536)
            except BlockingIOError:
                continue
            except OSError:
                piece = b""
            if not piece:
                closed = time.monotonic()
                break
            first = first or time.monotonic()
            answer += piece
        return answer, (closed - (first or closed)) if closed else None


def statuses(answer):
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
