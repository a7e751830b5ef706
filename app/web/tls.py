"""The TLS of a listener whose certificate changes while it serves: a handshake uses the certificate of its start.

Established connections keep their certificate. Sessions are never resumed, so a replaced CA is not trusted any longer.
"""

import os
import ssl

from app.certificates.authority import Certificate, CertificateError, Clients

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The ciphers of TLS 1.2. All ciphers of TLS 1.3 are acceptable."""


class LiveTls:
    """The TLS context of a listener for its whole life.

    Each change creates a new context, to which new handshakes are moved. In a reused context, a new certificate
    replaces only one with the same type of key, and a new client CA is added to the old one.
    """

    def __init__(self, clients: Clients = Clients.ANYBODY) -> None:
        """Start without a certificate."""
        self._clients = clients
        # For new handshakes; `use` replaces it.
        self._current = _context(clients)
        # The context in which handshakes begin; `context` replaces it.
        self._first = self._forgetful()

    def context(self) -> ssl.SSLContext:
        """Return the context in which a handshake begins. It holds no session that could be resumed."""
        # With TLS 1.2 a context stores the sessions of open and cleanly closed connections. Python cannot turn that
        # off.
        if self._first.session_stats()["number"]:
            self._first = self._forgetful()
        return self._first

    def use(self, certificate: Certificate) -> None:
        """Use the certificate for new handshakes. On `CertificateError` the old certificate stays in use."""
        fresh = _context(self._clients)
        try:
            _load(fresh, certificate)
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"the TLS library refuses the certificate: {error}") from error
        self._current = fresh

    def _forgetful(self) -> ssl.SSLContext:
        context = _context(self._clients)
        context.sni_callback = self._take_current
        return context

    def _take_current(self, handshake: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # OpenSSL calls this for every client, also for one without a server name (a call by IP address).
        handshake.context = self._current


def _context(clients: Clients) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    if clients is Clients.CERTIFIED:
        context.verify_mode = ssl.CERT_REQUIRED
        # With TLS 1.2, two concurrent handshakes could resume each other's session. It would outlive the client's CA.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _load(context: ssl.SSLContext, certificate: Certificate) -> None:
    # Python loads certificates from files only. An in-memory file needs no writable file system, and the key stays off
    # disk.
    memory = os.memfd_create("certificate")
    try:
        with os.fdopen(memory, "wb", closefd=False) as file:
            file.write(certificate.key + b"\n" + certificate.chain)
        # The empty password prevents a prompt at the terminal.
        context.load_cert_chain(f"/proc/self/fd/{memory}", password="")
    finally:
        os.close(memory)
    if certificate.clients_ca:
        context.load_verify_locations(cadata=certificate.clients_ca.decode("ascii"))
