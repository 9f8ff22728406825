"""Checks what must hold of infra/, azure.yaml and the workflows beyond what the Bicep compiler knows, and that each check
would find what it is for. Names and syntax are checked too, since the compiler cannot run everywhere."""

import json
import os
import re
import sys

import tree_sitter_bicep
import yaml
from tree_sitter import Language, Parser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TABLE = "docs/reference/deployment.md"
# All roles that the templates may assign, each once: file, role, kind and name of the scope's resource, receiver of the role.
# infra/README.md explains each.
OWNER, CONTRIBUTOR, PUBLISHER = "b7e6dc6d-f1e8-4753-8033-0f276bb0955b", "ba92f5b4-2d11-453d-a403-e96b0029c9fe", "3913510d-42f4-4e42-8a64-420c390055eb"
ACCOUNT, CONTAINER = "Microsoft.Storage/storageAccounts", "Microsoft.Storage/storageAccounts/blobServices/containers"
ROLES = [
    ("infra/app/base.bicep", OWNER, ACCOUNT, "hostAccount", "identity.properties.principalId"),
    ("infra/app/base.bicep", PUBLISHER, "Microsoft.Insights/components", "insights", "identity.properties.principalId"),
    ("infra/app/receiver.bicep", OWNER, ACCOUNT, "hostAccount", "identity.properties.principalId"),
    ("infra/app/receiver.bicep", PUBLISHER, "Microsoft.Insights/components", "insights", "identity.properties.principalId"),
    ("infra/app/state.bicep", CONTRIBUTOR, CONTAINER, "container", "identityPrincipalId"),
    ("infra/app/state.bicep", CONTRIBUTOR, CONTAINER, "container", "operatorObjectId"),
]
# Other resources about rights that may be created: locks take rights away.
AUTHORIZATION = ("Microsoft.Authorization/roleAssignments", "Microsoft.Authorization/locks")
# Resources of which each property needs a source in TABLE.
SOURCED = ("Microsoft.Web/serverfarms", "Microsoft.Web/sites", "Microsoft.Authorization/roleAssignments")
# Required values: type, path, values.
FIXED = [
    ("Microsoft.Storage/storageAccounts", "properties.allowSharedKeyAccess", (False,)),
    ("Microsoft.Storage/storageAccounts", "properties.allowBlobPublicAccess", (False,)),
    ("Microsoft.Storage/storageAccounts", "properties.supportsHttpsTrafficOnly", (True,)),
    ("Microsoft.Storage/storageAccounts", "properties.minimumTlsVersion", ("TLS1_2", "TLS1_3")),
    ("Microsoft.Storage/storageAccounts", "properties.publicNetworkAccess", ("publicAccess ? 'Enabled' : 'Disabled'", "Enabled")),
    ("Microsoft.Insights/diagnosticSettings", "properties.workspaceId", ("workspaceId",)),
    ("Microsoft.Storage/storageAccounts/blobServices/containers", "properties.publicAccess", ("None",)),
    ("Microsoft.Insights/components", "properties.DisableLocalAuth", (True,)),
    ("Microsoft.Sql/servers", "properties.administrators.azureADOnlyAuthentication", (True,)),
    ("Microsoft.Sql/servers", "properties.administratorLoginPassword", (None,)),
    ("Microsoft.Sql/servers", "properties.minimalTlsVersion", ("1.2", "1.3")),
    ("Microsoft.Web/sites/basicPublishingCredentialsPolicies", "properties.allow", (False,)),
    ("Microsoft.Web/sites", "properties.httpsOnly", (True,)),
    ("Microsoft.Web/sites", "identity.type", ("UserAssigned",)),
    ("Microsoft.Web/sites", "properties.siteConfig", ({"minTlsVersion": "1.2"},)),
    ("Microsoft.Authorization/roleAssignments", "properties.principalType", ("ServicePrincipal", "operatorType")),
]
# Each write of a state document would leave a version, or a deleted copy for that many days.
STATE = [("properties.isVersioningEnabled", (False,)), ("properties.deleteRetentionPolicy.days", tuple(range(1, 8)))]
# Accounts that accept public networks even if the app is in a private one: infra/README.md explains each.
PUBLIC = {"infra/app/receiver.bicep"}
# What is recorded of the state.
AUDITED = ["StorageWrite", "StorageDelete"]
PARSER = Parser(Language(tree_sitter_bicep.language()))


