"""A Colab runtime without a network: what a chapter asks of another host fails."""

import socket

import google.colab.output  # noqa: F401  its kernel has both before a notebook runs

_connect, _getaddrinfo = socket.socket.connect, socket.getaddrinfo
_OWN = ("127.0.0.1", "::1", "localhost", "", None)


def connect(self, address):
    if isinstance(address, tuple) and address[0] not in _OWN:
        raise OSError(f"no network in this test: {address[0]}")
    return _connect(self, address)


def getaddrinfo(host, *rest, **named):
    if host not in _OWN:
        raise socket.gaierror(f"no network in this test: {host}")
    return _getaddrinfo(host, *rest, **named)


socket.socket.connect, socket.getaddrinfo = connect, getaddrinfo
