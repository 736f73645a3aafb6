"""The one web stack: Starlette under uvicorn, at addresses of this machine alone.

The status page (:mod:`lessvfl.web.status`) and the service of predictions
(:mod:`lessvfl.remote.predict.service`) are its sites. Host, head, token and length of
a request are checked before its body is read (:mod:`lessvfl.web.site`); how long a
connection may last and how many there are is the same for all
(:mod:`lessvfl.web.server`, :mod:`lessvfl.web.limits`).
"""