def text(node):
    return node.text.decode()


def child(node, *kinds):
    return next((c for c in node.named_children if c.type in kinds), None)


def body_of(node):
    while node is not None and node.type != "object":
        node = child(node, "object", "if_statement", "for_statement")
    return node


def plain(node):
    """A value as Python has it; the source text of what only a deployment knows."""
    if node.type == "object":
        parts = [[c for c in item.named_children if c.type != "comment"] for item in node.named_children if item.type == "object_property"]
        return {text(p[0]).strip("'"): plain(p[1]) for p in parts if len(p) == 2}
    if node.type == "array":
        return [plain(item) for item in node.named_children if item.type != "comment"]
    if node.type in ("boolean", "number"):
        return json.loads(text(node))
    if node.type == "string" and child(node, "interpolation") is None:
        return text(node)[1:-1]
    return text(node)


def at(value, path):
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def paths(value, before=""):
    for key, inner in value.items():
        path = f"{before}{key}"
        yield from paths(inner, f"{path}.") if isinstance(inner, dict) and inner else [path]


class Template:
    """The declarations of a file, by sort and name: node, type, value."""

    def __init__(self, path, source, errors):
        self.path, self.root, self.errors = path, PARSER.parse(source.encode()).root_node, errors
        self.param, self.var, self.resource, self.module, self.output = {}, {}, {}, {}, {}
        if self.root.has_error:
            errors.append(f"{path}: syntax error near line {self.broken(self.root).start_point[0] + 1}")
            return
        sorts = {"parameter": self.param, "variable": self.var, "resource": self.resource, "module": self.module, "output": self.output}
        for node in self.root.named_children:
            sort = sorts.get(node.type.removesuffix("_declaration"))
            parts = [c for c in node.named_children if c.type != "comment"] if sort is not None else []
            if sort is not None:
                sort[text(parts[0])] = parts
        self.names(self.root)

    def broken(self, node):
        inner = next((c for c in node.children if c.has_error or c.is_missing), None)
        return node if inner is None or node.is_error else self.broken(inner)

    def names(self, root):
        known = {**self.param, **self.var, **self.resource, **self.module}
        used = set()

        def visit(node, local):
            if node.type == "for_statement":
                local = local | {text(c) for f in node.named_children if f.type.startswith("for_loop") for c in f.named_children}
                local = local | {text(c) for c in node.named_children if c.type == "identifier"}
            for index, inner in enumerate(node.named_children):
                is_key = node.type == "object_property" and index == 0
                declares = node.type.endswith("_declaration") and index == 0
                if inner.type == "identifier" and not is_key and not declares:
                    called = node.type == "call_expression" and index == 0
                    if text(inner) in known:
                        used.add(text(inner))
                    elif not called and text(inner) not in local and node.type != "decorator":
                        self.errors.append(f"{self.path}:{inner.start_point[0] + 1}: '{text(inner)}' is not declared")
                else:
                    visit(inner, local)

        visit(root, frozenset())
        for name in sorted({*self.param, *self.var} - used):
            self.errors.append(f"{self.path}: '{name}' is never used")

    def resources(self):
        """Those that the template creates."""
        for name, parts in self.resource.items():
            if re.match(r"resource \w+ '[^']+' existing\b", text(parts[0].parent)):
                continue
            yield name, text(parts[1])[1:-1].partition("@")[0], plain(body_of(parts[2] if len(parts) > 2 else parts[1]))


def module_calls(templates, errors):
    for path, template in templates.items():
        for name, parts in template.module.items():
            target = templates.get(os.path.normpath(os.path.join(os.path.dirname(path), text(parts[1])[1:-1])))
            if target is None:
                errors.append(f"{path}: module '{name}' names no file")
                continue
            given = set(plain(body_of(parts[2])).get("params", {}))
            required = {n for n, p in target.param.items() if len(p) < 3}
            for one in given - set(target.param):
                errors.append(f"{path}: module '{name}': '{one}' is no parameter of {target.path}")
            for one in required - given:
                errors.append(f"{path}: module '{name}': parameter '{one}' is missing")


