"""What a peer may cost, whichever site it asks."""

HEAD_BYTES = 1 << 14  # of a request, without its body
BODY_BYTES = 4 << 20  # of its body
HEAD_SECONDS = 5.0  # that a connection may take until its next request is there
BODY_SECONDS = 10.0  # that the rest of a request may take
ANSWER_SECONDS = 300.0  # that its answer may take
CONNECTIONS = 256  # one more takes the place of the oldest
BACKLOG = 128  # connections that are taken in at once
