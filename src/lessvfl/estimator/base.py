"""What classifier and regressor share: parameters, fitting, selecting, figures."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_array, check_random_state, estimator_html_repr
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from lessvfl import data
from lessvfl.data import Dataset, Frame
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.estimator import inputs
from lessvfl.run import numbers, profiles, simulate, verdicts
from lessvfl.run.build import Networks, clamp_batch
from lessvfl.run.experiment import warn_of_alike
from lessvfl.run.record import RunRecord
from lessvfl.terms import Progress, Task, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Constructor parameters that are settings of the same name; None: the profile's.
_SETTINGS = (
    "lam_party",
    "lam_server",
    "pretrain_epochs",
    "joint_epochs",
    "server_epochs",
    "party_epochs",
    "train_epochs",
    "batch_size",
    "embedding_size",
    "hidden",
    "depth",
    "activation",
    "optimizer",
    "learning_rate",
)

PARAMETERS = """
    Parameters
    ----------
    method : str, default="less-vfl-auto"
        ``less-vfl-auto``, ``less-vfl``, ``local-lasso``, ``group-lasso`` or ``plain``.
    profile : str, default="default"
        ``default``, ``paper`` or ``official-code``.
    parties : int, list of int or dict, default=2
        How many parties (contiguous columns), their sizes, or party name -> columns
        (names, globs, or column numbers of an array).
    lam_party, lam_server : float, optional
        Weights of the parties' and the server's group lasso.
    pretrain_epochs, joint_epochs, server_epochs, party_epochs, train_epochs : optional
        Lengths of the stages.
    batch_size, embedding_size, hidden, depth, activation, optimizer, learning_rate : \
optional
        Further settings of that name; None takes the profile's.
    class_weight : "balanced" or dict, optional
        How much a class counts in the loss: all classes alike in sum, or class ->
        weight (1 where none is given). None: every row as much. For classifiers.
    settings : dict, optional
        Any other setting by name.
    groups : dict, optional
        Feature name -> columns of one party (names, or numbers of an array) that are
        one feature, such as all columns that one-hot encoding made of one.
    party_net, fusion_net : callable, nn.Module or (party_net) dict, optional
        Networks of one's own: a function of (n_inputs, n_outputs), or a module.
    device : str, default="cpu"
        ``cpu``, ``cuda`` or ``auto``.
    encode : bool, default=False
        Whether ``transform`` gives the columns kept as they came, or as numbers: scaled
        and filled in, with a column for each text of a category, as networks see them.
    random_state : int, RandomState or None, default=None
        Seed of initial weights and batches.
    verbose : int, default=0
        1 shows how far a fit is: in a terminal, in a notebook, or as plain lines.

    Attributes
    ----------
    support_ : ndarray of bool (n_features_in_,)
        True where a column was kept.
    feature_importances_ : ndarray (n_features_in_,)
        Norm of the feature's input weights, 0 where removed.
    features_ : dict
        Party name -> features kept.
    selection_ : dict of list
        A table by column, for ``pandas.DataFrame(model.selection_)``: of every feature
        its ``party``, ``feature``, ``kept``, ``strength``, the ``mark`` that it had to
        reach, its partner in a ``pair``, and ``why`` it stayed or went.
    false_share_ : dict
        Party name -> estimated share of useless features among those it kept; None
        where nothing can be said. Scrambled copies of columns stand for useless ones
        (``less-vfl-auto`` alone); columns that matter only through others do not count.
    ledger_ : list of dict
        The bill: payload bytes by party, direction, stage and kind.
    run_ : dict
        Every number of the run, as ``lessvfl run --json`` prints them.
    model_ : FittedModel
        The parties' pruned networks and the server's.
    n_features_in_ : int
        Number of columns seen in ``fit``.
    feature_names_in_ : ndarray of str
        Their names, where the table has names.
