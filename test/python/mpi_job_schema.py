"""Checks that Kubernetes would accept the output of `lockstep launch --launcher kubernetes`: mpi_job_schema.py CRD <
MANIFEST. Run by hand.

CRD is manifests/base/kubeflow.org_mpijobs.yaml of Kubeflow's mpi-operator. Properties that the schema does not name are
refused, as by `kubeconform -strict`. Needs PyYAML and jsonschema, which Lockstep does not: `python -m venv /tmp/schema
&& /tmp/schema/bin/pip install pyyaml jsonschema`.
"""

import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml


def strict(schema: Any) -> Any:
    """Returns the schema with Kubernetes' extensions in JSON Schema's terms. Objects may only have the properties that
    it names.
    """
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


def main(path: str) -> None:
    crd = yaml.safe_load(Path(path).read_text())
    (schema,) = (each["schema"] for each in crd["spec"]["versions"] if each["name"] == "v2beta1")
    rules = strict(schema["openAPIV3Schema"])
    rules["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    manifest = yaml.safe_load(sys.stdin)
    jsonschema.Draft202012Validator(rules).validate(manifest)
    print(f"{manifest['kind']} {manifest['metadata']['name']} is a {manifest['apiVersion']}")


if __name__ == "__main__":
    main(sys.argv[1])
