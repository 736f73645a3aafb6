"""What a server that lies, or knows weights, learns of columns, measured by attacks.

    python benchmarks/leaks.py --jobs 8

`lessvfl bench privacy` measures what sides learn that follow the protocol.

*Columns*: a server looks at the first embeddings of a party before any training, takes
the network that the shared seed would give the party, and searches for the columns that
explain the embeddings. ``shared`` is a party with ``seed_private: shared``, as only
``lessvfl try`` and tests write it; ``own`` is one with weights of its own secret, as
between machines. The figure is the correlation of found and true columns without its
sign, the mean over the columns of 5 parties.

*Blind*: a server that knows nothing separates the sources of the embeddings of the
default's first message (independent component analysis), where there are as many
components as columns; which source is which column it does not learn.

*Solved*: a server that knows some rows learns by regression to tell the columns of all
others from everything that left in a run. ``honest`` is a run as it is between
machines, and ``last`` what its last look alone tells; with ``scored`` a server also
asked for all rows after every epoch, at full precision; and ``lying`` is one whose
gradients pull the embeddings of the rows it knows to their own columns, some of them
after the others, or turn the first weights to single columns, whichever tells more.
``separated`` are the sources that a server finds in an honest run
without knowing any row, each column beside the source that is most like it. The figure
is R2, the mean over the columns of a party, over 8 tables of 800 rows of independent
columns, normal for half of them and else exponential; labels follow a fifth of the
party's columns, or all of them (``dense``). The same is printed for the settings that
show most of what a party's default policy allows, and for as many components as the
party would have without ``components_per_column``.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import multiprocessing
import warnings
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import FastICA
from sklearn.linear_model import RidgeCV
from torch import Tensor

from lessvfl import data
from lessvfl.core.network import MLP, NetConfig
from lessvfl.core.plans import SECRET
from lessvfl.errors import LessVFLWarning
from lessvfl.party import Party
from lessvfl.remote.policy import LIMITS, Policy
from lessvfl.run import profiles
from lessvfl.run.simulate import Job, simulate
from lessvfl.wire import coding, messages

N_ROWS, N_PARTIES = 100, 5
N_KNOWN, N_TABLES, N_PEOPLE = 40, 8, 800  # of what is solved for
PULLED = 3  # epochs that a lying server pulls to the same columns
STAGES = ("pretrain", "train_first", "train")
SETTINGS: dict[str, dict[str, Any]] = {  # beside the default's
    "": {},
    ", at the limits of a policy": {
        "components_per_column": Policy().components_per_column,
        **{name: LIMITS[name] for name in ("bits", "pretrain_epochs", "train_epochs")},
        **{name: LIMITS[name] for name in ("learning_rate", "pretrain_rate")},
    },
    ", as many components as others": {"components_per_column": None},
}


def a_secret(number: int) -> int:
    """Return a private seed as a party has it; the same in every run of this."""
    return SECRET + int.from_bytes(hashlib.sha256(b"%d" % number).digest(), "big")


def network(net: NetConfig, n_columns: int, seed: int, name: str) -> MLP:
    """Return a party's network as it starts."""
    where = (seed, name, torch.float64, torch.device("cpu"))
    widths = net.party_widths(n_columns)
    return MLP.create(widths, net.activation, *where, net.input_scale)


