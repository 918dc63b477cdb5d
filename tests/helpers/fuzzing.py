"""Fuzzing with seeded cases: a few of each kind in the suite, many in `make fuzz`.

A kind is a function of a generator. It makes one case, tries it, and raises if the case fails. It
must neither leave files behind nor depend on earlier cases, so that the seed in the error repeats
it: `try_case("readers 17", a_case)`.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

Case = Callable[[random.Random], None]


def fuzz(kind: str, a_case: Case, few: int) -> None:
    """Tries `few` cases, or all that fit into $FUZZ_SECONDS, and always prints their number."""
    seconds = float(os.environ.get("FUZZ_SECONDS", "0"))
    began, count = time.monotonic(), 0
    try:
        while time.monotonic() < began + seconds if seconds else count < few:
            try_case(f"{kind} {count}", a_case)
            count += 1
    finally:
        print(f"\n{kind}: {count} cases in {time.monotonic() - began:.0f} s", flush=True)


def try_case(seed: str, a_case: Case) -> None:
    try:
        a_case(random.Random(seed))
    except BaseException as failed:
        failed.add_note(f"case: {seed!r}")
        raise


def without_bars() -> AbstractContextManager[object]:
    """Keeps the bars of decoding out of what is printed."""
    return patch("onepass.data.cache._progress_bar", lambda *_: nullcontext(lambda done: None))
