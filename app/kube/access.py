"""Finds the API server and the credentials. kubernetes-asyncio reads kubeconfigs, service accounts and plugins."""

import os
import ssl
from dataclasses import dataclass, field

from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import load_incluster_config, load_kube_config

from app.kube.errors import AccessError


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Where the credentials are: a kubeconfig, or (None) the pod's service account, or else the user's kubeconfig."""

    kubeconfig: str | None = None
    context: str | None = None

    async def read(self) -> "Access":
        """Read the credentials now, and run an exec plugin if there is one; raise `AccessError`."""
        try:
            return _access(await self._configuration())
        except Exception as error:  # noqa: BLE001 - the loaders raise any error: yaml, OS, type, key, own
            # Not `from error`: the loader's text may quote a whole user entry, including its token, after the first
            # brace.
            text = str(error).partition("{")[0]
            raise AccessError(f"no access to the cluster: {type(error).__name__}: {text}") from None

    async def _configuration(self) -> Configuration:
        # A new Configuration each time: a reused one keeps a copy of the old token (kubernetes_asyncio#253).
        configuration = Configuration()
        if self.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load_incluster_config(client_configuration=configuration, try_refresh_token=False)  # type: ignore[no-untyped-call] # theirs
        else:
            await load_kube_config(self.kubeconfig, self.context, configuration, persist_config=False)
        return configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a connection needs. The authorization is a secret and appears in no text."""

    server: str
    authorization: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)


def _access(configuration: Configuration) -> Access:
    # The token file of a service account ends with a newline.
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
    # Python 3.13 sets this flag by default. Self-made cluster CAs often fail it, and no other Kubernetes client sets
    # it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
