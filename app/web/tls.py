"""The TLS of a listener whose certificate changes while it serves: a handshake takes what is in use as it begins.

Connections that stand keep what they began with. Nothing is resumed, so that no CA outlives its change.
"""

import os
import ssl

from app.certificates.authority import Certificate, CertificateError, Clients

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all good."""


class LiveTls:
    """A context for as long as the listener lives.

    Each change is a context of its own, to which the handshake is moved. Loaded into one and the same, a certificate
    replaces only one with the same kind of key, and a client CA comes beside the one before it.
    """

    def __init__(self, clients: Clients = Clients.ANYBODY) -> None:
        """Serve nobody yet."""
        self._clients = clients
        # For handshakes that begin; replaced by `use`.
        self._current = _context(clients)
        # What they begin with; replaced by `context`.
        self._first = self._forgetful()

    def context(self) -> ssl.SSLContext:
        """Return what a handshake begins with. It knows no session that could be resumed."""
        # Of TLS 1.2 a context remembers the sessions that stand or were closed in order, and Python cannot forbid it.
        if self._first.session_stats()["number"]:
            self._first = self._forgetful()
        return self._first

    def use(self, certificate: Certificate) -> None:
        """Show it from the next handshake on; raises `CertificateError`, and goes on as before."""
        fresh = _context(self._clients)
        try:
            _load(fresh, certificate)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"TLS does not take it: {error}") from error
        self._current = fresh

    def _forgetful(self) -> ssl.SSLContext:
        context = _context(self._clients)
        context.sni_callback = self._take_current
        return context

    def _take_current(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called for every client, also for one that names nobody since it calls an IP address.
        handshake.context = self._current


def _context(clients: Clients) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    if clients is Clients.CERTIFIED:
        context.verify_mode = ssl.CERT_REQUIRED
        # Of TLS 1.2 two that begin at once could still resume one another's session: it would outlast the client's CA.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load(context: ssl.SSLContext, certificate: Certificate) -> None:
    # Python loads from files only. One in memory needs no writable file system, and the key touches no disk.
    memory = os.memfd_create("certificate")
    try:
        with os.fdopen(memory, "wb", closefd=False) as file:
            file.write(certificate.key + b"\n" + certificate.chain)
        # An empty password instead of a question at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{memory}", password="")
    finally:
        os.close(memory)
    if certificate.clients_ca:
        context.load_verify_locations(cadata=certificate.clients_ca.decode("ascii"))
