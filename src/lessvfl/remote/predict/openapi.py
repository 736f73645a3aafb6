"""What the service looks like, for other programs: its pages in OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lessvfl import __version__
from lessvfl.web.site import Page

Schema = dict[str, Any]

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(kind: str) -> Schema:
    return {"type": "object", "additionalProperties": {"type": kind}}


def _object(title: str, **fields: Schema) -> Schema:
    about: Schema = {"title": title, "type": "object", "properties": fields}
    return about | {"required": [*fields]}


WANTED = _object("Wanted", ids={"anyOf": [_list(WHOLE), _list(TEXT)]})
PREDICTION = _object(
    "Prediction",
    id={"type": ["integer", "string"]},
    prediction={"type": ["string", "number"]},
    probabilities={"anyOf": [_map("number"), {"type": "null"}]},
)
PREDICTIONS = _object(
    "Predictions",
    model=TEXT,
    seed=WHOLE,
    partial={"type": "boolean"},
    missing=_list(TEXT),
    predictions=_list(PREDICTION),
)
ANSWERS = {  # by path: type and schema
    "/predict": ("application/json", PREDICTIONS),
    "/align": ("application/json", _object("Aligned", rows=WHOLE)),
    "/health": (
        "application/json",
        _object("Health", status=TEXT, parties=_map("boolean")),
    ),
    "/metrics": ("text/plain", TEXT),
}


def document(pages: Mapping[str, Page]) -> Schema:
    """Return the document of the pages of the service."""
    summary = "Joint prediction with what several parties know of the same rows."
    bearer = {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "lessvfl", "summary": summary, "version": __version__},
        "paths": {path: _path(path, pages[path]) for path in ANSWERS},
        "components": {"securitySchemes": bearer},
    }


def _path(path: str, page: Page) -> Schema:
    name, method = path.strip("/"), page.method.lower()
    kind, schema = ANSWERS[path]
    right = {
        "description": "Successful Response",
        "content": {kind: {"schema": schema}},
    }
    about: Schema = {
        "summary": name.title(),
        "description": page.answer.__doc__,
        "operationId": f"{name}_{name}_{method}",
        "responses": {"200": right},
    }
    if path == "/predict":
        content = {"application/json": {"schema": WANTED}}
        about["requestBody"] = {"content": content, "required": True}
    if page.right is not None:
        about["security"] = [{"HTTPBearer": []}]
    return {method: about}
