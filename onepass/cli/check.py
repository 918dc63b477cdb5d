"""`onepass check`: runs the contract's checks on one method."""

from __future__ import annotations

from typing import Annotated

import typer

from onepass.base import devices, plugins
from onepass.base.errors import InputError
from onepass.cli import options as shared
from onepass.cli.app import Imports, app, messages, print_text
from onepass.learning import registry


@app.command(
    name="check",
    epilog="""\b
Examples:
  onepass check my.module:MyMethod
  onepass check lwf --import lwf
  onepass check lwf --import lwf --only the-step-stays-on-the-device
  onepass check gsa --device cuda""",
)
def check_command(
    method: Annotated[
        str,
        typer.Argument(
            metavar="METHOD",
            help="MODULE:CLASS, or the name of a registered method.",
            autocompletion=shared.complete_methods,
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run only this check, with - or _ for spaces; repeatable.",
            autocompletion=shared.complete_checks,
        ),
    ] = None,
    device: shared.Device = "cpu",
    imports: Imports = None,
) -> None:
    """Check that a method keeps the contract of all methods.

    The contract has some forty checks: exact resume, bounded memory, declared costs and so on.
    This takes seconds to minutes. A failed check says what was expected, what was found and at
    which line of the method's file to look. The exit status is 1 if a check fails.
    """
    from onepass.learning.learner import Learner
    from onepass.tools.checks import exemptions, run_checks

    devices.resolve_device(device)
    found = plugins.import_reference(method) if ":" in method else registry.get(method).learner
    if not (isinstance(found, type) and issubclass(found, Learner)):
        raise InputError(f"{method!r} is not a class derived from onepass.Learner")
    exempt, passed, failed = exemptions(found, only or ()), 0, 0
    for name, problem in run_checks(found, device, only or ()):
        words = name.replace("_", " ")
        print_text(
            f"FAILED  {words}: {' '.join(problem.split())}" if problem else f"ok      {words}"
        )
        passed, failed = passed + (not problem), failed + bool(problem)
    for name, why in exempt.items():
        print_text(f"exempt  {name.replace('_', ' ')}: {why}")
    messages.print(f"{passed} passed, {failed} failed, {len(exempt)} exempt")
    if failed:
        raise typer.Exit(1)
