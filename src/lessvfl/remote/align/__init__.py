"""Alignment: which rows the label holder and all parties share, in one common order.

The label holder is the server. Two rounds, as bytes that any transport may carry::

    label holder   hello ->   party    mode, type of the ids; psi: its points; plain and
                                       none: a key
    label holder   <- offer   party    psi: the party's points and the answer to the
                                       label holder's; plain: keyed digests of its ids;
                                       none: its count and one digest of all its ids
    label holder   final ->   party    the common rows, in order, by their positions in
                                       what this party offered; none: their count

No message and no sentence of an error ever holds an id.

What each side learns, besides the type of the other's ids:

===== ============================================= ===================================
mode  the label holder                              a party
===== ============================================= ===================================
psi   which of its ids each party has, and so which which of its rows are common to all;
      of them party A has and party B lacks; the    the label holder's number of rows
      party's number of rows up to ``PAD_TO``       up to ``PAD_TO``
plain the same, and digests of all of the party's   which of its rows are common to all
      ids, which it can try out: it knows the key
none  the party's number of rows; whether its ids   that all this is so, or that the
      are the same, in the same order               rows or the ids differ
===== ============================================= ===================================

Up to ``PAD_TO``: tables are padded with random entries to a multiple of it (256).

In mode ``psi`` (ECDH on Curve25519; H maps an id to a point of the curve) the label
holder sends aH(x), and the party answers bH(y), sorted, and abH(x); the label holder
multiplies each bH(y) by its a and compares. Points are compared exactly: there is no
filter and no false positive. ``psi.py`` says why this is right and what it leaves open.
In joint prediction the label holder then names the rows that it claims (``naming.py``).

Everything random comes from a secret of each side, so that an alignment that was broken
off is repeated to the bit. A secret is for one run.
"""

from __future__ import annotations

from lessvfl.remote.align.holder import Aligner
from lessvfl.remote.align.ids import Ids
from lessvfl.remote.align.messages import MODES, Mode
from lessvfl.remote.align.party import PartyAligner

__all__ = ["MODES", "Aligner", "Ids", "Mode", "PartyAligner"]
