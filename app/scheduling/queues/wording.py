"""Words the amounts of a queue, and why a queue refuses them."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.model.names import QueueName
from app.model.reason import Reason, Refusal
from app.model.resources import CPU, GPU, MEMORY
from app.model.sentence import NAMES_SHOWN, counted
from app.scheduling.queues.accounts import Account


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The words for a resource; `milli` amounts are a thousandth of `unit`."""

    asked: str
    unit: str
    milli: int
    is_counted: bool = True
    """The unit has a plural. Memory has none."""

    def amount(self, amount: int) -> str:
        """Write an amount with its unit."""
        said = self.said(amount)
        return counted(said, self.unit) if self.is_counted else f"{said} {self.unit}"

    def said(self, amount: int) -> str:
        """Return an amount in the unit, cut to three digits as KAI does."""
        sign, whole = ("-" if amount < 0 else ""), abs(amount) // self.milli
        return sign + f"{whole // 1000}.{whole % 1000:03d}".rstrip("0").rstrip(".")


_WORDS = {
    CPU: _Words(asked="CPU cores", unit="core", milli=1),
    MEMORY: _Words(asked="GB memory", unit="GB", milli=1_000_000, is_counted=False),
    GPU: _Words(asked="GPUs", unit="GPU", milli=1),
}


def amount_text(axis: int, amount: int) -> str:
    """Return the text for an amount of one of `QUOTA_AXES`."""
    return _WORDS[axis].amount(amount)


def over_limit(account: Account, axis: int, requested: int) -> Refusal:
    """Return the sentence that an account refuses an amount because of its limit."""
    words = _WORDS[axis]
    amounts = account.limit[axis], account.allocated[axis], requested
    limit, held, asked = map(words.said, amounts)
    is_full = account.allocated[axis] >= account.limit[axis]
    what = "has reached" if is_full else "would exceed"
    most, has, wants = map(words.amount, amounts)
    are = "is" if asked == "1" else "are"
    sentence = f"Queue {account.name} {what} its limit of {most}: it holds {has}, and {wants} {are} requested."
    numbers = {"resource": words.asked, "limit": limit, "allocated": held, "requested": asked}
    return refused(Reason.OVER_LIMIT, sentence, queue=account.name, **numbers)


def over_quota(account: Account, axis: int, requested: int) -> Refusal:
    """Return the sentence that an account refuses a non-preemptible amount because of its deserved share."""
    words = _WORDS[axis]
    firm = account.non_preemptible[axis]
    amounts = account.deserved[axis], firm, requested
    deserved, held, asked = map(words.said, amounts)
    most, has, wants = map(words.amount, amounts)
    # KAI's sentence, which its recorded cases compare.
    sentence = (
        f"Non-preemptible workload is over quota. Workload requested {wants}, but {account.name} quota is {most}, "
        f"while {has} {'is' if held == '1' else 'are'} already allocated for non-preemptible pods. "
        "Use a preemptible workload to go over quota."
    )
    numbers = {"resource": words.asked, "deserved": deserved, "allocated": held, "requested": asked}
    return refused(Reason.NON_PREEMPTIBLE_OVER_QUOTA, sentence, queue=account.name, **numbers)


def missing(name: QueueName, hint: str) -> Refusal:
    """Return the sentence that no queue has this name; `hint` is a question, or nothing."""
    sentence = f"Queue {name} does not exist; {hint or 'create it, or name another queue.'}"
    return refused(Reason.QUEUE_DOES_NOT_EXIST, sentence, queue=name)


def not_a_leaf(name: QueueName, leaves: Sequence[QueueName]) -> Refusal:
    """Return the sentence that pods do not go to a queue that has child queues; `leaves` are some of these."""
    more = len(leaves) - NAMES_SHOWN
    shown = ", ".join([*leaves[:NAMES_SHOWN], *([f"and {more} more"] if more > 0 else [])])
    below = f"a leaf queue below it{f' ({shown})' if shown else ''}"
    sentence = f"Queue {name} takes no pods, because it has child queues; name {below}."
    return refused(Reason.QUEUE_IS_NOT_A_LEAF, sentence, queue=name)


def refused(reason: Reason, sentence: str, **details: str) -> Refusal:
    """Make a refusal of a queue."""
    return Refusal(reason=reason, sentence=sentence, details=details)
