"""Joint prediction between machines: the model of a finished run, asked for answers.

Every side uses the run folder that training left it. Rows are aligned once a session,
as in training; then the server names rows, every party that kept a feature sends the
components that it kept of them, and the server's network makes the answers.

=============  =================================================================
`party.py`     a party: checks the policy, answers, writes down who asked
`models.py`    the models of its run folder, and what they say of its rows
`server.py`    the server: session, alignment, answers of a batch of ids
`service.py`   the same as a service over HTTP
`journal.py`   who asked, in a file of a run folder
=============  =================================================================
"""

from __future__ import annotations

from lessvfl.remote.predict.models import texts_in_training
from lessvfl.remote.predict.party import PredictingParty
from lessvfl.remote.predict.server import Answers, Predictor

__all__ = ["Answers", "PredictingParty", "Predictor", "texts_in_training"]
