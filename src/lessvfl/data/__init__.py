"""From a table to a problem: `load` a data set, `prepare` it for the parties."""

from lessvfl.data.blocks import (
    Blocks,
    check_units,
    equal_rows,
    find_blocks,
)
from lessvfl.data.columns import changes, left_out_sentences, settle, usable
from lessvfl.data.encode import CellCounts, Encoding
from lessvfl.data.files import (
    load_columns,
    load_ids,
    load_labels,
    load_rows,
    release_unused,
    write_columns,
    write_table,
)
from lessvfl.data.frame import (
    DataConfig,
    Dataset,
    Finding,
    Frame,
    PartyTable,
    Places,
    Problem,
    Table,
    are_all,
    are_in_order,
    digest_of,
)
from lessvfl.data.labels import LabelConfig, check_labels, check_weights
from lessvfl.data.problem import (
    features_of,
    label_rows,
    labels_alone,
    prepare,
    raw_frame,
)
from lessvfl.data.sets import describe, is_file, load, names
from lessvfl.data.split import match_columns, read_parties, split_rows
from lessvfl.data.stored import Scratch, StoredTable, open_columns
from lessvfl.data.table import frame_of, from_arrays, label_name

__all__ = [
    "Blocks",
    "CellCounts",
    "DataConfig",
    "Dataset",
    "Encoding",
    "Finding",
    "Frame",
    "LabelConfig",
    "PartyTable",
    "Places",
    "Problem",
    "Scratch",
    "StoredTable",
    "Table",
    "are_all",
    "are_in_order",
    "changes",
    "check_labels",
    "check_units",
    "check_weights",
    "describe",
    "digest_of",
    "equal_rows",
    "features_of",
    "find_blocks",
    "frame_of",
    "from_arrays",
    "is_file",
    "label_name",
    "label_rows",
    "labels_alone",
    "left_out_sentences",
    "load",
    "load_columns",
    "load_ids",
    "load_labels",
    "load_rows",
    "match_columns",
    "names",
    "open_columns",
    "prepare",
    "raw_frame",
    "read_parties",
    "release_unused",
    "settle",
    "split_rows",
    "usable",
    "write_columns",
    "write_table",
]
