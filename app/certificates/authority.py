"""Makes and reads certificates: Leeboard's own CA, the certificates that it signs, and certificates from files.

This module has no clock and stores nothing. Times are Unix seconds.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha256
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED_S = 3600.0
"""How far the API server's clock may be behind."""


class Clients(Enum):
    """The clients that may connect to a listener."""

    ANYBODY = "anybody"
    CERTIFIED = "certified"
    """Clients with a certificate that a configured CA has signed."""


class CertificateError(Exception):
    """A certificate or a key that cannot be used. The message says which, and what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A listener's certificate, key and CA, in PEM. They fit together."""

    chain: bytes
    """The certificate itself, then its intermediate certificates."""
    key: bytes = field(repr=False)
    clients_ca: bytes = b""
    """The CA that must have signed every client's certificate; empty means that clients need no certificate."""
    serial: int
    begins_at: float
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateAuthority:
    """A CA. Without its key it is only trusted and cannot sign."""

    certificate: bytes
    key: bytes = field(default=b"", repr=False)
    made_at: float
    expires_at: float

    @property
    def fingerprint(self) -> str:
        """A short hash that identifies the CA."""
        return sha256(self.certificate).hexdigest()[:16]


def make_authority(*, now: float, valid_s: float) -> CertificateAuthority:
    """Create a new CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    # With CAs of the same name, verifiers try one after the other. A unique name selects the right one directly.
    name = _named(f"Leeboard admission CA {x509.random_serial_number() % 2**64:016x}")
    usage = {name: name in ("key_cert_sign", "crl_sign") for name in _KEY_USAGES}
    made = (
        _dated(name, name, key.public_key(), now - BACKDATED_S, now + valid_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .sign(key, hashes.SHA256())
    )
    return read_authority(_pem(made), _key_pem(key))


def sign(authority: CertificateAuthority, names: Collection[str], *, now: float, valid_s: float) -> Certificate:
    """Create a key and a certificate for these names and IP addresses. It expires no later than its CA."""
    key, issuer_key = ec.generate_private_key(ec.SECP256R1()), _signing_key(authority.key)
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    usage = {name: name == "digital_signature" for name in _KEY_USAGES}
    begins_at, expires_at = now - BACKDATED_S, min(now + valid_s, authority.expires_at)
    made = (
        _dated(_named("Leeboard admission"), issuer.subject, key.public_key(), begins_at, expires_at)
        .add_extension(x509.SubjectAlternativeName([_general(name) for name in sorted(names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return read_certificate(_pem(made), _key_pem(key), now=now)


def read_authority(certificate: bytes, key: bytes = b"") -> CertificateAuthority:
    """Read a CA of Leeboard; raise `CertificateError` when it is unreadable or the key does not match."""
    (first, *more) = _read_chain(certificate, "ca.crt")
    if more:
        raise CertificateError("ca.crt holds more than one CA")
    if key and _signing_key(key).public_key() != first.public_key():
        raise CertificateError("ca.key is not the key of ca.crt")
    return CertificateAuthority(
        certificate=certificate,
        key=key,
        made_at=first.not_valid_before_utc.timestamp() + BACKDATED_S,
        expires_at=first.not_valid_after_utc.timestamp(),
    )


def read_certificate(chain: bytes, key: bytes, *, now: float, clients_ca: bytes | None = None) -> Certificate:
    """Read a listener's certificate; raise `CertificateError` when the parts do not match or are not valid now.

    Errors use the file names of Kubernetes TLS Secrets. `clients_ca` is None when clients need no certificate.
    """
    first = _read_chain(chain, "tls.crt")[0]
    if _read_key(key, "tls.key").public_key() != first.public_key():
        raise CertificateError("tls.key is not the key of tls.crt")
    _check_dates(first, now, "tls.crt")
    if clients_ca is not None:
        for authority in _read_chain(clients_ca, "ca.crt"):
            _check_dates(authority, now, "ca.crt")
    return Certificate(
        chain=chain,
        key=key,
        clients_ca=clients_ca or b"",
        serial=first.serial_number,
        begins_at=first.not_valid_before_utc.timestamp(),
        expires_at=first.not_valid_after_utc.timestamp(),
    )


_KEY_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


def _dated(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins_at: float, expires_at: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(begins_at, UTC))
        .not_valid_after(datetime.fromtimestamp(expires_at, UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _read_chain(pem: bytes, file: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"{file} holds no certificate that can be read") from error


def _read_key(pem: bytes, file: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not `from error`: its text may contain parts of the key.
        raise CertificateError(f"{file} holds no key that can be read without a password") from None


def _check_dates(certificate: x509.Certificate, now: float, file: str) -> None:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now >= ends.timestamp():
        raise CertificateError(f"{file} has expired at {ends:%Y-%m-%dT%H:%M:%SZ}")
    if now < begins.timestamp():
        raise CertificateError(f"{file} is not valid before {begins:%Y-%m-%dT%H:%M:%SZ}")


def _signing_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = _read_key(pem, "ca.key")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("ca.key is not an elliptic curve key")
    return key


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
