"""The ready configs of a kit, and its README for whoever runs the server or a party."""

from __future__ import annotations

import json
from collections.abc import Sequence
from string import Template

PORT = 8815
STATUS_PORT = 8816

_SERVER_CONFIG = Template("""\
# The server's config: lessvfl server --config server.yaml
# Paths are relative to this file.

# Where parties reach the server; 0.0.0.0 is every address of this machine.
listen: "$listen"
# The server's certificate.
certificate: cert.pem
# Its secret key.
key: key.pem
# The CA that signed the certificate of every party.
ca: ca.pem
# Who takes part: the names in the parties' certificates.
parties: $parties
# The table of labels: .csv or .parquet. FILL IN.
data: labels.csv
# Its column to predict. FILL IN.
label: LABEL_COLUMN
# Its column that says which row is whose. FILL IN.
id: ID_COLUMN
# How rows are matched: psi (privately), plain (hashed ids) or none (in order already).
align: psi
# What is run: less-vfl, local-lasso, group-lasso or plain.
method: less-vfl
# Where its settings start: default, paper or official-code.
profile: default
# Settings that differ from the profile's, such as {lam_party: 0.1}.
settings: {}
# Seed of networks and batches.
seed: 0
# Threads of computation; the same at every party.
threads: 1
# The run folder to write.
out: run
# Seconds that a party may stay away before the run ends.
wait: 600
# Steps between two saved states, from which a run goes on after a crash.
save_every: 50
# Where the status page is shown, to this machine alone.
status: "127.0.0.1:$status_port"
""")

_PARTY_CONFIG = Template("""\
# The config of party $name: lessvfl party --config party.yaml
# Paths are relative to this file.

# Where the server is.
server: $server
# The name in the server's certificate.
server_name: $server_name
# This party's certificate.
certificate: cert.pem
# Its secret key.
key: key.pem
# The CA that signed the server's certificate.
ca: ca.pem
# The party's own table: .csv or .parquet. FILL IN.
data: columns.csv
# Its column that says which row is whose. FILL IN.
id: ID_COLUMN
# The columns that take part, by name or pattern; "*" is all but the id.
columns: ["*"]
# Threads of computation; the same at the server.
threads: 1
# The run folder to write: network and kept features, for this party alone.
out: run
# The most rounds to take part in; null is as many as the server asks for.
max_rounds: null
# What the server may know of the features kept: nothing, counts or features.
reveal: nothing
""")

_SERVER_README = """\
# The server's folder

| file | what it is |
|---|---|
| `key.pem` | the server's secret key: nobody else may have it |
| `cert.pem` | its certificate, by which parties know the server |
| `ca.pem` | the CA's certificate: whoever this CA signed is let in |
| `server.yaml` | the config |

1. Put the table of labels beside `server.yaml`, and fill in what says FILL IN there.
2. If parties are on other machines, `listen` must be an address that they reach.
3. Hand each party its own folder, over a channel that you trust, and delete your copy.
   Better still, let a party make its own key with `lessvfl kit request`, and sign it
   with `lessvfl kit sign`: then its key was never in your hands.
4. Start: `lessvfl server --config server.yaml`

The folder `ca` is not part of this one. Whoever has `ca-key.pem` decides who is let in:
keep it off this machine, and offline if you can.

The server sees the embeddings of the rows in common, how many rows a party has, and
which of its own ids a party has too. It sees no column, no column's name, no network
of a party, and which features a party kept only if that party reveals it.

To see when the certificate expires: `lessvfl kit show cert.pem`
"""

_PARTY_README = Template("""\
# The folder of party $name

With these files, and no password, your machine takes part in a study as **$name**.

| file | what it is |
|---|---|
| `key.pem` | your secret key |
| `cert.pem` | your certificate: your name, signed by the CA; not secret |
| `ca.pem` | the CA's certificate, by which you know the right server; not secret |
| `party.yaml` | your config |

Keep `key.pem` to yourself: whoever has it can pass for you. Never send it to anybody,
not even to the server's operator.
$signing
## Start

1. Put your table beside `party.yaml`: one row for each person, or whatever is studied,
   and one column with the id that all parties use.
2. Fill in `party.yaml`: `data` (the table), `id` (its id column) and `columns` (those
   that may be used). The server's operator knows `server` and `server_name`.
3. Start: `lessvfl party --config party.yaml`

Your machine calls the server; nobody calls yours, and no port has to be opened. All
traffic is encrypted, and a server that the CA did not sign is not talked to.

## What the server can see

- Your name, when you are connected, and how many rows you have.
- Which of **its own** ids you have too. With `align: psi` it learns nothing of your
  other ids. With `align: plain` it gets a hash of every id of yours, and whoever
  guesses an id can check the guess.
- For each row in common a short list of numbers, the embedding, which your network
  computes from your columns, again and again while it learns. Embeddings tell something
  about your data, and lessvfl adds no protection against reconstructing it.
- How many or which features you kept, only if `reveal` is `counts` or `features`.

## What it cannot see

- Your table, its values, the names of its columns, your network.
- Anything of rows that you alone have.
- Which features you kept, or how many, while `reveal` is `nothing`: they are written
  into your own run folder.

If `key.pem` was lost, or seen by others, tell the server's operator at once.
To see when your certificate expires: `lessvfl kit show cert.pem`
""")

_SIGNING = """
## First, have your key signed

You made `key.pem` yourself, and it stays here. There is no `cert.pem` and no `ca.pem`
yet: send `request.pem`, which is not secret, to the CA's holder, and read out the
fingerprint of your key over the telephone. Put the two files that come back here.
"""


def _address(host: str) -> str:
    return f"[{host}]:{PORT}" if ":" in host else f"{host}:{PORT}"


def server_config(parties: Sequence[str], host: str | None) -> str:
    """Return server.yaml; with a host name, one that parties elsewhere reach."""
    return _SERVER_CONFIG.substitute(
        listen=_address("127.0.0.1" if host is None else "0.0.0.0"),
        parties=json.dumps(list(parties)),
        status_port=STATUS_PORT,
    )


def party_config(name: str, host: str | None) -> str:
    """Return a party's party.yaml."""
    return _PARTY_CONFIG.substitute(
        name=name,
        server=json.dumps(_address("127.0.0.1" if host is None else host)),
        server_name=json.dumps("localhost" if host is None else host),
    )


def server_readme() -> str:
    """Return the README of the server's operator."""
    return _SERVER_README


def party_readme(name: str, *, requested: bool = False) -> str:
    """Return the README of a party's operator, who perhaps made the key."""
    return _PARTY_README.substitute(name=name, signing=_SIGNING if requested else "")
