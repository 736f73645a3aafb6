"""Counterfactuals: after EVFL (Chen et al., J. Systems Architecture, 2022).

All columns are trained jointly. Then server and parties change some training rows
together, by gradient steps, until the model says something else of them. A feature is
rated by how often and how far it changes; training goes on with those kept. Only the
abstract of the paper is public: this is a reconstruction. Decided here:

* A row flips when another class has as large a logit; in a regression, when it moves by
  a standard deviation of the predictions, towards their mean. Then it stops.
* Steps minimise what is missing to that plus a price, the sum of the norms of features'
  changes in standard deviations, so that few change (``core/flips``).
* The rate of a feature is its mean change in the rows that flipped, 0 where it did not
  change. A tenth of the largest rate of any party is enough to stay: on 14 generated
  tables of 80 to 400 columns mean support F1 was 0.92, by the best limit for each 0.97.
  Rows held out would be missing in training (by rows trained with it was 0.35 with 400
  columns); scrambled copies of columns would have to be trained, too.

==== ================================= ==============================================
step down, and what it reveals         up, and what it reveals
==== ================================= ==============================================
0    nothing                           embeddings of the rows to change
odd  gradient of what is missing, by   the largest slope of a feature, for every row:
     embeddings: the model's opinion   how far the party can move the prediction
even the largest of all parties, 0     embeddings of the changed rows: what changes of
     where a row has flipped           the party's choice do to its network's output
2S+1 which rows have flipped           the largest rate
2S+2 the largest rate of all parties   nothing: the party selects
==== ================================= ==============================================

S is ``search_steps``. With ``keep`` a party selects at step 2S+1. No message says which
features change. All go at full precision; with gradients of its choice a server sees
what single features do to a row's embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lessvfl.core.flips import Changes, margins
from lessvfl.core.limits import best
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.core.passes import gradients
from lessvfl.core.plans import PartyPlan, QueryPlan, sample_rows, take
from lessvfl.core.protocol import Holder, QueryArrays, Selected, expect
from lessvfl.core.ratings import rating
from lessvfl.errors import warn
from lessvfl.methods.base import Joint, Method, follow_plans
from lessvfl.methods.held_out import largest_of
from lessvfl.settings import a_float, an_int, or_none, setting
from lessvfl.terms import Stage
from lessvfl.wire.parties import Parties, concatenate

STAGE: Stage = "select_features"


@dataclass(frozen=True)
class Config(Joint):
    """Settings of selection by counterfactuals."""

    pretrain_epochs: float = setting(
        a_float(), 10, "epochs of joint training before the search"
    )
    search_rows: int = setting(
        an_int(1), 200, "training rows that are changed until they flip"
    )
    search_steps: int = setting(
        an_int(1), 10, "the most steps in which a row is changed"
    )
    search_step_size: float = setting(
        a_float(open_low=True), 0.5, "how far a step may move a feature"
    )
    price: float = setting(
        a_float(0.0, 1.0), 0.2, "of a change, as a share of the one of no change"
    )
    least_rate: float = setting(
        a_float(0.0, 1.0), 0.1, "of what stays, as a share of the largest rate"
    )
    keep: int | None = setting(
        or_none(an_int(1)), None, "features that each party keeps; none: by least_rate"
    )

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        n = self.search_steps + 1
        look = QueryPlan(STAGE, 2 * n + 1, n_values=n, n_passes=n)
        pretrain = self.plan("pretrain", self.pretrain_epochs)
        return pretrain, look, self.plan("train", self.train_epochs)


class CounterfactualParty:
    """A party's side of the search for row changes that flip the model's prediction."""

    def __init__(self, config: Config, holder: Holder) -> None:
        self.inputs, self.config = holder, config
        rows = sample_rows(len(holder.X), config.search_rows, holder.seed)
        X = take(holder.X, rows.to(holder.X.device))
        self.changes = Changes(X, holder.features, holder.net)
        self.rates = X.new_zeros(holder.features.n_groups)

    def answer(self, step: int, arrays: QueryArrays) -> QueryArrays | Selected:
        """Embed rows; return slopes, or change the rows; at the end rate and select."""
        changes, config = self.changes, self.config
        n_rows, left = len(changes.delta), 2 * config.search_steps - step
        if step == 0:
            expect(arrays)
            return (changes.embed(),)
        if left >= 0 and left % 2:
            expect(arrays, (n_rows, self.inputs.net.n_outputs))
            return (changes.slope(*arrays),)
        if left < -1:
            expect(arrays, (1,))
            return self._selected(self.rates >= config.least_rate * arrays[0])
        expect(arrays, (n_rows,))
        if left >= 0:
            changes.step(arrays[0], config.search_step_size, config.price)
            return (changes.embed(),)
        self.rates = changes.rates(*arrays)
        if config.keep is None:
            return (self.rates.amax(dim=0, keepdim=True),)
        return self._selected(best(self.rates, config.keep))

    def _selected(self, chosen: Tensor) -> Selected:
        features = self.inputs.features
        return Selected(
            chosen | features.groups_of(self.inputs.must_keep),
            rating("rate of change", self.rates, features),
        )


def search(parties: Parties, fusion: Network, labels: Labels, config: Config) -> None:
    """Change rows until they flip, then have features rated and selected."""
    names, dtype = parties.names, fusion.input_weights.dtype
    n_rows = min(config.search_rows, parties.n_samples)
    sizes = [parties.sizes[name] for name in names]
    embeddings = {n: ((dtype, (n_rows, parties.sizes[n])),) for n in names}
    slopes = dict.fromkeys(names, ((dtype, (n_rows,)),))
    passes, last = fusion.passes(inputs=True), 2 * config.search_steps + 1

    sent: dict[str, QueryArrays] = dict.fromkeys(names, ())
    answers = parties.query(STAGE, 0, sent, embeddings)
    start = z = passes.forward(concatenate([h for (h,) in answers.values()]))
    for step in range(1, last, 2):
        z = z.detach().requires_grad_()
        missing = margins(z, start, labels.task)
        down = passes.back(*gradients(missing.sum(), [z]))[-1]
        parts = zip(names, torch.split(down, sizes, dim=1), strict=True)
        sent = {name: (gradient.contiguous(),) for name, gradient in parts}
        largest = largest_of(parties.query(STAGE, step, sent, slopes))
        sent = dict.fromkeys(names, (largest * (missing.detach() > 0),))
        answers = parties.query(STAGE, step + 1, sent, embeddings)
        z = passes.forward(concatenate([h for (h,) in answers.values()]))

    flipped = margins(z, start, labels.task) <= 0
    if not bool(flipped.any()):
        warn(f"No row flipped in {config.search_steps} steps: no feature has a rate.")
    sent = dict.fromkeys(names, (flipped.to(torch.uint8),))
    if config.keep is None:
        rates = dict.fromkeys(names, ((dtype, (1,)),))
        largest = largest_of(parties.query(STAGE, last, sent, rates))
        sent, last = dict.fromkeys(names, (largest,)), last + 1
    parties.query_last(STAGE, last, sent)


METHOD = Method(
    "counterfactual",
    "features rated by changes that flip a prediction; then training on what is left",
    "after EVFL, Chen et al., 2022",
    Config,
    follow_plans(search),
    protocol=CounterfactualParty,
)
