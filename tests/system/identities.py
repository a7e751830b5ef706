"""The users of the test bed's API server: tokens, groups and the kubeconfig file of each program."""

import secrets
import shutil
import subprocess
from enum import Enum
from pathlib import Path

import yaml

from tests.system.controlplane import build

TOKENS = "tokens.csv"
SERVICE_ACCOUNT_KEY = "sa.key"


class User(Enum):
    """The identities of the token file: name, then groups. Leeboard is never an administrator."""

    ADMIN = ("admin", "system:masters")
    KWOK = ("kwok", "system:masters")
    OPERATORS = ("operators", "system:masters")
    SCHEDULER = ("system:kube-scheduler", "")
    CONTROLLER_MANAGER = ("system:kube-controller-manager", "")
    TENANT = ("tenant", "team-a")
    """Has no right until a test grants some."""
    LEEBOARD = ("system:serviceaccount:leeboard:leeboard", "system:serviceaccounts,system:serviceaccounts:leeboard")

    @property
    def file_name(self) -> str:
        """Return the name of its kubeconfig."""
        return f"{self.value[0].rpartition(':')[2]}.kubeconfig"


class Identities:
    """A token for each user, created for each bed."""

    def __init__(self) -> None:
        self.tokens = {user: secrets.token_hex(16) for user in User}

    def write(self, folder: Path, *, url: str, ca: Path) -> None:
        """Write the token file, the key that signs service account tokens, and a kubeconfig for each user."""
        _write_key(folder / SERVICE_ACCOUNT_KEY)
        _write_private(folder / TOKENS, "".join(f"{self._line(user)}\n" for user in User))
        for user in User:
            _write_private(folder / user.file_name, _kubeconfig(url, ca, user=user.value[0], token=self.tokens[user]))

    def _line(self, user: User) -> str:
        name, groups = user.value
        return f'{self.tokens[user]},{name},{name},"{groups}"'


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _kubeconfig(url: str, ca: Path, *, user: str, token: str) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {"server": url, "certificate-authority": str(ca)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": user}}],
        "current-context": "bed",
    }
    return yaml.safe_dump(document)


def _write_key(path: Path) -> None:
    # Kept over restarts: a new key would invalidate every service account token of a restored store.
    if path.exists():
        return
    openssl = shutil.which("openssl")
    if openssl is None:
        raise build.ToolchainMissingError("The system tests need `openssl` to make a key: it is not on the PATH.")
    subprocess.run([openssl, "genrsa", "-out", path, "2048"], check=True, capture_output=True)