def role(template, where, body, errors):
    """What a role assignment grants, in the form of ROLES."""
    guid = re.search(r"roleDefinitions', (\w+)\)", at(body, "properties.roleDefinitionId") or "")
    value = guid and template.var.get(guid.group(1))
    scope = template.resource.get(body.get("scope", ""))
    kind = scope and text(scope[1])[1:-1].partition("@")[0]
    given = (template.path, value and text(value[-1])[1:-1], kind, body.get("scope"), at(body, "properties.principalId"))
    if given not in ROLES:
        errors.append(f"{where}: role {given[1]} on {kind or 'the whole group'} ({given[3]}) for {given[4]} is not among the rights that may be given")
    elif body.get("name") != f"guid({given[3]}.id, {given[4].removesuffix('.properties.principalId')}{'.id' if '.' in given[4] else ''}, {guid.group(1)})":
        errors.append(f"{where}: its name must be made of scope, receiver and role, so that each has its own")
    return given


def parameters(files, main, errors):
    given = json.loads(files["infra/main.parameters.json"])["parameters"]
    for name, parts in main.param.items():
        if len(parts) < 3 and name not in given:
            errors.append(f"main.parameters.json: '{name}' is missing")
    for name, entry in given.items():
        kind, value = name in main.param and text(main.param[name][1]), entry["value"]
        variable = re.fullmatch(r"\$\{([A-Z_]+)(?:=(.*))?\}", value) if isinstance(value, str) else None
        default = variable.group(2) if variable else value
        fits = {"bool": default in ("true", "false"), "int": str(default).isdecimal(), "array": isinstance(value, list),
                "object": isinstance(value, dict), "string": variable is not None}
        if not fits.get(kind, False):
            errors.append(f"main.parameters.json: '{name}' is {value!r}, which main.bicep does not take")
        if variable and f"`{variable.group(1)}`" not in files["infra/README.md"]:
            errors.append(f"infra/README.md does not list `{variable.group(1)}`")


def projects(files, errors):
    project = yaml.safe_load(files["azure.yaml"])
    tag = re.search(r"'azd-service-name': '(\w+)'", files["infra/app/functions.bicep"])
    if not tag or list(project["services"]) != [tag.group(1)]:
        errors.append("azure.yaml: its one service must be the one that functions.bicep tags")
    for service in project["services"].values():
        if (service.get("host"), service.get("language")) != ("function", "custom"):
            errors.append("azure.yaml: host and language must be function and custom")
        if f" {service.get('dist')}" not in service["hooks"]["prepackage"]["run"]:
            errors.append("azure.yaml: prepackage must make the zip that `dist` names")
    hooks = [*project["hooks"].items(), *((n, h) for s in project["services"].values() for n, h in s["hooks"].items())]
    for name, hook in hooks:
        script = hook["run"].split(" ")[0].removeprefix("./")
        if hook.get("shell") != "sh" or script not in files["executable"]:
            errors.append(f"azure.yaml: {name} runs {script!r}, which is no script for sh that can run")
    for path in (p for p in files if p.startswith(".github/workflows/")):
        for job in yaml.safe_load(files[path])["jobs"].values():
            for name in (n for n in job.get("env", {}) if not n.startswith("AZURE_")):
                if f"${{{name}" not in files["infra/main.parameters.json"] and name not in files["infra/sql/grant.sh"]:
                    errors.append(f"{path}: nothing reads {name}")
            if ("uses" in job) == ("steps" in job):
                errors.append(f"{path}: a job must use a workflow or have steps")
            for step in job.get("steps", []):
                if ("uses" in step) == ("run" in step):
                    errors.append(f"{path}: a step must use an action or run a command: {step}")


