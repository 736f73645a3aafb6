"""Alignment: which rows the label holder and all parties share, in one common order.

The label holder is the server. Two rounds, as bytes that any transport may carry::

    label holder   hello ->   party    mode, type of the ids, a key; psi: its points
    label holder   <- offer   party    psi: the party's points and the answer to the
                                       label holder's; plain: keyed digests of its ids;
                                       none: its count and one digest of all its ids
    label holder   final ->   party    the common rows, in order, as keyed digests

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
none  the party's number of rows; whether its ids   that all this is so; if not, the
      are the same, in the same order               label holder's number of rows
===== ============================================= ===================================

Up to ``PAD_TO``: tables are padded with random entries to a multiple of it (256).

In mode ``psi`` (ECDH by openmined-psi; H maps an id to a point of the curve P-256) the
label holder sends H(x)^a and the party answers H(y)^b, sorted, and H(x)^ab, from which
the label holder takes its a away again. Points are compared exactly: there is no filter
and no false positive. This is safe against a side that follows the protocol and is
curious, not against one that lies about its ids.
"""

from __future__ import annotations

from lessvfl.remote.align.holder import Aligner
from lessvfl.remote.align.ids import Ids
from lessvfl.remote.align.messages import MODES, Mode
from lessvfl.remote.align.party import PartyAligner

__all__ = ["MODES", "Aligner", "Ids", "Mode", "PartyAligner"]
