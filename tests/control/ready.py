"""A condition of deciding that the test sets."""

from dataclasses import dataclass


@dataclass
class Told:
    """Holds as long as there is no `why`."""

    why: str = ""

    def failure(self) -> str:
        return self.why
