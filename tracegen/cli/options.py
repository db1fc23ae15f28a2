"""Options that several commands share, worded once."""

from __future__ import annotations

from typing import Any

import click

spec = click.option("--spec", "spec", metavar="SPEC", help="A spec file, or the name of a spec in the catalogue.")
overrides = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key: --set parallelism.tp=4 (repeatable).",
)
traces = click.option(
    "--traces", metavar="DIR|PREFIX", help="A folder that emit wrote, or the prefix of files PREFIX.<rank>.et."
)
execution = click.option(
    "--execution",
    type=click.Choice(["streams", "astra"]),
    help="What a rank does at once: streams of a GPU, or ASTRA-sim's slots and clock.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


def astra_files(function: Any) -> Any:
    """--network, --system, --memory, --comm-group: ASTRA-sim's input files beside the traces."""
    for flag, what in (
        ("--comm-group", "ASTRA-sim's comm_group.json"),
        ("--memory", "ASTRA-sim's memory.json"),
        ("--system", "ASTRA-sim's system.json"),
        ("--network", "ASTRA-sim's network.yml"),
    ):
        function = click.option(flag, type=click.Path(), metavar="FILE", help=f"{what}.")(function)
    return function


def astra_flags(function: Any) -> Any:
    """--network-model and ASTRA-sim's own flags, spelled as there."""
    for option in reversed((
        click.option(
            "--network-model", type=click.Choice(["analytical", "congestion"]),
            help="Under astra: ASTRA-sim's congestion-unaware (analytical) or congestion-aware backend.",
        ),
        click.option("--num-queues-per-dim", "queues", type=click.IntRange(min=1), metavar="N",
                     help="ASTRA-sim's logical queues per dimension (1)."),
        click.option("--rendezvous-protocol", "rendezvous", is_flag=False, flag_value="true", type=bool,
                     metavar="[BOOL]", help="ASTRA-sim's: a receiver asks before a sender sends."),
        click.option("--injection-scale", type=click.FloatRange(min=0), metavar="X",
                     help="ASTRA-sim's factor on endpoint-delay (1)."),
    )):  # fmt: skip
        function = option(function)
    return function
