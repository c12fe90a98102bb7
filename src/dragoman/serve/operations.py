"""Tables of operations and parameters: they validate requests, and /spec describes them (OpenAPI 3.1)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from dragoman._version import __version__
from dragoman.serve.http import BadRequest, ErrorFormat, answered, error_key

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NOT_EMPTY: Schema = {**TEXT, "minLength": 1}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "integer"}
CODE: Schema = {**NOT_EMPTY, "description": "code of a language, such as en"}
TEXTS: Schema = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}
FILE: Schema = {"type": "string", "format": "binary"}
MULTIPART = "multipart/form-data"


def array(items: Schema, **limits: int) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items, **limits}


def fields(required: str = "", **properties: Schema) -> Schema:
    """Return the schema of an object."""
    named: Schema = {"type": "object", "properties": properties}
    return {**named, "required": required.split()} if required else named


@dataclass(frozen=True)
class Parameter:
    """A parameter of requests.

    schema: its description; `read` accepts what its `enum`, or `minimum` and `maximum`, contain.  refusal: message for
    other values, with {value} and {accepted}.  empty: whether null, "", 0 and false stand for the default.
    """

    name: str
    schema: Schema
    required: bool = False
    refusal: str = ""
    empty: bool = False

    def read(self, values: Mapping[str, Any]) -> Any:
        """Return the value in a request, or the default.  Raises BadRequest."""
        value, schema = values.get(self.name), self.schema
        if self.name not in values or (self.empty and not value):
            return schema.get("default")
        if "enum" in schema:
            if str(value) in schema["enum"]:
                return str(value)
        else:
            try:
                number = int(value)  # type: ignore[arg-type]
                if schema["minimum"] <= number <= schema["maximum"]:
                    return number
            except (TypeError, ValueError, OverflowError):  # the last one for 1e999
                pass
        accepted = ", ".join(schema.get("enum", ()))
        raise BadRequest(self.refusal.format(value=str(value)[:40], accepted=accepted))


def check_required(values: Mapping[str, Any], table: Sequence[Parameter], message: str) -> None:
    """Raise BadRequest for a parameter that is missing.  message: with {name}."""
    for parameter in table:
        value = values.get(parameter.name)
        if parameter.required and (value is None or (value == "" and "minLength" in parameter.schema)):
            raise BadRequest(message.format(name=parameter.name))


def object_of(table: Sequence[Parameter]) -> Schema:
    """Return the schema of an object with these parameters."""
    required = " ".join(parameter.name for parameter in table if parameter.required)
    return fields(required, **{parameter.name: parameter.schema for parameter in table})


@dataclass(frozen=True)
class Operation:
    """A route with its description.

    answer: schema of the JSON answer; None = a file or nothing.  body, query: parameters.  forms: types of the body.
    events: schema of the answer as server-sent events, if there is one.  methods: several for one that some clients
    send with POST, without a body.
    """

    methods: str
    path: str
    handler: Callable[[Request], Awaitable[Any]]
    summary: str
    answer: Schema | None = None
    body: Sequence[Parameter] = ()
    query: Sequence[Parameter] = ()
    forms: str = "application/json application/x-www-form-urlencoded"
    status: int = 200
    events: Schema | None = None

    def route(self, errors: ErrorFormat) -> Route:
        """Return the route."""
        endpoint = answered(self.handler, errors, self.status)
        return Route(self.path, endpoint, methods=self.methods.split(), name=self.handler.__name__)

    def description(self) -> Schema:
        """Return the description of the operation."""
        for_deepl = error_key(self.path) == "message"
        done: Schema = {"description": "done"}
        if self.answer is not None:
            done["content"] = {"application/json": {"schema": self.answer}}
        if self.events is not None:
            done["content"]["text/event-stream"] = {"schema": self.events}
        error = {"$ref": f"#/components/responses/{'DeepLError' if for_deepl else 'Error'}"}
        described: Schema = {"summary": self.summary, "responses": {str(self.status): done, "default": error}}
        if self.body:
            schema = {"schema": object_of(self.body)}
            described["requestBody"] = {"required": True, "content": dict.fromkeys(self.forms.split(), schema)}
        parameters = [("path", name, TEXT) for name in re.findall(r"{(\w+)}", self.path)]
        parameters += [("query", parameter.name, parameter.schema) for parameter in self.query]
        if parameters:
            described["parameters"] = [
                {"name": name, "in": place, "required": True, "schema": schema} for place, name, schema in parameters
            ]
        if for_deepl:
            described["security"] = [{}, {"key": []}]
        return described


def description(operations: Iterable[Operation]) -> Schema:
    """Return the OpenAPI document of a server."""
    paths: dict[str, Schema] = {}
    for operation in operations:
        for method in operation.methods.lower().split():
            paths.setdefault(operation.path, {})[method] = operation.description()
    errors = {
        name: {"description": "an error", "content": {"application/json": {"schema": fields(key, **{key: TEXT})}}}
        for name, key in (("Error", "error"), ("DeepLError", "message"))
    }
    key = {"type": "apiKey", "in": "header", "name": "Authorization", "description": "DeepL-Auth-Key KEY"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Dragoman", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"responses": errors, "securitySchemes": {"key": key}},
    }
