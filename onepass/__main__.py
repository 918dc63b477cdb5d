"""Runs the command line as `python -m onepass`, if `onepass` is not on the path."""

from onepass.cli import main

if __name__ == "__main__":  # a spawned worker process imports this module too
    main()
