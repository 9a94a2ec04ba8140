"""Whether Kubernetes would accept what `lockstep launch --launcher kubernetes` writes: mpi_job_schema.py CRD < MANIFEST. By hand.

CRD is manifests/base/kubeflow.org_mpijobs.yaml of Kubeflow's mpi-operator. What the schema does not name is refused, as by `kubeconform -strict`.
Needs PyYAML and jsonschema, which Lockstep does not: `python -m venv /tmp/schema && /tmp/schema/bin/pip install pyyaml jsonschema`.
"""

import sys
from pathlib import Path
from typing import Any

import jsonschema
import yaml


def strict(schema: Any) -> Any:
    """The schema, in which objects have no other properties than those that it names, and in JSON Schema's words for what Kubernetes has its own."""
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