def inverted(known: MLP, h: Tensor, n_columns: int) -> Tensor:
    """Return columns that explain embeddings (n, E) by a network that is known."""
    x = torch.zeros(len(h), n_columns, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([x], max_iter=1000, tolerance_grad=1e-14)
    size = 1 / float(h.std())

    def miss() -> Tensor:
        search.zero_grad()
        loss = (size * (known(x) - h)).square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        search.step(miss)
    return x.detach()


def columns_read(profile: str, n_columns: int, private: str, n_parties: int) -> float:
    """Return how much what a server finds is like the columns of parties."""
    table = data.from_arrays([[0.0], [1.0]], [0, 1])
    method = "less-vfl" if profile == "paper" else "less-vfl-auto"
    net = profiles.resolve(method, profile, table).net
    alike = []
    for number in range(n_parties):
        name = f"party{number}"
        rng = np.random.default_rng(number)
        true = torch.as_tensor(rng.normal(size=(N_ROWS, n_columns)))
        seed = 0 if private == "shared" else a_secret(number)
        h = network(net, n_columns, seed, name)(true).detach()
        found = inverted(network(net, n_columns, 0, name), h, n_columns)
        both = zip(found.T.numpy(), true.T.numpy(), strict=True)
        alike += [abs(np.corrcoef(mine, own)[0, 1]) for mine, own in both]
    return float(np.nanmean(alike))


def blind_read(true: np.ndarray[Any, Any]) -> float:
    """Return how well columns are found without any weight, in the mean."""
    true = (true - true.mean(axis=0)) / true.std(axis=0)
    table = data.from_arrays([[0.0], [1.0]], [0, 1])
    net = profiles.resolve("less-vfl-auto", "default", table).net
    secret = a_secret(0)
    x = torch.as_tensor(true)
    h = network(net, true.shape[1], secret, "party")(x).detach().float()
    _, sent = coding.encode(h, 8, secret, "up")
    seen = sent.double().numpy()
    ica = FastICA(random_state=0, max_iter=3000, whiten="unit-variance")
    sources = ica.fit_transform(seen / seen.std(axis=0))
    n = true.shape[1]
    alike = np.abs(np.corrcoef(sources.T, true.T)[: sources.shape[1], -n:])
    return float(alike.max(axis=0).mean())


class Listener:
    """A server that knows some rows of a party, and hears all that the party sends."""

    def __init__(self, lies: str) -> None:
        self.lies = lies  # "": it does not, or how
        self.heard: dict[tuple[str, int], Tensor] = {}  # (N, E) by look, NaN: not seen
        self.X = torch.zeros(0)

    def handle(self, party: Party, request: Any, handle: Any) -> Any:
        """Let a party answer, and write down what it says of which rows."""
        if not len(self.X):  # of all columns: those removed leave the party's rows
            self.X = party.model.X_train.double()
        if self.lies and isinstance(request, messages.Descend):
            how = self._pull if self.lies == "pull" else self._turn
            values = how(party._training, request.gradient.values)
            block = dataclasses.replace(request.gradient, values=values)
            request = dataclasses.replace(request, gradient=block)
        reply = handle(party, request)
        if not isinstance(reply, messages.Embedding):
            return reply
        training, said = party._training, reply.block.values.double()
        where: Any = slice(None)
        number, stage = len(self.heard), training.plan.stage if training else ""
        if isinstance(request, messages.Embed):
            if request.rows == "test":
                return reply
            stage = request.stage
            if request.n_rows is not None:
                where = party.rows_of(request)
        elif training is not None and isinstance(training.rows, Tensor):
            where = training.rows
            number = training.step // training.batches.n_per_epoch
        unseen = torch.full((len(self.X), said.shape[1]), torch.nan).double()
        self.heard.setdefault((stage, number), unseen)[where] = said
        return reply

    def _aims(self, training: Any, n_outputs: int, length: int) -> list[int]:
        """Return the column that each component is to tell now, for some epochs."""
        epoch = training.step // training.batches.n_per_epoch
        turn = epoch // length + STAGES.index(training.plan.stage)
        n_columns = self.X.shape[1]
        return [(turn * n_outputs + e) % n_columns for e in range(n_outputs)]

    def _turn(self, training: Any, gradient: Tensor) -> Tensor:
        """Return gradients that turn the first weights to single columns."""
        known = torch.nonzero(training.rows < N_KNOWN)[:, 0]
        X = self.X[training.rows[known]]
        aims = self._aims(training, gradient.shape[1], 1)
        turned = torch.zeros_like(gradient)
        if len(known):
            turned[known] = torch.linalg.pinv(X.T)[:, aims].to(gradient)
        return turned / turned.abs().max().clamp_min(1e-9) * gradient.abs().max()

    def _pull(self, training: Any, gradient: Tensor) -> Tensor:
        """Return gradients towards some columns, of the rows that are known."""
        rows, h = training.rows, training.h.detach()
        columns = self._aims(training, h.shape[1], PULLED)
        wanted = self.X[rows][:, columns].to(h) * h.std().clamp_min(1e-3)
        pull = (h - wanted) * (rows < N_KNOWN).unsqueeze(1)
        return pull / pull.abs().max().clamp_min(1e-9) * gradient.abs().max()

    def said(self, scored: bool = False, last: bool = False) -> np.ndarray[Any, Any]:
        """Return what was heard, a row of numbers for each row of the party."""
        heard = self.heard.items()
        looks = [v for (stage, _), v in heard if scored or stage != "evaluate"]
        F = torch.cat(looks[-1:] if last else looks, dim=1).numpy()
        F = np.where(np.isnan(F), np.nanmean(F, axis=0), F)
        return (F - F.mean(axis=0)) / F.std(axis=0).clip(1e-12)

    def separated(self) -> float:
        """Return R2 of each column by the source that is most like it."""
        F, n_columns = self.said(), self.X.shape[1]
        n_sources = min(n_columns, np.linalg.matrix_rank(F))
        ica = FastICA(n_sources, random_state=0, whiten="unit-variance")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it may not converge: nothing was found
            sources = ica.fit_transform(F)
        alike = np.corrcoef(sources.T, self.X.numpy().T)[:n_sources, -n_columns:]
        return float(np.square(alike).max(axis=0).mean())

    def solved(self, F: np.ndarray[Any, Any]) -> float:
        """Return R2 of the columns of rows that are not known, by what was heard."""
        X = self.X.numpy()
        model = RidgeCV(np.logspace(-6, 4, 30)).fit(F[:N_KNOWN], X[:N_KNOWN])
        missed = ((model.predict(F[N_KNOWN:]) - X[N_KNOWN:]) ** 2).mean(axis=0)
        return float((1 - missed / X[N_KNOWN:].var(axis=0)).clip(0, 1).mean())


def a_table(n_columns: int, number: int, dense: bool) -> data.Dataset:
    """Return a table of two parties, the first with so many columns."""
    rng = np.random.default_rng(number)
    shape = (N_PEOPLE, n_columns + 4)
    X = rng.normal(size=shape) if number % 2 else rng.exponential(size=shape) - 1
    matter = [*range(n_columns if dense else max(2, n_columns // 5)), n_columns]
    signal = X[:, matter].sum(axis=1) * np.sqrt(3 / len(matter))
    y = signal + rng.logistic(size=N_PEOPLE) > 0
    names = [f"x{i}" for i in range(n_columns + 4)]
    return data.from_arrays(X, y.astype(int), feature_names=names)


def listened(
    table: data.Dataset, number: int, lies: str, given: dict[str, Any]
) -> Listener:
    """Return what a server hears of the first party in a run of the default."""
    names = table.X.names
    held = {"party": names[:-4], "other": names[-4:]}
    settings = profiles.resolve("less-vfl-auto", "default", table, given)
    job = Job(table, settings, parties=held, device="cpu")
    server, handle = Listener(lies), Party.handle

    def listen(self: Party, request: Any) -> Any:
        if self.name != "party":
            return handle(self, request)
        return server.handle(self, request, handle)

    Party.handle = listen  # type: ignore[method-assign]
    try:
        list(simulate(job, [number]))
    finally:
        Party.handle = handle  # type: ignore[method-assign]
    return server


def solved_of(
    n_columns: int, number: int, dense: bool, given: dict[str, Any]
) -> list[float]:
    """Return R2 of one party's columns: honest, last, separated, scored, lying."""
    warnings.simplefilter("ignore", LessVFLWarning)
    table = a_table(n_columns, number, dense)
    server = listened(table, number, "", given)
    liars = [listened(table, number, how, given) for how in ("pull", "turn")]
    return [
        server.solved(server.said()),
        server.solved(server.said(last=True)),
        server.separated(),
        server.solved(server.said(scored=True)),
        max(liar.solved(liar.said()) for liar in liars),
    ]


def print_solved(
    n_columns: int, n_tables: int, kinds: list[str], pool: Executor
) -> None:
    """Print what is solved for in honest runs and in others."""
    for kind, dense in itertools.product(kinds, (False, True)):
        work = partial(solved_of, n_columns, dense=dense, given=SETTINGS[kind])
        means = np.mean(list(pool.map(work, range(n_tables))), axis=0)
        names = ("honest", "last", "separated", "scored", "lying")
        figures = ", ".join(f"{n} {v:.2f}" for n, v in zip(names, means, strict=True))
        labels = ", dense" if dense else ""
        print(f"  {n_columns:>3} columns{kind}{labels}: {figures}", flush=True)


def main() -> None:
    """Attack, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tables", type=int, default=N_TABLES, help="of each kind")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--smoke", action="store_true", help="the smallest size")
    args = parser.parse_args()
    warnings.simplefilter("ignore", LessVFLWarning)
    print("columns: correlation of what a server finds with the true columns")
    few = 1 if args.smoke else None
    for profile, n_columns in itertools.product(("default", "paper"), (4, 10)[:few]):
        found = [
            columns_read(profile, n_columns, key, few or N_PARTIES)
            for key in ("shared", "own")
        ]
        print(
            f"  {profile:<8}{n_columns:>3} columns: weights of the shared seed "
            f"{found[0]:.2f}, of an own secret {found[1]:.2f}",
            flush=True,
        )
    rng = np.random.default_rng(0)
    independent = np.c_[rng.uniform(size=(600, 2)), rng.exponential(size=(600, 2))]
    real = data.load("breast-cancer").X.numeric
    print("blind: correlation of separated sources with 4 columns, no weight known")
    print(f"  independent columns: {blind_read(independent):.2f}")
    found = [blind_read(real[:, at : at + 4]) for at in range(0, 28, 4)]
    print(f"  columns of breast-cancer: {np.mean(found):.2f}")
    print(f"solved: R2 of a party's columns where {N_KNOWN} rows are known")
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, fresh) as pool:
        for n_columns in (4, 10, 30, 100)[:few]:
            print_solved(n_columns, few or args.tables, list(SETTINGS)[:few], pool)


if __name__ == "__main__":
    main()
