"""Finds the API server and our credentials: kubernetes-asyncio knows kubeconfigs, service accounts and plugins."""

import os
import ssl
from dataclasses import dataclass, field

from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import load_incluster_config, load_kube_config

from app.kube.errors import AccessError


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Where our credentials are: a kubeconfig, or (None) the service account of our pod, or the user's kubeconfig."""

    kubeconfig: str | None = None
    context: str | None = None

    async def read(self) -> "Access":
        """Read them now, also running an exec plugin; raises `AccessError`."""
        try:
            return _access(await self._configuration())
        except Exception as error:  # noqa: BLE001 - the loaders raise what they like: yaml, OS, type and key errors, their own
            # Not `from error`: the loader's texts may quote a whole user entry, token and all, from its brace on.
            text = str(error).partition("{")[0]
            raise AccessError(f"no access to the cluster: {type(error).__name__}: {text}") from None

    async def _configuration(self) -> Configuration:
        # A fresh Configuration each time: a kept one goes on with a copy of the old token (kubernetes_asyncio#253).
        configuration = Configuration()
        if self.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=configuration, try_refresh_token=False)  # type: ignore[no-untyped-call] # theirs
        else:
            await load_kube_config(self.kubeconfig, self.context, configuration, persist_config=False)
        return configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a connection needs; the authorization is a secret and stays out of every text."""

    server: str
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)


def _access(configuration: Configuration) -> Access:
    # A service account's token is read with the newline that ends its file.
    authorization = str(configuration.api_key.get("BearerToken", "")).strip()
    if not (authorization.isascii() and authorization.isprintable()):
        raise ValueError("the token has characters that no header can carry")
    server = (configuration.host or "").rstrip("/")
    return Access(
        server=server,
        authorization=authorization,
        tls=_tls(configuration) if server.startswith("https:") else None,
        tls_server_name=configuration.tls_server_name,
        proxy=configuration.proxy,
    )


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python 3.13 turns this on, and self-made cluster CAs often fail it; no other Kubernetes client asks for it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
