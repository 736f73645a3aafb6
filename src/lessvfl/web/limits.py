"""Limits of a peer, the same for every site."""

HEAD_BYTES = 1 << 14  # of a request, without its body
BODY_BYTES = 4 << 20  # of its body
HEAD_SECONDS = 5.0  # until a connection's next request is there
BODY_SECONDS = 10.0  # for the rest of a request
ANSWER_SECONDS = 300.0  # for its answer
CONNECTIONS = 256  # open at once; one more replaces the oldest
BACKLOG = 128  # connections that are accepted at once
