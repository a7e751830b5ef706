"""Certificates as other tools create them: any kind of key, any purpose, any dates."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from app.certificates.authority import CertificateAuthority

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key."""

    chain: bytes
    key: bytes


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


def issued(  # noqa: PLR0913 # each has a default that most tests leave alone
    by: CertificateAuthority,
    name: str = "localhost",
    *,
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | None = None,
    purpose: x509.ObjectIdentifier = SERVER,
    begins_at: float | None = None,
    valid_s: float = 3600.0,
) -> Pair:
    """Let an authority sign a certificate for `name`, which is valid from now on unless told otherwise."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(by.certificate)
    issuer_key = serialization.load_pem_private_key(by.key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    begins = datetime.now(UTC) - timedelta(hours=1) if begins_at is None else datetime.fromtimestamp(begins_at, UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(hours=1 if begins_at is None else 0, seconds=valid_s))
        .add_extension(x509.SubjectAlternativeName([_general(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(chain=made.public_bytes(serialization.Encoding.PEM), key=private)


def _general(name: str) -> x509.GeneralName:
    # Clients look up an address among addresses only.
    return x509.IPAddress(ip_address(name)) if name[0].isdigit() else x509.DNSName(name)
