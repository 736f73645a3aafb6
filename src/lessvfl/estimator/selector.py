"""What a fitted estimator hands on: the columns kept, as they came or encoded."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_array
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted, validate_data

from lessvfl import data
from lessvfl.data import Encoding, Frame
from lessvfl.errors import ConfigError
from lessvfl.run.fitted import FittedModel


class ColumnSelector(SelectorMixin):  # type: ignore[misc]
    """A selector of columns that may be texts, categories and dates."""

    encode: bool
    support_: NDArray[np.bool_]
    model_: FittedModel

    @abc.abstractmethod
    def _frame(self, X: Any, reset: bool) -> Frame:
        """Check a table and return it with its column names."""

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

    def _kept_encodings(self) -> list[Encoding]:
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
