"""From a table to a problem: `load` a data set, `prepare` it for the parties.

The names imported here are those that other rooms use.
"""

from lessvfl.data.bin_names import BinNames
from lessvfl.data.blocks import Blocks, equal_rows, find_blocks
from lessvfl.data.column import Column, EncodedColumn, Finding
from lessvfl.data.columns import changes, infer_columns, left_out_sentences, usable
from lessvfl.data.dealing import (
    columns_by_name,
    features_of,
    match_columns,
    read_parties,
)
from lessvfl.data.encode import CellCounts, Encoding
from lessvfl.data.files import (
    load_cells,
    load_columns,
    load_ids,
    load_labels,
    load_roles,
    load_rows,
    write_columns,
    write_table,
)
from lessvfl.data.frame import (
    DataConfig,
    Dataset,
    Frame,
    Places,
    are_all,
    are_in_order,
    check_texts,
    digest_of,
    is_missing,
    marks_by_column,
    read_marks,
)
from lessvfl.data.held_out import check_split, settle_test_rows
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
    labels_alone,
    prepare,
    raw_frame,
)
from lessvfl.data.readers import release_unused
from lessvfl.data.roles import ROW_ROLES, Roles, check_units, check_weights
from lessvfl.data.sentinels import blank, marks_of, written_marks
from lessvfl.data.sets import build, describe, is_file, load, names
from lessvfl.data.split import (
    SecretSeed,
    ensemble_rows,
    fold_seeds,
    is_drawn_by_class,
    split_rows,
)
from lessvfl.data.stored import Scratch, StoredTable, Table, open_columns
from lessvfl.data.table import array_of, columns_at, frame_of, from_arrays, in_memory
from lessvfl.data.yaml_files import read_yaml, write_yaml
