"""Words why a write to the API server was not done, so that the sentence blames the right program.

Users read these sentences: "the API server refuses" is said only of a write that the API server has refused.
"""

from app.model.seam import KubeError, NotSentError, OutcomeUnknownError, UnavailableError, WebhookFailedError


def unwritten(what: str, error: KubeError) -> str:
    """Return which program did not do a write, and why; `what` is the write, such as `the binding`."""
    match error:
        case NotSentError():
            return f"Leeboard did not send {what}: {error}"
        case WebhookFailedError():
            return f"an admission webhook failed on {what}: {error}"
        case UnavailableError():
            return f"the API server could not take {what}: {error}"
        case OutcomeUnknownError():
            return f"the API server did not confirm {what}: {error}"
        case _:
            return f"the API server refuses {what}: {error}"
