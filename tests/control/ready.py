"""A condition of leadership that the test sets."""

from dataclasses import dataclass


@dataclass
class Told:
    """Holds while there is no `why`."""

    why: str = ""

    def failure(self) -> str:
        return self.why
