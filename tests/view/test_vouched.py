"""Users for whom the deciding process vouches at the view: nobody else can name a user there."""

from dataclasses import replace
from random import Random
from string import ascii_letters

import pytest

from app.model.rights import User
from app.view.vouched import VouchedCallers, vouched
from app.web.callers import Anybody, Caller, Nobody, RefusedError

SECRET = "secret"
JANE = User(name="jane", uid="7", groups=("a", "b"), extra=(("key", ("v", "w")),))


class Named(Nobody):
    """Records the users that are named, and refuses tokens."""

    def __init__(self) -> None:
        self.users: list[User] = []

    def of_user(self, user: User) -> Caller:
        self.users.append(user)
        return Anybody()


async def test_the_user_arrives_as_it_was_named() -> None:
    others = Named()

    await VouchedCallers(others, SECRET).of(vouched(JANE, SECRET), "127.0.0.1")

    assert others.users == [JANE]


async def test_a_user_in_hundreds_of_groups_arrives_and_one_in_thousands_is_told_so() -> None:
    def member(groups: int) -> User:
        return replace(
            JANE, groups=tuple(f"oidc:department-{number:04}:engineering-platform-members" for number in range(groups))
        )

    others, many = Named(), member(800)

    await VouchedCallers(others, SECRET).of(vouched(many, SECRET), "127.0.0.1")

    assert others.users == [many]
    letters = Random(1)
    named = tuple("".join(letters.choices(ascii_letters, k=60)) for _ in range(4000))
    with pytest.raises(RefusedError, match="too many groups"):
        vouched(replace(JANE, groups=named), SECRET)


@pytest.mark.parametrize(
    "authorization",
    [vouched(JANE, "guessed"), vouched(JANE, ""), vouched(JANE, "sécret"), "Vouched", "Bearer token", ""],
)
async def test_nobody_is_named_without_the_secret(authorization: str) -> None:
    others = Named()

    with pytest.raises(RefusedError):
        await VouchedCallers(others, SECRET).of(authorization, "127.0.0.1")

    assert others.users == []