"""


class CodedLabels(NamedTuple):
    """Labels as networks have them, what they are, and the name of every class."""

    y: NDArray[Any]
    task: Task
    names: Mapping[Any, str]


class LessVFLEstimator(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: fitting, selecting, tables and figures."""

    def __init__(
        self,
        *,
        method: str = "less-vfl-auto",
        profile: str = "default",
        parties: Any = 2,
        lam_party: float | None = None,
        lam_server: float | None = None,
        pretrain_epochs: float | None = None,
        joint_epochs: float | None = None,
        server_epochs: int | None = None,
        party_epochs: int | None = None,
        train_epochs: float | None = None,
        batch_size: int | None = None,
        embedding_size: int | None = None,
        hidden: int | tuple[int, ...] | None = None,
        depth: int | None = None,
        activation: str | None = None,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        settings: Mapping[str, Any] | None = None,
        groups: Mapping[str, Sequence[str] | Sequence[int]] | None = None,
        party_net: Any = None,
        fusion_net: Any = None,
        device: str = "cpu",
        encode: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.method = method
        self.profile = profile
        self.parties = parties
        self.lam_party = lam_party
        self.lam_server = lam_server
        self.pretrain_epochs = pretrain_epochs
        self.joint_epochs = joint_epochs
        self.server_epochs = server_epochs
        self.party_epochs = party_epochs
        self.train_epochs = train_epochs
        self.batch_size = batch_size
        self.embedding_size = embedding_size
        self.hidden = hidden
        self.depth = depth
        self.activation = activation
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.class_weight = class_weight
        self.settings = settings
        self.groups = groups
        self.party_net = party_net
        self.fusion_net = fusion_net
        self.device = device
        self.encode = encode
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        """Say that tables may have missing cells or be sparse; results need a seed."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.non_deterministic = False
        return tags

    # -------------------------------------------------------------------------- fitting

    @abc.abstractmethod
    def _code(self, y: NDArray[Any]) -> CodedLabels:
        """Check the labels, a column, and code them."""

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> Self:
        """Select features and train.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame (n, d)
            The table; missing cells are imputed. Texts are categories, or numbers,
            dates, or yes and no; ids and free text are left out, with a warning.
        y : array-like (n,)
            The classes, or the numbers to predict.
        sample_weight : array-like (n,), optional
            How much every row counts in the loss.
        groups : array-like (n,), optional
            Of whom every row is (a person, a household, a device): the rows of one are
            held out and scrambled together.
        """
        frame = self._frame(X, reset=True)
        labels = self._code(inputs.one_column(y))
        check_consistent_length(frame.numeric, labels.y)
        dataset = _dataset(frame, labels, sample_weight, groups)
        job = simulate.Job(
            dataset,
            self._settings(dataset, labels.names),
            parties=inputs.by_name("parties", self.parties, frame.names),
            groups=inputs.by_name("groups", self.groups, frame.names),
            device=self.device,
            networks=Networks(self.party_net, self.fusion_net),
        )
        seed = self.random_state
        source = check_random_state(seed)
        if not isinstance(seed, int | np.integer):
            seed = source.randint(2**31 - 1)
        with self._watched() as progress:
            (run,) = simulate.simulate(job, [int(seed)], progress)
        warn_of_alike([run.numbers])
        self._keep(job, run, frame.names)
        return self

    def _keep(self, job: simulate.Job, run: simulate.Run, names: Sequence[str]) -> None:
        """Keep what a run left, as fitted attributes."""
        self.run_ = run.numbers
        # In float64 the prediction of a row does not depend on the rows beside it.
        self.model_ = run.model.astype(torch.float64)
        self.ledger_ = run.bill
        self.features_ = run.model.features
        about = numbers.bare_header(
            job.settings, job.dataset.name, job.device, {}, parties=[*self.features_]
        )
        runs = [{**run.numbers, "bill": run.bill}]
        header, agreed = numbers.header(about, run.problem), verdicts.agreed(runs)
        self._record = RunRecord(header, runs, "complete", consensus=agreed)
        how = run.numbers["selection"] or {}
        self.false_share_ = {
            name: how[name]["false_share"] if name in how else None
            for name in self.features_
        }
        kept, norms = set(), {}
        for table in run.problem.parties:
            importance = run.numbers["importance"][table.name]
            stays = set(run.model.features[table.name])
            for column in table.encoding.columns:
                norms[column.name] = importance.get(column.feature, 0.0)
                if column.feature in stays:
                    kept.add(column.name)
        self.support_ = np.array([name in kept for name in names])
        self.feature_importances_ = np.array([norms.get(n, 0.0) for n in names])
        if not kept:
            why = "none says more of the labels than chance would"
            if self.method != "less-vfl-auto":
                why = "a smaller 'lam_party' keeps more"
            warn(
                "Every feature was removed, so that every row gets the same "
                f"prediction: {why}."
            )

    def _settings(
        self, dataset: Dataset, labels: Mapping[Any, str]
    ) -> profiles.Settings:
        overrides = {
            name: getattr(self, name)
            for name in _SETTINGS
            if getattr(self, name) is not None
        }
        weights = self.class_weight
        if isinstance(weights, Mapping):
            weights = {labels.get(k, str(k)): weight for k, weight in weights.items()}
        if weights is not None:
            overrides["class_weight"] = weights
        overrides |= {"test_share": 0.0} | dict(self.settings or {})
        resolved = profiles.resolve(self.method, self.profile, dataset, overrides)
        if resolved.data.folds > 1:
            raise ConfigError(
                "The 'folds' setting must be 1 for an estimator, which scikit-learn "
                f"cross-validates. Got {resolved.data.folds}."
            )
        if "batch_size" in overrides:
            return resolved
        config = clamp_batch(resolved.config, len(dataset.y))
        return dataclasses.replace(resolved, config=config)

    def _watched(self) -> contextlib.AbstractContextManager[Progress | None]:
        """Return a context that gives whom the run tells how far it is, if anybody."""
        if not self.verbose:
            return contextlib.nullcontext()
        from lessvfl.status import Status, notebook

        return notebook.follow(Status("", self.method, "the table"))

    def _frame(self, X: Any, reset: bool) -> Frame:
        """Check a table and return it with its column names."""
        X = data.in_memory(X)
        if hasattr(X, "columns"):
            frame = data.frame_of(X)  # or says what is wrong with its names
            if not (frame.n_rows and frame.names):
                raise DataError(
                    "The table X must have rows and columns. Got "
                    f"{plural(frame.n_rows, 'row')} and "
                    f"{plural(len(frame.names), 'column')}."
                )
            validate_data(self, X, reset=reset, skip_check_array=True)
            return frame
        is_mixed = inputs.holds_texts_or_dates(X)
        array = validate_data(
            self,
            X,
            reset=reset,
            accept_sparse=("csr", "csc", "coo"),
            dtype=None if is_mixed else "numeric",
            ensure_all_finite=False if is_mixed else "allow-nan",
            ensure_min_samples=2 if reset else 1,
        )
        if sparse.issparse(array):
            array = inputs.densify(array)
        names = [f"x{index}" for index in range(array.shape[1])]
        if not reset:  # an array after a frame: its columns come in the same order
            names = list(getattr(self, "feature_names_in_", names))
        return data.frame_of(array, names)

    # ------------------------------------------------------------------------ selecting

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        support: NDArray[np.bool_] = self.support_
        return support

    def transform(self, X: Any) -> Any:
        """Return the columns kept, as they came.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame (n, d)
            The table.

        Returns
        -------
        array, sparse matrix or DataFrame
            Of a frame a frame of the same library, whose columns are of the types that
            they had; with ``set_output`` what it asks for: ``"pandas"``, ``"polars"``,
            or an array (``"default"``), of objects where columns are not all numbers.
            With `encode` an array of floats, unless it asks for a frame.
        """
        check_is_fitted(self)
        if self.encode:
            frame = self._frame(X, reset=False)
            blocks = [e.apply(frame)[0] for e in self._kept_encodings()]
            return np.concatenate(blocks, axis=1)
        X = data.in_memory(X)
        if not hasattr(X, "columns"):
            return super().transform(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        kept = data.columns_at(X, self.get_support(indices=True).tolist())
        wanted = _get_output_config("transform", estimator=self)["dense"]
        if wanted == "default" and hasattr(self, "_sklearn_output_config"):
            return data.array_of(kept)
        if wanted == "pandas" and hasattr(kept, "to_pandas"):
            return kept.to_pandas()  # scikit-learn would make objects of its cells
        return kept

    def _kept_encodings(self) -> list[data.Encoding]:
        return [party.encoding.narrow(party.kept) for party in self.model_.parties]

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Return the names of the columns that `transform` gives.

        Parameters
        ----------
        input_features : array-like of str, optional
            Names of the columns of an array that had none in `fit`.
        """
        names: NDArray[np.object_] = super().get_feature_names_out(input_features)
        if self.encode:
            columns = [c for e in self._kept_encodings() for c in e.columns]
            encoded = [name for column in columns for name in column.encoded_names]
            names = np.array(encoded, dtype=object)
        return names

    def inverse_transform(self, X: Any) -> Any:
        """Put the columns kept where they were, and zeros where others were removed.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame (n, n_kept)
            The columns kept; missing cells may be among them.

        Returns
        -------
        array or sparse matrix (n, d)
            As wide as the table of `fit`.
        """
        check_is_fitted(self)
        if self.encode:
            raise ConfigError(
                "Columns go back to where they were as they came: 'encode' must be "
                "False. Got True."
            )
        if sparse.issparse(X):
            return super().inverse_transform(X)
        X = data.in_memory(X)
        cells = data.array_of(X) if hasattr(X, "columns") else X
        cells = check_array(
            cells, dtype=None, ensure_all_finite=False, ensure_min_features=0
        )
        support = self.get_support()
        if cells.shape[1] != support.sum():
            raise ConfigError(
                f"The table X must have the columns that were kept, {support.sum()}. "
                f"Got {cells.shape[1]}."
            )
        whole = np.zeros((len(cells), len(support)), dtype=cells.dtype)
        whole[:, support] = cells
        return whole

    # -------------------------------------------------------------------------- showing

    @property
    def selection_(self) -> dict[str, list[Any]]:
        """Every feature with its verdict: by party, kept ones and strong ones first."""
        from lessvfl.report import verdicts

        check_is_fitted(self)
        return verdicts.as_columns(self._record)

    def _html_repr(self) -> str:
        """Return scikit-learn's diagram, under a card of what a fit has found."""
        diagram: str = estimator_html_repr(self)
        if "_record" not in vars(self):
            return diagram
        from lessvfl.report import notebook

        return notebook.card(self._record) + diagram

    def plot_selection(self, ax: Axes | None = None, *, most: int = 30) -> Axes:
        """Draw by party how strong its features are, and which of them were kept.

        `most` is how many features are drawn: kept ones first, the strongest first.
        """
        from lessvfl.report import selection_figures

        check_is_fitted(self)
        return selection_figures.plot_selection(self.run_, ax, most=most)

    def plot_path(self, ax: Axes | None = None, *, party: str | None = None) -> Axes:
        """Draw features and shadows kept along the lambdas, of one party or of all."""
        from lessvfl.report import selection_figures

        check_is_fitted(self)
        return selection_figures.plot_path(self.run_, ax, party=party)

    def plot_parties(self, ax: Axes | None = None) -> Axes:
        """Draw what each party kept and sent, and the score without it."""
        from lessvfl.report import selection_figures

        check_is_fitted(self)
        return selection_figures.plot_parties(self._record, ax)

    def plot_bytes(self, ax: Axes | None = None) -> Axes:
        """Draw bytes by stage and direction."""
        from lessvfl.report import figures

        check_is_fitted(self)
        return figures.plot_bytes(self.run_, ax=ax)

    def plot_curve(self, ax: Axes | None = None) -> Axes:
        """Draw the score on training rows against megabytes sent."""
        from lessvfl.report import figures

        check_is_fitted(self)
        return figures.plot_curve([self.run_], ax=ax)


def _dataset(
    frame: Frame, labels: CodedLabels, sample_weight: Any, groups: Any
) -> Dataset:
    """Return a table and its labels as a data set, with what is known of its rows."""
    X, findings = data.infer_columns(frame)
    for sentence in data.left_out_sentences(X):
        warn(sentence)
    n_rows, owner = len(labels.y), "'table'"
    return Dataset(
        "table",
        X,
        labels.y,
        labels.task,
        tuple(labels.names.values()),
        n_parties=2,
        scale="none",
        findings=findings,
        weight=None
        if sample_weight is None
        else data.check_weights(sample_weight, n_rows, owner),
        units=None if groups is None else data.check_units(groups, n_rows, owner),
    )
