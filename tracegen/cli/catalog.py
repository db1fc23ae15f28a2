"""`tracegen catalog`: what the catalogue has, or one entry of it."""

from __future__ import annotations

import click

from tracegen.cli import options

SECTIONS = ("models", "devices", "clusters", "specs")


@click.command()
@click.argument("section", required=False, type=click.Choice(SECTIONS))
@click.argument("name", required=False)
@options.as_json
def catalog(section: str | None, name: str | None, as_json: bool) -> None:
    """List the catalogue, one SECTION of it, or show the entry NAME as it is written."""
    from tracegen.cli import show
    from tracegen.spec import catalog as shelves

    if section and name:
        name = name.removesuffix(".yaml")
        file = shelves.path(section, name)
        if as_json:
            show.document("catalog", {"section": section, "name": name, "entry": shelves.load(section, name).data})
        else:
            click.echo(file.read_text(encoding="utf-8"), nl=False)
        return
    found = {part: shelves.names(part) for part in ([section] if section else SECTIONS)}
    if as_json:
        show.document("catalog", {part: list(names) for part, names in found.items()})
        return
    for part, names in found.items():
        click.echo(click.wrap_text(f"{part}: {'  '.join(names)}", show.WIDTH, subsequent_indent="  "))
