"""From a table to a problem: `load` a data set, `prepare` it for the parties."""

from lessvfl.data.blocks import (
    Blocks,
    equal_rows,
    find_blocks,
)
from lessvfl.data.column import Column, EncodedColumn, Finding
from lessvfl.data.columns import changes, infer_columns, left_out_sentences, usable
from lessvfl.data.encode import CellCounts, Encoding
from lessvfl.data.files import (
    load_columns,
    load_ids,
    load_labels,
    load_rows,
    write_columns,
    write_table,
)
from lessvfl.data.frame import (
    DataConfig,
    Dataset,
    Frame,
    Places,
    Table,
    are_all,
    are_in_order,
    check_texts,
    digest_of,
    is_missing,
    marks_by_column,
    read_marks,
)
from lessvfl.data.labels import (
    TASKS,
    LabelConfig,
    check_labels,
    label_name,
    task_sentence,
)
from lessvfl.data.problem import (
    PartyTable,
    Problem,
    class_counts,
    label_rows,
    labels_alone,
    prepare,
    raw_frame,
)
from lessvfl.data.readers import release_unused
from lessvfl.data.roles import check_units, check_weights
from lessvfl.data.sentinels import blank, marks_of, written_marks
from lessvfl.data.sets import build, describe, is_file, load, names
from lessvfl.data.split import (
    features_of,
    match_columns,
    read_parties,
    split_rows,
    yaml_problem,
)
from lessvfl.data.stored import Scratch, StoredTable, open_columns
from lessvfl.data.table import (
    array_of,
    columns_at,
    frame_of,
    from_arrays,
    in_memory,
)

__all__ = [
    "TASKS",
    "Blocks",
    "CellCounts",
    "Column",
    "DataConfig",
    "Dataset",
    "EncodedColumn",
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
    "array_of",
    "blank",
    "build",
    "changes",
    "check_labels",
    "check_texts",
    "check_units",
    "check_weights",
    "class_counts",
    "columns_at",
    "describe",
    "digest_of",
    "equal_rows",
    "features_of",
    "find_blocks",
    "frame_of",
    "from_arrays",
    "in_memory",
    "infer_columns",
    "is_file",
    "is_missing",
    "label_name",
    "label_rows",
    "labels_alone",
    "left_out_sentences",
    "load",
    "load_columns",
    "load_ids",
    "load_labels",
    "load_rows",
    "marks_by_column",
    "marks_of",
    "match_columns",
    "names",
    "open_columns",
    "prepare",
    "raw_frame",
    "read_marks",
    "read_parties",
    "release_unused",
    "split_rows",
    "task_sentence",
    "usable",
    "write_columns",
    "write_table",
    "written_marks",
    "yaml_problem",
]
