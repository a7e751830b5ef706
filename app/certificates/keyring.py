"""The CAs that all replicas share through one Secret: those that exist, and those that should. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.certificates.authority import CertificateAuthority, CertificateError, make_authority, read_authority


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """The lifetimes of CAs and certificates, in seconds."""

    ca_rotation_s: float
    """Never shorter than the time that all replicas need to follow."""
    certificate_rotation_s: float

    @property
    def certificate_s(self) -> float:
        """The lifetime of a serving certificate."""
        return max(3 * self.certificate_rotation_s, 24 * 3600.0)

    @property
    def ca_s(self) -> float:
        """The lifetime of a CA. It signs until the next CA is trusted, and its certificates are valid after that."""
        return 3 * max(self.ca_rotation_s, self.certificate_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The newest CA and the previous one, which stays trusted until there is a third."""

    newest: CertificateAuthority
    previous: CertificateAuthority | None = None

    @property
    def bundle(self) -> bytes:
        """The content of caBundle. It has the same bytes in every replica that has read the same Secret."""
        return b"".join(each.certificate for each in (self.newest, self.previous) if each)

    @property
    def contents(self) -> Mapping[str, bytes]:
        """The content of the Secret."""
        previous = self.previous
        return {
            "ca.crt": self.newest.certificate,
            "ca.key": self.newest.key,
            "previous.crt": previous.certificate if previous else b"",
            # A replica that starts before the newest CA is trusted signs with the previous CA.
            "previous.key": previous.key if previous else b"",
        }

    def is_due(self, *, now: float, lifetimes: Lifetimes) -> bool:
        """Whether a new CA should be made, provided that all replicas have followed the last one."""
        return now >= self.newest.made_at + lifetimes.ca_rotation_s

    def followed(self, *, now: float, lifetimes: Lifetimes) -> "Keyring":
        """Return the keyring with one more CA and without the oldest."""
        return Keyring(newest=make_authority(now=now, valid_s=lifetimes.ca_s), previous=self.newest)


def new_keyring(*, now: float, lifetimes: Lifetimes) -> Keyring:
    """Return a keyring with one new CA."""
    return Keyring(newest=make_authority(now=now, valid_s=lifetimes.ca_s))


def read_keyring(contents: Mapping[str, bytes]) -> Keyring | None:
    """Read the content of the Secret; None when it is empty or has no CA that can sign."""
    certificate, key = contents.get("ca.crt", b""), contents.get("ca.key", b"")
    try:
        # `read_authority` accepts a CA without a key, which cannot sign.
        newest = read_authority(certificate, key) if key else None
    except CertificateError:
        return None
    return Keyring(newest=newest, previous=_previous(contents)) if newest else None


def _previous(contents: Mapping[str, bytes]) -> CertificateAuthority | None:
    try:
        return read_authority(contents.get("previous.crt", b""), contents.get("previous.key", b""))
    except CertificateError:
        return None
