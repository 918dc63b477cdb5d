"""python -m onepass: where the command itself is not on the path."""

from onepass.cli import main

if __name__ == "__main__":  # a worker process imports this, too
    main()
