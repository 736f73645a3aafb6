"""The commands of ``lessvfl predict``: joint prediction with the model of a run."""

from __future__ import annotations

import contextlib
import logging
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lessvfl.cli import ending, remote, results
from lessvfl.cli.options import InferenceName, Reasons, read_inference
from lessvfl.cli.remote import ConfigFile, Insecure, LogJson, WarningsAlone
from lessvfl.terms import listed, plural

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lessvfl.remote.config import ServerConfig
    from lessvfl.remote.predict import PredictingParty, Predictor
    from lessvfl.web.tokens import Tokens

app = typer.Typer(
    no_args_is_help=True,
    help="Predict together with the model that a run between machines left.",
)

log = logging.getLogger(__name__)

TODAYS = "; name today's table by '--data', which may be the file of '--rows'."

# Of predictions as a service.
HttpAddress = Annotated[
    str | None,
    typer.Option("--http", help="HOST:PORT: predict as a service over HTTP."),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="The token to predict; made otherwise."),
]
AdminTokenFile = Annotated[
    Path | None,
    typer.Option("--admin-token-file", help="The token to align; made otherwise."),
]


@app.command()
@remote.logged("predictions, the server's side")
def server(
    config: ConfigFile,
    insecure: Insecure = False,
    log_json: LogJson = False,
    quiet: WarningsAlone = False,
    rows: Annotated[
        Path | None,
        typer.Option("--rows", help="A file of ids to predict; the table's otherwise."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option("--data", help="Today's table of its own 'columns', if any."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where predictions go: a .csv or .parquet file."),
    ] = None,
    http: HttpAddress = None,
    token_file: TokenFile = None,
    admin_token_file: AdminTokenFile = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Whose model; an ensemble, or the first seed's."),
    ] = None,
    allow_missing: Annotated[
        bool,
        typer.Option("--allow-missing", help="A party that goes: use its mean."),
    ] = False,
    inference: InferenceName = "clear",
    reasons: Reasons = 0,
) -> None:
    """Predict a file of ids with the parties, or offer predictions as a service."""
    from lessvfl.errors import ConfigError
    from lessvfl.remote.config import ServerConfig, read
    from lessvfl.remote.identity import server_credentials
    from lessvfl.remote.predict.server import Predictor, universe
    from lessvfl.run.record import RunRecord
    from lessvfl.web import address, tokens
    from lessvfl.wire.line import LocalParty

    how = read_inference(inference)
    if reasons and (http is not None or how != "clear"):
        got = "--http" if how == "clear" else f"--inference {how}"
        raise ConfigError(
            "Reasons are given in a batch whose embeddings the server sees: "
            f"'--reasons' must be 0 with {got}. Got {reasons}."
        )
    settings = read(ServerConfig, config)
    RunRecord.read(Path(settings.out))  # no run, no token
    target = out or Path(settings.out) / "predictions.csv"
    if target.suffix not in (".csv", ".parquet"):
        raise ConfigError(
            f"Predictions go to a .csv or a .parquet file. Got '{target.name}'."
        )
    given: dict[tokens.Right, Path | None] = {}
    if http is not None:
        given = {"predict": token_file, "admin": admin_token_file}
    folder = Path(settings.out)
    files = {r: tokens.prepare(r, folder, file) for r, file in given.items()}
    known, asked = universe(settings, rows)
    credentials = server_credentials(settings, insecure)
    with contextlib.ExitStack() as stack:
        listener = None
        if http is not None:  # before anybody is asked for anything
            listener = stack.enter_context(address.listen(http, "the service"))
        remote.use_machine(settings)
        local = _party_of_server(settings, table, known)
        if local is not None:
            stack.callback(local.close)
        with remote.listening(settings, credentials) as hub:
            if local is not None:
                hub.join(LocalParty(local.hello(), local.handle, local.due))
            predictor = Predictor(
                settings,
                known,
                hub,
                seed=seed,
                allow_missing=allow_missing,
                inference=how,
            )
            stack.callback(predictor.close)
            predictor.begin()
            if listener is None:
                _batch(predictor, asked, target, reasons)
            else:
                keys = tokens.Tokens(files)
                _serve(predictor, listener, keys, lambda: universe(settings, rows)[0])


def _party_of_server(
    settings: ServerConfig, table: Path | None, ids: NDArray[Any]
) -> PredictingParty | None:
    """Return the party of the server's own columns, if it has any, of some ids."""
    from lessvfl.errors import ConfigError, DataError
    from lessvfl.remote.own_columns import party_config
    from lessvfl.remote.predict import PredictingParty

    if settings.columns is None:
        if table is None:
            return None
        raise ConfigError(
            "The option '--data' goes with 'columns' in the server's config. Got it "
            "without."
        )
    config = party_config(settings, settings.columns)
    with contextlib.ExitStack() as on_error:
        party = PredictingParty.load(settings.columns.name, config, table)
        on_error.callback(party.close)
        lacks = party.lacks(ids)
        if lacks is not None:
            if lacks == "Got none":
                lacks += "." if table is not None else TODAYS
            raise DataError(
                f"The table of the server's own columns, '{table or config.data}', "
                f"must hold ids of '--rows'. {lacks}"
            )
        on_error.pop_all()
        return party


def _batch(predictor: Predictor, ids: Any, target: Path, reasons: int) -> None:
    """Predict every id of a file, and write the answers in its order."""
    from lessvfl.data import write_table

    table, answered, missing = predictor.answer(ids.tolist(), reasons)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_table(target, table)
    n_ids = len(ids)
    if missing:
        some = listed([str(ids[i]) for i in missing])
        results.say(
            f"{len(missing)} of {plural(n_ids, 'id')} without an answer, not known to "
            f"every party: {some}",
            err=True,
        )
    if answered.partial:
        away = ", ".join(answered.missing)
        results.say(f"partial: the mean of {away} stands for what it knows", err=True)
    if (kept := predictor.model.decision) is not None:
        results.say(f"applied: {kept.words}", err=True)
    results.say(f"{plural(n_ids - len(missing), 'prediction')}: {target}")


def _serve(
    predictor: Predictor, listener: socket.socket, tokens: Tokens, read_ids: Any
) -> None:
    """Offer predictions until interrupted or told to end."""
    from lessvfl.remote.predict.service import Service, Worker
    from lessvfl.web.address import url_of

    for right, file in tokens.files.items():
        what = "align" if right == "admin" else right
        log.info("the token to %s is in '%s'", what, file)
    with Worker(predictor, read_ids) as worker:
        service = Service(worker, tokens, predictor.folder)
        log.info("answers at %spredict", url_of(listener))
        with contextlib.suppress(KeyboardInterrupt):
            service.run(sockets=[listener])


@app.command()
@remote.logged("predictions, a party's side")
def party(
    config: ConfigFile,
    insecure: Insecure = False,
    log_json: LogJson = False,
    quiet: WarningsAlone = False,
    table: Annotated[
        Path | None,
        typer.Option("--data", help="Today's table; the config's 'data' otherwise."),
    ] = None,
) -> None:
    """Answer predictions as one party, with the network that training left."""
    from lessvfl import report
    from lessvfl.remote.config import PartyConfig, read
    from lessvfl.remote.identity import party_identity
    from lessvfl.remote.predict import PredictingParty
    from lessvfl.wire import flight

    settings = read(PartyConfig, config)
    name, credentials = party_identity(settings, insecure)
    process = PredictingParty.load(name, settings, table)
    address = flight.Address(settings.server, credentials, settings.server_name)
    with contextlib.closing(process):
        remote.use_machine(settings)
        log.info("dials %s, and answers what it asks", settings.server)
        process.serve(address)
        log.info("the server has ended the predictions")
        report.build(process.folder)  # it says what was asked for
    ending.threads_hang(True)  # a thread of the engine may be about to end
