"""scikit-learn estimators: a selector and a predictor in one, parties simulated.

``LessVFLClassifier`` and ``LessVFLRegressor`` split the columns of one table among
parties, run a method between them in this process, and keep the features and networks
that are left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import (
    assert_all_finite,
    check_array,
    check_random_state,
    estimator_html_repr,
)
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from lessvfl import data
from lessvfl.data import Dataset, Frame
from lessvfl.errors import ConfigError, DataError, warn
from lessvfl.run import numbers, profiles, simulate
from lessvfl.run.build import Networks, clamp_batch
from lessvfl.run.record import RunRecord
from lessvfl.terms import Progress, Task, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DENSE_LIMIT = 2**30  # bytes that a sparse table may take as a dense one of float64

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

_PARAMETERS = """
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


class _LessVFL(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share."""

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

    def _fit(
        self,
        frame: Frame,
        y: NDArray[Any],
        task: Task,
        labels: Mapping[Any, str],
        sample_weight: Any,
        groups: Any,
    ) -> None:
        check_consistent_length(frame.numeric, y)
        names = tuple(labels.values())
        X, findings = data.infer_columns(frame)
        dataset = Dataset("table", X, y, task, names, n_parties=2, scale="none")
        dataset = dataclasses.replace(dataset, findings=findings)
        for sentence in data.left_out_sentences(X):
            warn(sentence)
        if sample_weight is not None:
            weight = data.check_weights(sample_weight, len(y), "'table'")
            dataset = dataclasses.replace(dataset, weight=weight)
        if groups is not None:
            units = data.check_units(groups, len(y), "'table'")
            dataset = dataclasses.replace(dataset, units=units)
        job = simulate.Job(
            dataset,
            self._settings(dataset, labels),
            parties=_by_name("parties", self.parties, frame.names),
            groups=_by_name("groups", self.groups, frame.names),
            device=self.device,
            networks=Networks(self.party_net, self.fusion_net),
        )
        seed = self.random_state
        source = check_random_state(seed)
        if not isinstance(seed, int | np.integer):
            seed = source.randint(2**31 - 1)
        with self._watched() as progress:
            (run,) = simulate.simulate(job, [int(seed)], progress)
        self.run_ = run.numbers
        # In float64 the prediction of a row does not depend on the rows beside it.
        self.model_ = run.model.astype(torch.float64)
        self.ledger_ = run.bill
        self.features_ = run.model.features
        about = numbers.bare_header(
            job.settings, dataset.name, job.device, {}, parties=[*self.features_]
        )
        runs = [{**run.numbers, "bill": run.bill}]
        self._record = RunRecord(numbers.header(about, run.problem), runs, "complete")
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
        self.support_ = np.array([name in kept for name in frame.names])
        self.feature_importances_ = np.array([norms.get(n, 0.0) for n in frame.names])
        if not kept:
            warn(_nothing_kept(self.method))

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
        if "batch_size" in overrides:
            return resolved
        config = clamp_batch(resolved.config, len(dataset.y))
        return dataclasses.replace(resolved, config=config)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Progress | None]:
        """Give whom the run may tell how far it is, to show it where asked to."""
        if not self.verbose:
            yield None
            return
        from lessvfl.status import Status, notebook

        with notebook.follow(Status("", self.method, "the table")) as progress:
            yield progress

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
        is_mixed = _holds_texts_or_dates(X)
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
            array = _densify(array)
        names = [f"x{index}" for index in range(array.shape[1])]
        if not reset:  # an array after a frame: its columns come in the same order
            names = list(getattr(self, "feature_names_in_", names))
        return data.frame_of(array, names)

    # ------------------------------------------------------------------ selector, plots

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
            Of a frame an array, of objects where columns are not all numbers; with
            ``set_output(transform="pandas")`` or ``"polars"`` a frame, whose columns
            are of the types that they had.
        """
        check_is_fitted(self)
        X = data.in_memory(X)
        if not hasattr(X, "columns"):
            return super().transform(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        kept = data.columns_at(X, self.get_support(indices=True).tolist())
        wanted = _get_output_config("transform", estimator=self)["dense"]
        if wanted == "default":
            return data.array_of(kept)
        if wanted == "pandas" and hasattr(kept, "to_pandas"):
            return kept.to_pandas()  # scikit-learn would make objects of its cells
        return kept

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

    def _score_classes(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        return self.model_.score_classes(self._frame(X, reset=False))

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


def _densify(table: Any) -> NDArray[Any]:
    """Return a sparse table as an array, if that does not take too much memory."""
    n_rows, n_columns = table.shape
    n_bytes = 8 * n_rows * n_columns
    if n_bytes > DENSE_LIMIT:
        raise DataError(
            f"A sparse X must take at most {DENSE_LIMIT // 2**30} GiB as a dense table "
            f"of 8 bytes a cell. Got {n_rows:,} rows of {n_columns:,} columns: "
            f"{n_bytes / 2**30:,.1f} GiB."
        )
    dense: NDArray[Any] = table.toarray()
    return dense


def _by_name(what: str, given: Any, names: Sequence[str]) -> Any:
    """Return parties or groups with all columns by name; one alone needs no list."""
    if not isinstance(given, Mapping):
        return given
    found: dict[str, list[str]] = {}
    numbered = range(-len(names), len(names))
    for owner, columns in given.items():
        alone = isinstance(columns, str) or not isinstance(columns, Iterable)
        found[owner] = []
        for column in [columns] if alone else columns:
            if isinstance(column, str):
                found[owner].append(column)
            elif column in numbered and not isinstance(column, bool | np.bool_):
                found[owner].append(names[int(column)])
            else:
                raise ConfigError(
                    f"The columns of '{owner}' in '{what}' must be names, or numbers "
                    f"from 0 to {len(names) - 1}. Got {column!r}."
                )
    return found


def _nothing_kept(method: str) -> str:
    """Say that all features were removed, and what that means."""
    why = "none says more of the labels than chance would"
    if method != "less-vfl-auto":
        why = "a smaller 'lam_party' keeps more"
    return (
        f"Every feature was removed, so that every row gets the same prediction: {why}."
    )


def _one_column(y: Any) -> NDArray[Any]:
    """Return the labels of the rows; refuse several of them for one row, or none."""
    if hasattr(getattr(y, "dtype", None), "na_value"):  # numbers of pandas with a mask
        y = y.to_numpy()
    table = y if hasattr(y, "shape") else np.asarray(y, dtype=object)
    found = f"shape {tuple(table.shape)}"
    several = math.prod(table.shape[1:]) != 1
    if table is not y and isinstance(next(iter(table.flat), None), list | tuple | set):
        several, found = True, "a list for each row"
    if several:
        raise ConfigError(
            "The labels y must be one column, a label for each row; for several, fit "
            "one estimator each, as sklearn.multioutput does. Got "
            f"{found}."
        )
    if getattr(getattr(y, "dtype", None), "kind", "") == "c":
        return _checked_labels(y)
    column: NDArray[Any] = column_or_1d(y, warn=True)
    if column.dtype.kind not in "OU" or not len(column):
        return _checked_labels(column)
    # What a list held before it became texts.
    cells = np.asarray(table, dtype=object).ravel().tolist()
    if n_missing := sum(map(data.is_missing, cells)):
        raise ConfigError(
            "The labels y must have no missing cells. Got "
            f"{plural(n_missing, 'row')} without a label."
        )
    n_texts = sum(isinstance(cell, str) for cell in cells)
    if n_texts == len(cells):
        data.check_texts(cells, "The labels y")
        return column
    if n_texts:
        raise ConfigError("The labels y must be all texts or all numbers. Got both.")
    return _checked_labels(np.array(cells))


def _checked_labels(column: NDArray[Any]) -> NDArray[Any]:
    """Return labels that are numbers or truth values, or refuse them."""
    with contextlib.suppress(TypeError, ValueError):
        if column.dtype.kind == "O":  # decimals, as an example
            column = column.astype(np.float64)
    if column.dtype.kind not in "iufb":
        raise ConfigError(
            "The labels y must be texts, truth values or numbers. Got "
            f"{column.dtype if column.dtype.kind != 'O' else type(column[0]).__name__}."
        )
    return column


def _holds_texts_or_dates(X: Any) -> bool:
    """Tell whether an array holds more than numbers and truth values."""
    if not isinstance(X, np.ndarray) or X.dtype.kind not in "OUM":
        return False
    kinds = (str, datetime.date)
    return X.dtype.kind != "O" or any(isinstance(cell, kinds) for cell in X.flat)


class LessVFLClassifier(ClassifierMixin, _LessVFL):  # type: ignore[misc]
    """Select features across parties and classify with what is left."""

    __doc__ += (
        _PARAMETERS
        + """    classes_ : ndarray
        The classes.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LessVFLClassifier(parties=3, train_epochs=20, random_state=0)
    >>> model = model.fit(X, y)
    >>> model.score(X, y) > 0.9
    True
    >>> model.transform(X).shape[1] == int(model.get_support().sum())
    True
    """
    )

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> LessVFLClassifier:
        """Select features and train.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame (n, d)
            The table; missing cells are imputed. Texts are categories, or numbers,
            dates, or yes and no; ids and free text are left out, with a warning.
        y : array-like (n,)
            The classes.
        sample_weight : array-like (n,), optional
            How much every row counts in the loss.
        groups : array-like (n,), optional
            Of whom every row is (a person, a household, a device): the rows of one are
            held out and scrambled together.
        """
        frame = self._frame(X, reset=True)
        y = _one_column(y)
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ConfigError(
                "The labels must hold at least 2 classes. Got 1 class: "
                f"{self.classes_[0]!r}."
            )
        task: Task = "binary" if len(self.classes_) == 2 else "multiclass"
        names = {name: str(name) for name in self.classes_}
        y = codes.astype(np.int64)
        self._fit(frame, y, task, names, sample_weight, groups)
        return self

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return what decides on a class: (n,) for two classes, (n, C) for more.

        The logits; with ``threshold=balanced`` less those of the threshold.
        """
        z = self._score_classes(X)
        return z[:, 0] if len(self.classes_) == 2 else z

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of every class, (n, C)."""
        check_is_fitted(self)
        return self.model_.predict_proba(self._frame(X, reset=False))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of every row."""
        z = self.decision_function(X)
        codes = (z > 0).astype(int) if z.ndim == 1 else z.argmax(axis=1)
        return np.asarray(self.classes_[codes])


class LessVFLRegressor(RegressorMixin, _LessVFL):  # type: ignore[misc]
    """Select features across parties and predict a number with what is left."""

    __doc__ += (
        _PARAMETERS
        + """
    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> X, y = make_regression(200, 6, n_informative=2, random_state=0)
    >>> model = LessVFLRegressor(train_epochs=200, random_state=0).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """
    )

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> LessVFLRegressor:
        """Select features and train.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame (n, d)
            The table; missing cells are imputed. Texts are categories, or numbers,
            dates, or yes and no; ids and free text are left out, with a warning.
        y : array-like (n,)
            The numbers to predict.
        sample_weight : array-like (n,), optional
            How much every row counts in the loss.
        groups : array-like (n,), optional
            Of whom every row is (a person, a household, a device): the rows of one are
            held out and scrambled together.
        """
        frame = self._frame(X, reset=True)
        y = _one_column(y)
        if y.dtype.kind not in "iufb":
            raise ConfigError("The labels y must be numbers to regress on. Got texts.")
        y = y.astype(np.float64)
        if not np.isfinite(y).all():
            raise ConfigError(
                "The labels must be finite numbers. Got NaN or infinity in y."
            )
        self._fit(frame, y, "regression", {}, sample_weight, groups)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return a number for every row."""
        check_is_fitted(self)
        return self.model_.predict(self._frame(X, reset=False))
