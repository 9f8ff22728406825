"""What must hold of the templates beyond their types: least privilege, no keys, and what the files beside
them (main.parameters.json, azure.yaml) say of them."""

import re

import yaml

from bicep import literal, named, properties, text

# All the rights that the templates may give: role, on what, in which file.
ROLES = {
    ("b7e6dc6d-f1e8-4753-8033-0f276bb0955b", "Microsoft.Storage/storageAccounts", "app/host-storage.bicep"),
    ("ba92f5b4-2d11-453d-a403-e96b0029c9fe", "Microsoft.Storage/storageAccounts/blobServices/containers",
     "app/state-storage.bicep"),
    ("3913510d-42f4-4e42-8a64-420c390055eb", "Microsoft.Insights/components", "app/monitoring.bicep"),
}
SOFT_DELETE_DAYS_MAX = 7
# How long a window of a log alert may be; the service refuses any other (its API's own error lists them).
WINDOWS = {"PT5M", "PT10M", "PT15M", "PT30M", "PT45M", "PT1H", "PT2H", "PT3H", "PT4H", "PT5H", "PT6H", "P1D", "P2D"}


def plain(file, node):
    """A value as Python has it; what is no literal is an Expression."""
    if node.type == "object":
        return {key: plain(file, value) for key, value, _ in properties(node)}
    if node.type == "array":
        return [plain(file, item) for item in named(node)]
    if node.type == "boolean":
        return text(node) == "true"
    if node.type == "number":
        return int(text(node))
    if literal(node) is not None:
        return literal(node)
    if node.type == "identifier" and text(node) in file.names:
        declared = file.names[text(node)]
        if declared.sort == "variable" and declared.more["value"].type == "string":
            return plain(file, declared.more["value"])
    return Expression(text(node))


class Expression(str):
    """Source text of what only a deployment knows."""


def at(value, path):
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


