"""The connection between `lockstep elastic` and a process of its job, as both ends set it up."""

from __future__ import annotations

import hashlib
import hmac
import socket

# A host that is cut off is noticed after this many seconds of silence.
_SILENCE_SECONDS = 4


def keep_alive(connection: socket.socket) -> None:
    """Makes the kernel ask the other host each second whether it is there, so that no process has to."""
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, _SILENCE_SECONDS)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, 1000 * _SILENCE_SECONDS)


def proof_of(secret: str, nonce: bytes, member: str) -> str:
    """Returns the proof that a member knows the secret of the job, for a random number of `lockstep elastic`."""
    return hmac.new(secret.encode(), b"lockstep member " + member.encode() + b" " + nonce, hashlib.sha256).hexdigest()