def problems(files):
    errors = []
    templates = {path: Template(path, source, errors) for path, source in files.items() if path.endswith(".bicep")}
    if errors:
        return errors
    module_calls(templates, errors)
    sources = re.findall(r"^\| `(Microsoft\.[\w/]+)` \| `([\w.${}']+)` \|.*\(https://", files[TABLE], re.M)
    made, audited, assigned = set(), set(), []
    for path, template in templates.items():
        if re.search(r"\blist(Keys|Secrets)?\(|\.list\w*\(", files[path]):
            errors.append(f"{path}: it reads keys")
        for name, kind, body in template.resources():
            where = f"{path}: {name}"
            fixed = [(p, v) for k, p, v in FIXED if k == kind]
            fixed += STATE if kind.endswith("/blobServices") and path.endswith("state.bicep") else []
            for at_path, values in fixed:
                found = at(body, at_path)
                if not any(found == v and type(found) is type(v) for v in values):
                    errors.append(f"{where}: {at_path} is {found!r}, must be {' or '.join(map(repr, values))}")
            if kind == "Microsoft.Storage/storageAccounts" and path not in PUBLIC and at(body, "properties.publicNetworkAccess") == "Enabled":
                errors.append(f"{where}: it is not closed with a private network")
            if kind == "Microsoft.Insights/diagnosticSettings":
                audited |= {(path, at(log, "category")) for log in at(body, "properties.logs") if at(log, "enabled") is True}
            if kind == "Microsoft.Authorization/roleAssignments":
                assigned.append(role(template, where, body, errors))
            elif kind.startswith("Microsoft.Authorization/") and kind not in AUTHORIZATION:
                errors.append(f"{where}: {kind} is not among the resources about rights that may be created")
            if kind in SOURCED:
                made |= {(kind, p) for p in paths(body) if p not in ("parent", "scope")}
    for given in ROLES:
        if (count := assigned.count(given)) != 1:
            errors.append(f"{given[0]}: role {given[1]} on {given[3]} for {given[4]} is assigned {count} times, must be once")
    for category in (c for c in AUDITED if ("infra/app/state.bicep", c) not in audited):
        errors.append(f"infra/app/state.bicep: {category} of the state is not recorded")
    for kind, path in made - set(sources):
        errors.append(f"{TABLE}: no source of {path} of {kind}")
    for kind, path in set(sources) - made:
        errors.append(f"{TABLE}: {kind} has no {path}")
    parameters(files, templates["infra/main.bicep"], errors)
    projects(files, errors)
    return errors