class Rules:
    def __init__(self, checker, extra):
        self.checker, self.extra, self.errors = checker, extra, []
        for path, file in checker.files.items():
            for name, declared in file.names.items():
                if declared.sort == "resource":
                    self.resource(path, file, name, declared)
                if declared.sort == "variable":
                    self.windows(path, plain(file, declared.more["value"]))
        self.needs("Microsoft.Web/sites/basicPublishingCredentialsPolicies", "scm", "ftp")
        self.parameters(checker.files["main.bicep"])
        self.azure_yaml()

    def expect(self, where, body, path, *expected):
        found = at(body, path)
        if not any(found == e and type(found) is type(e) for e in expected):
            wanted = " or ".join(repr(e) for e in expected)
            self.errors.append(f"{where}: {path} is {found!r}, must be {wanted}")

    def resource(self, path, file, name, declared):
        kind, body = declared.more["type"], plain(file, declared.more["body"])
        where = f"{path}: {name}"
        if kind == "Microsoft.Storage/storageAccounts":
            self.expect(where, body, "properties.allowSharedKeyAccess", False)
            self.expect(where, body, "properties.allowBlobPublicAccess", False)
            self.expect(where, body, "properties.minimumTlsVersion", "TLS1_2", "TLS1_3")
        if kind.endswith("/blobServices") and "state" in path:
            self.expect(where, body, "properties.isVersioningEnabled", False)
            days = at(body, "properties.deleteRetentionPolicy.days")
            if not isinstance(days, int) or days > SOFT_DELETE_DAYS_MAX:
                self.errors.append(f"{where}: soft delete of {days} days keeps a copy of each write, so at most "
                                   f"{SOFT_DELETE_DAYS_MAX}")
        if kind == "Microsoft.Insights/components":
            self.expect(where, body, "properties.DisableLocalAuth", True)
        if kind == "Microsoft.Sql/servers":
            self.expect(where, body, "properties.administrators.azureADOnlyAuthentication", True)
            self.expect(where, body, "properties.administratorLoginPassword", None)
        if kind == "Microsoft.Authorization/roleAssignments":
            self.role(where, path, file, body)
        if kind == "Microsoft.Web/sites/basicPublishingCredentialsPolicies":
            self.expect(where, body, "properties.allow", False)
        if kind == "Microsoft.Web/serverfarms":
            self.expect(where, body, "sku.name", "FC1")
            self.expect(where, body, "properties.reserved", True)
        if kind == "Microsoft.Web/sites":
            self.expect(where, body, "identity.type", "UserAssigned")
            self.expect(where, body, "properties.httpsOnly", True)
            self.expect(where, body, "properties.functionAppConfig.runtime.name", "custom")
            self.expect(where, body, "properties.functionAppConfig.runtime.version", "1.0")
            store = "properties.functionAppConfig.deployment.storage.authentication.type"
            self.expect(where, body, store, "UserAssignedIdentity")

    def windows(self, path, alerts):
        for alert in alerts if isinstance(alerts, list) else []:
            window = alert.get("window") if isinstance(alert, dict) else None
            if window is not None and window not in WINDOWS:
                self.errors.append(f"{path}: a window of {window} is none that a log alert may have")

    def role(self, where, path, file, body):
        guid = re.search(r"roleDefinitions', (\w+)\)", at(body, "properties.roleDefinitionId") or "")
        declared = guid and file.names.get(guid.group(1))
        role = declared and literal(declared.more["value"])
        scope = file.names.get(body.get("scope") or "")
        given = (role, scope and scope.more.get("type"), path)
        if given not in ROLES:
            self.errors.append(f"{where}: role {role} on {given[1] or 'the whole group'} is not among the rights "
                               "that may be given (ROLES in .ci/bicep/rules.py)")
        if not at(body, "properties.principalType"):
            self.errors.append(f"{where}: without principalType a new identity is not found")

    def needs(self, kind, *names):
        found = {
            plain(file, declared.more["body"]).get("name")
            for file in self.checker.files.values()
            for declared in file.names.values()
            if declared.sort == "resource" and declared.more["type"] == kind
        }
        for name in set(names) - found:
            self.errors.append(f"no {kind} '{name}' is made")

    def parameters(self, main):
        given = self.extra["main.parameters.json"]["parameters"]
        kinds = {str: "string", int: "int", bool: "bool", list: "array", dict: "object"}
        for name, param in main.params.items():
            if param.more["value"] is None and name not in given:
                self.errors.append(f"main.parameters.json: '{name}' is missing")
        for name, entry in given.items():
            param, value = main.params.get(name), entry["value"]
            if param is None:
                self.errors.append(f"main.parameters.json: '{name}' is no parameter of main.bicep")
                continue
            variable = re.fullmatch(r"\$\{([A-Z_]+)(=(.*))?\}", value) if isinstance(value, str) else None
            kind, options = kinds[type(value)], param.more["allowed"]
            if variable and param.kind == "bool":
                kind = "bool" if variable.group(3) in ("true", "false") else "string"
            if kind != param.kind:
                self.errors.append(f"main.parameters.json: '{name}' is {value!r}, a {param.kind} is expected")
            default = variable.group(3) if variable else value
            if options and default and default not in options:
                self.errors.append(f"main.parameters.json: '{name}' is {default!r}, not one of {options}")
            if variable and variable.group(1) not in self.extra["README.md"]:
                self.errors.append(f"infra/README.md does not tell of {variable.group(1)}")

    def azure_yaml(self):
        project = yaml.safe_load(self.extra["azure.yaml"])
        tag = re.search(r"'azd-service-name': '(\w+)'", self.checker.files["app/functions.bicep"].source)
        services = project.get("services", {})
        if not tag or list(services) != [tag.group(1)]:
            self.errors.append("azure.yaml: its one service must be the one that app/functions.bicep tags")
        for service in services.values():
            for key, expected in {"host": "function", "language": "custom"}.items():
                if service.get(key) != expected:
                    self.errors.append(f"azure.yaml: {key} is {service.get(key)!r}, must be '{expected}'")
            built = str(service.get("hooks"))
            if not service.get("dist") or service["dist"] not in built:
                self.errors.append("azure.yaml: prepackage must make the zip that `dist` names")
        for name, hook in project.get("hooks", {}).items():
            for system in ("posix", "windows"):
                script = hook.get(system, {}).get("run", "").split(" ")[0].removeprefix("./")
                if script not in self.extra["scripts"]:
                    self.errors.append(f"azure.yaml: {name} runs {script!r}, which is no script that can run")
