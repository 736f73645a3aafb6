"""Alignment: which rows the label holder and all parties share, in one common order.

The label holder is the server. Bytes that any transport may carry::

    label holder   hello ->   party    mode, type of the ids; psi: its points; plain and
                                       none: a key
    label holder   <- offer   party    psi: the party's points, twice; plain: keyed
                                       digests of its ids, and a key; none: its count
                                       and one digest of all its ids
    label holder   echo ->    party    psi: these points under the label holder's key,
                                       by which the party counts what is common
    label holder   <- answer  party    psi: the label holder's points under the party's
                                       key, by which it learns which ids are common
    label holder   final ->   party    the common rows, in order, by their positions in
                                       what this party offered, and the proof that
                                       the label holder has them; none: their count

No message and no sentence of an error ever holds an id.

What each side learns, besides the type of the other's ids:

===== ============================================= ===================================
mode  the label holder                              a party
===== ============================================= ===================================
psi   which of its ids each party has, and so which how many of its rows the label
      of them party A has and party B lacks; the    holder has; which are common to all;
      party's number of rows up to ``PAD_TO``       the label holder's number of rows
                                                    up to ``PAD_TO``
plain the same, and digests of all of the party's   which of its rows are common to all
      ids, which it can try out: it knows the key
none  the party's number of rows; whether its ids   that all this is so, or that the
      are the same, in the same order               rows or the ids differ
===== ============================================= ===================================

Up to ``PAD_TO``: tables are padded with random entries to a multiple of it (256).

In mode ``psi`` (ECDH on Curve25519; H maps an id to a point of the curve) the label
holder sends aH(x), the party bH(y), the label holder abH(y) in another order. The party
compares with abH(x), and counts. Only if enough are common it sends abH(x), by which
the label holder learns which. Points are compared exactly: there is no filter and no
false positive. docs/alignment.md says what is sent besides, so that neither the count
nor the rows of the last message can be made up; ``psi.py`` why this is right.

Everything random comes from a secret of each side, so that an alignment that was broken
off is repeated to the bit. A secret is for one run.
"""

from __future__ import annotations

from lessvfl.remote.align.holder import Aligner
from lessvfl.remote.align.ids import Ids
from lessvfl.remote.align.messages import MODES, Mode
from lessvfl.remote.align.party import PartyAligner

BEHAVIOUR = 1  # as a method has one

__all__ = ["MODES", "Aligner", "Ids", "Mode", "PartyAligner"]