# Planted defects, one at a time: file, text, replacement, expected error.
MISTAKES = [
    ("infra/app/state.bicep", "publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'", "publicNetworkAccess: 'Enabled'", "not closed with a private network"),
    ("infra/app/receiver.bicep", "    publicNetworkAccess: 'Enabled'\n", "", "publicNetworkAccess is None"),
    ("infra/app/state.bicep", "category: 'StorageDelete'", "category: 'StorageRead'", "StorageDelete of the state is not recorded"),
    ("infra/app/functions.bicep", "httpsOnly: true\n", "httpsOnly: true }\n", "syntax error"),
    ("infra/app/base.bicep", "workspace.id", "workspce.id", "'workspce' is not declared"),
    ("infra/main.bicep", "param sqlDatabase string = ''", "param sqlDatabase string = ''\nparam spare string = ''", "'spare' is never used"),
    ("infra/main.bicep", "    stateStore: stateStore\n", "", "parameter 'stateStore' is missing"),
    ("infra/main.bicep", "    email: alertEmail", "    mail: alertEmail", "'mail' is no parameter"),
    ("infra/app/functions.bicep", "      minTlsVersion: '1.2'", "      minTlsVersion: '1.2'\n      ftpsState: 'Disabled'", "siteConfig is"),
    ("infra/app/functions.bicep", "    httpsOnly: true\n", "    httpsOnly: true\n    clientCertEnabled: true\n", "no source of properties.clientCertEnabled"),
    ("infra/app/functions.bicep", "properties: { allow: false }", "properties: { allow: true }", "properties.allow is True"),
    ("infra/app/base.bicep", "allowSharedKeyAccess: false", "allowSharedKeyAccess: true", "allowSharedKeyAccess is True"),
    ("infra/app/base.bicep", "DisableLocalAuth: true", "DisableLocalAuth: false", "DisableLocalAuth is False"),
    ("infra/app/base.bicep", "insights.properties.ConnectionString", "insights.listKeys().x", "it reads keys"),
    ("infra/app/state.bicep", "  scope: container\n", "  scope: account\n", "not among the rights"),
    ("infra/app/state.bicep", "  scope: container\n", "", "not among the rights"),
    ("infra/app/state.bicep", "ba92f5b4", "b7e6dc6d", "not among the rights"),
    ("infra/app/state.bicep", "principalId: operatorObjectId", "principalId: identityPrincipalId", "must be made of scope, receiver and role"),
    ("infra/app/state.bicep", "principalId: operatorObjectId", "principalId: identityPrincipalId", "for operatorObjectId is assigned 0 times"),
    ("infra/app/state.bicep", "principalId: operatorObjectId", "principalId: subscription().tenantId", "not among the rights"),
    ("infra/app/receiver.bicep", "scope: insights\n", "scope: hostAccount\n", "not among the rights"),
    ("infra/app/base.bicep", "scope: hostAccount\n", "scope: resourceGroup()\n", "not among the rights"),
    ("infra/app/base.bicep", "guid(insights.id, identity.id, ", "guid(insights.id, ", "must be made of scope, receiver and role"),
    ("infra/app/state.bicep", "Microsoft.Authorization/locks@", "Microsoft.Authorization/roleDefinitions@", "not among the resources about rights"),
    ("infra/app/state.bicep", "isVersioningEnabled: false", "isVersioningEnabled: true", "isVersioningEnabled is True"),
    ("infra/app/state.bicep", "days: 1\n", "days: 30\n", "deleteRetentionPolicy.days is 30"),
    ("infra/app/sql-demo.bicep", "azureADOnlyAuthentication: true", "azureADOnlyAuthentication: false", "azureADOnly"),
    ("infra/main.parameters.json", "${VNET_ENABLED=false}", "${VNET_ENABLED=no}", "does not take"),
    ("infra/main.parameters.json", '"sqlDemo"', '"sqlDemos"', "does not take"),
    ("infra/main.parameters.json", "${ALERT_EMAIL=}", "${ALERT_ADDRESS=}", "does not list `ALERT_ADDRESS`"),
    ("azure.yaml", "language: custom", "language: rust", "must be function and custom"),
    ("azure.yaml", "grant.sh", "grants.sh", "no script for sh that can run"),
    ("azure.yaml", "dist: ", "dist: other/", "prepackage must make"),
    (TABLE, "`properties.httpsOnly`", "`properties.httpOnly`", "has no properties.httpOnly"),
    (".github/workflows/deploy.yml", "      HANDLER_URL: ", "      HANDLER_URI: ", "nothing reads HANDLER_URI"),
]


def main():
    names = ["azure.yaml", TABLE, "infra/README.md", "infra/main.parameters.json", "infra/sql/grant.sh"]
    executable = set()
    for folder in ("infra", ".github/workflows"):
        for at_folder, _, found in os.walk(os.path.join(ROOT, folder)):
            for path in (os.path.join(at_folder, name) for name in found):
                name = os.path.relpath(path, ROOT)
                names += [name] if name.endswith((".bicep", ".yml")) else []
                executable |= {name} if name.endswith(".sh") and os.access(path, os.X_OK) else set()
    files = {"executable": executable}
    for name in names:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            files[name] = file.read()
    errors = problems(files)
    for name, old, new, said in [] if errors else MISTAKES:
        if old not in files[name]:
            errors.append(f"check.py: {old!r} does not occur in {name}")
        elif not any(said in e for e in problems({**files, name: files[name].replace(old, new, 1)})):
            errors.append(f"check.py: planted in {name}: {new.strip()!r}: {said!r} was not said")
    print("\n".join(errors) or f"{len(names)} files hold; {len(MISTAKES)} of {len(MISTAKES)} planted mistakes found")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
