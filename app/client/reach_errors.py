"""The errors of the client. Each message is one line that says what to do."""


class ReachError(Exception):
    """A question has no answer."""


class KubeconfigError(ReachError):
    """The kubeconfig, or the credentials that it names, cannot be used."""


class NoReplyError(ReachError):
    """A server does not answer, or answers something else than expected."""


class NotAuthenticatedError(ReachError):
    """A server does not know the caller."""


class NotAllowedError(ReachError):
    """The caller lacks a right."""


class NoSuchObjectError(ReachError):
    """There is no such object."""


class UnansweredError(ReachError):
    """The service was reached, and could not answer now."""


class OnStandbyError(ReachError):
    """A replica answers that another one decides."""


def said_by(error: Exception) -> str:
    """Return what an error says to a person: without the number of an error of the system."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
