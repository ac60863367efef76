"""The published schemas are those of the records, and every record's schema is sound."""

from __future__ import annotations

import json

import jsonschema
import pytest

from scripts.publish_schemas import PACKAGE, PUBLISHED, PublishedSchema

EACH = pytest.mark.parametrize("schema", PUBLISHED, ids=lambda schema: schema.file)


@EACH
def test_the_published_file_is_what_its_record_generates(schema: PublishedSchema) -> None:
    assert schema.path.read_text("utf-8") == schema.text(), "run scripts/publish_schemas.py"


@EACH
def test_the_schema_is_sound_and_closed(schema: PublishedSchema) -> None:
    found = json.loads(schema.text())
    jsonschema.Draft202012Validator.check_schema(found)
    objects = [found, *found["$defs"].values()]
    assert [part["description"] for part in objects if part["additionalProperties"] is not False] == []
    assert all(part["description"] for part in objects)


def test_every_schema_in_the_package_is_generated() -> None:
    assert {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*schema.json")} == {
        schema.file for schema in PUBLISHED
    }
