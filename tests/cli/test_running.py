"""What a command says when several things go wrong at once."""

from app.cli.running import first_of


def test_the_error_that_matters_is_found_however_deep_and_whatever_else_went_wrong() -> None:
    sought = KeyError("sought")
    nested = ExceptionGroup("outer", [ValueError("first"), ExceptionGroup("inner", [OSError("other"), sought])])

    assert (first_of(nested, KeyError), first_of(sought, KeyError), first_of(nested, TypeError)) == (
        sought,
        sought,
        None,
    )
