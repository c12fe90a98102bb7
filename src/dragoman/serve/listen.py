"""The listening socket of a server."""

from __future__ import annotations

import os
import socket

from dragoman.errors import DragomanError, UsageError

__all__ = ["listen"]


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 = any free port.

    Its connections send what is written at once (TCP_NODELAY).  Otherwise the second part of an answer, such as an
    event, would wait up to 40 ms for the acknowledgement of the first.
    Raises UsageError for an address that does not belong to this machine, DragomanError for a port that cannot be used.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--host {host[:80]}: no such address ({reason}); accepted: 127.0.0.1 (reachable from this machine only), "
            "0.0.0.0 (reachable from the network)"
        ) from None
    try:
        listener = socket.create_server(address, family=family, dualstack_ipv6=family == socket.AF_INET6)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by its connections
        return listener
    except OSError as error:
        other = port + 1 if 1024 <= port < 65535 else 8000
        raise DragomanError(
            f"cannot listen on {host}:{port} ({os.strerror(error.errno or 0)}); another program may use the port; "
            f"choose another, such as --port {other}, or --port 0 for any free one"
        ) from None
