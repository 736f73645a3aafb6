"""The commands of ``lessvfl kit``: keys and certificates for server and parties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lessvfl.cli import results
from lessvfl.cli.options import read_names

if TYPE_CHECKING:
    from lessvfl.remote.certificates import Certificate

app = typer.Typer(
    no_args_is_help=True, help="Identity: keys and certificates of server and parties."
)

Days = Annotated[int, typer.Option(help="How long certificates are valid.")]
NewFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")]


@app.command()
def init(
    folder: NewFolder,
    parties: Annotated[str, typer.Option(help="Their names: clinic,insurer.")],
    server_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or address of the server, besides localhost; repeatable."
        ),
    ] = None,
    days: Days = 365,
) -> None:
    """Make a private CA, and a folder for the server and each party."""
    from lessvfl.errors import ConfigError
    from lessvfl.remote import certificates

    names = read_names(parties)
    if number := next((name for name in names if name.isdecimal()), None):
        raise ConfigError(
            "The '--parties' option must be names as in clinic,insurer, not a number. "
            f"Got {number!r}."
        )
    certificates.init(folder, names, server_name or [], days)
    typer.echo(f"{folder / 'ca'}: the CA; keep ca-key.pem offline")
    typer.echo(f"{folder / 'server'}: for the server")
    for name in names:
        typer.echo(f"{folder / name}: for {name}; hand it over, delete it here")
    results.say(
        "Next, on every side: fill in what says FILL IN in its .yaml file, then"
    )
    typer.echo("  lessvfl server --config server.yaml")
    typer.echo("  lessvfl party --config party.yaml")
    typer.echo(
        "Before predictions, name in 'predict_ids' of each party who may be asked for"
    )


@app.command()
def request(
    folder: NewFolder, name: Annotated[str, typer.Option(help="The party's name.")]
) -> None:
    """Make a party's own key, which stays here, and a request to sign it."""
    from lessvfl.remote import certificates

    fingerprint = certificates.request(folder, name)
    typer.echo(f"{folder / 'key.pem'}: keep it to yourself")
    typer.echo(f"{folder / 'request.pem'}: send it to the CA's holder")
    typer.echo(f"key: SHA256 {fingerprint}")


@app.command()
def sign(
    ca: Annotated[
        Path, typer.Argument(metavar="CA_DIR", help="Folder of ca.pem and ca-key.pem.")
    ],
    request_file: Annotated[
        Path, typer.Argument(metavar="REQUEST", help="A party's request.pem.")
    ],
    out: Annotated[Path, typer.Option(help="Certificate to write, ca.pem beside it.")],
    name: Annotated[str, typer.Option(help="The name that the request must have.")],
    days: Days = 365,
    new_key: Annotated[
        bool,
        typer.Option("--new-key", help="Also if another key was signed for the name."),
    ] = False,
) -> None:
    """Check a party's request, and write its certificate."""
    from lessvfl.remote import certificates

    _print(certificates.sign(ca, request_file, out, name, days, new_key=new_key))
    typer.echo(f"Send {out} and {out.with_name('ca.pem')} to the party.")


@app.command()
def show(
    certificate: Annotated[Path, typer.Argument(help="A certificate, cert.pem.")],
) -> None:
    """Show whom a certificate names, and how long it is valid."""
    from lessvfl.remote import certificates

    _print(certificates.read(certificate))


def _print(certificate: Certificate) -> None:
    typer.echo(f"name: {certificate.name}")
    typer.echo(f"role: {certificate.role}")
    typer.echo(f"issuer: {certificate.issuer}")
    first, last = certificate.not_before, certificate.not_after
    typer.echo(f"valid: {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC")
    typer.echo(f"fingerprint: SHA256 {certificate.fingerprint}")
    typer.echo(f"key: SHA256 {certificate.key_fingerprint}")
    if certificate.problem is not None:
        typer.echo(f"NOT VALID TODAY: it {certificate.problem}")
