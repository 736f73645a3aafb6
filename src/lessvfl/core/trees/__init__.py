"""Histogram trees across parties: what each side computes, without any message.

The label holder has gradients and hessians of its loss (``targets``), rounds them to
whole numbers (``sums``), chooses splits from sums by bin (``splits``), and grows trees
(``grow``) into a boosted ensemble or a forest (``ensemble``). A party has its columns
(``cells``) in bins (``columns``): it sums by bin, says which rows a split sends left,
and keeps thresholds and sets of categories to itself. What one asks of the other is in
``holders``. A tree (``tree``) names the party of a split and the number by which the
party knows its rule.
"""
