"""Lets `python -m app` stand for the console script."""

from app.cli import main

if __name__ == "__main__":
    main(prog_name="leeboard")
