"""Makes types.json: `python3 vendor.py AZMCP`, where AZMCP is the program of @azure/mcp-linux-x64.

    npm pack @azure/mcp-linux-x64@2.0.5 && tar xzf azure-mcp-linux-x64-2.0.5.tgz
    python3 .ci/bicep/vendor.py package/dist/azmcp

It holds Azure's index of Bicep types and answers offline. Of each resource that the templates use, kept are
the types that they touch, with all their properties, so that a wrong name is known to be one; descriptions,
functions and untouched types are left out. A template that touches more needs this to be run again.
"""

import json
import os
import subprocess
import sys

import bicep
from check import sources

PACKAGE = "@azure/mcp-linux-x64@2.0.5"


def fields(items):
    short = {"Required": "r", "ReadOnly": "o"}
    return {
        item["name"]: [item["type"], "".join(v for k, v in short.items() if k in (item.get("flags") or ""))]
        for item in items
    }


def simple(kind):
    if kind["$type"] == "DiscriminatedObject":
        tag = kind["discriminator"]
        elements = {}
        for element in kind["elements"]:
            own = fields(element.get("properties", []))
            elements[own[tag][0]] = {**own, tag: ["string", "r"]}
        return {"discriminator": tag, "base": fields(kind.get("baseProperties", [])), "elements": elements}
    made = {"properties": fields(kind.get("properties", []))}
    if kind.get("additionalPropertiesType"):
        made["rest"] = kind["additionalPropertiesType"]
    return made


def fetch(azmcp, resource):
    command = [azmcp, "bicepschema", "get", "--resource-type", resource]
    environment = dict(os.environ, AZURE_MCP_COLLECT_TELEMETRY="false")
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
    types = json.loads(answer)["results"]["BicepSchemaResult"]
    top = next(t for t in types if t["$type"] == "Resource")
    body = top["bodyType"]
    made = {t["name"]: simple(t) for t in types if t["$type"] in ("Object", "DiscriminatedObject")}
    if isinstance(body, dict):
        made["$body"] = simple(body)
        body = "$body"
    return {"version": top["name"].partition("@")[2], "body": body, "types": made}


def main(azmcp):
    files = sources()
    by_hand = bicep.Types("types-by-hand.json")
    wanted = {
        declared.more["type"]
        for file in bicep.Checker(files, by_hand).files.values()
        for declared in file.names.values()
        if declared.sort == "resource"
    } - set(by_hand.resources)
    types = bicep.Types("types-by-hand.json")
    for resource in sorted(wanted):
        print(resource)
        types.resources[resource] = fetch(azmcp, resource)
    bicep.Checker(files, types)
    kept = {}
    for resource in sorted(wanted):
        whole = types.resources[resource]
        names = {name for owner, name in types.used if owner == resource} | {whole["body"]}
        inner = {name: whole["types"][name] for name in sorted(names)}
        tag = inner[whole["body"]].get("elements")
        if resource.endswith("sites/config") and tag:
            inner[whole["body"]]["elements"] = {"appsettings": tag["appsettings"]}
        kept[resource] = {**whole, "types": inner}
    about = f"Azure's Bicep types (MIT), trimmed by vendor.py from the npm package {PACKAGE}. [type, flags]: r required, o read-only."
    with open(os.path.join(bicep.HERE, "types.json"), "w", encoding="utf-8") as file:
        file.write('{\n"about": ' + json.dumps(about) + ',\n"resources": {\n')
        parts = []
        for resource, whole in kept.items():
            rows = ",\n".join(f" {json.dumps(n)}: {json.dumps(t)}" for n, t in whole["types"].items())
            head = f'"version": {json.dumps(whole["version"])}, "body": {json.dumps(whole["body"])}'
            parts.append(f"{json.dumps(resource)}: {{{head}, \"types\": {{\n{rows}\n}}}}")
        file.write(",\n".join(parts) + "\n}\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])
