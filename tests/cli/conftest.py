"""Keeps the kubeconfig and the variables of the person who runs the tests out of them."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "LEEBOARD_KUBECONFIG", "LEEBOARD_URL", "LEEBOARD_SERVER", "LEEBOARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
