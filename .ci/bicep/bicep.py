"""Checks Bicep files without the Bicep compiler: syntax, names, types, modules.

Syntax is tree-sitter's. Types are Azure's own, of types.json (made by vendor.py) and types-by-hand.json.
What cannot be known (a loop's variable, a value of type object) is let through, never guessed at.
"""

import json
import os
import posixpath

import tree_sitter_bicep
from tree_sitter import Language, Parser

HERE = os.path.dirname(os.path.abspath(__file__))
PARSER = Parser(Language(tree_sitter_bicep.language()))

# Functions of Bicep that may be used here, with what they return where that is always the same.
# https://learn.microsoft.com/azure/azure-resource-manager/bicep/bicep-functions
FUNCTIONS = {
    "array": "array", "concat": None, "contains": "bool", "empty": "bool", "environment": None,
    "filter": "array", "format": "string", "guid": "string", "items": "array", "join": "string",
    "length": "int", "loadTextContent": "string", "map": "array", "replace": "string", "resourceGroup": None, "resourceId": "string",
    "subscription": None, "subscriptionResourceId": "string", "take": None, "tenant": None,
    "toLower": "string", "union": None, "uniqueString": "string",
}
DECORATORS = {"allowed", "description", "maxLength", "maxValue", "metadata", "minLength", "minValue", "secure"}
# Properties of a resource that Bicep itself knows.
OF_BICEP = {"parent", "scope", "dependsOn"}
PRIMITIVES = {"string", "int", "bool"}


def text(node):
    return node.text.decode()


def literal(node):
    """The text of a string without interpolation, else None."""
    if node.type == "string" and not any(c.type == "interpolation" for c in node.named_children):
        return text(node)[1:-1]
    return None


def named(node):
    return [c for c in node.named_children if c.type != "comment"]


def child(node, *kinds):
    return next((c for c in node.named_children if c.type in kinds), None)


def properties(node):
    """Yields (key, value, property) of an object; the key of an interpolated one is None."""
    for item in node.named_children:
        parts = named(item)
        if item.type == "object_property" and len(parts) == 2:
            key = text(parts[0]) if parts[0].type == "identifier" else literal(parts[0])
            yield key, parts[1], item


def body_of(node):
    """The object of a declaration, through `if` and `for`."""
    while node is not None and node.type != "object":
        node = child(node, "object", "if_statement", "for_statement")
    return node


class Types:
    """Azure's types; `used` collects what was looked at, for vendor.py."""

    def __init__(self, *files):
        self.resources, self.used = {}, set()
        for name in files:
            with open(os.path.join(HERE, name), encoding="utf-8") as file:
                self.resources.update(json.load(file)["resources"])

    def find(self, resource, name):
        if name in self.resources[resource]["types"]:
            self.used.add((resource, name))
        return self.resources[resource]["types"].get(name)


class Declared:
    """A name that a file declares."""

    def __init__(self, sort, node, kind=None, **more):
        self.sort, self.node, self.kind, self.more, self.uses = sort, node, kind, more, 0


class File:
    """One Bicep file, checked when made."""

    def __init__(self, checker, path, source):
        self.checker, self.path, self.source = checker, path, source
        self.root = PARSER.parse(source.encode()).root_node
        self.names, self.params, self.outputs = {}, {}, {}
        if self.syntax(self.root):
            self.declare()

    def error(self, node, message):
        row, column = node.start_point
        self.checker.errors.append(f"{self.path}:{row + 1}:{column + 1}: {message}")

    def syntax(self, node):
        if node.is_error or node.is_missing:
            self.error(node, "syntax error")
            return False
        return all([self.syntax(c) for c in node.children if c.has_error or c.is_missing])

    # Declarations.

    def declare(self):
        decorators = []
        for node in self.root.named_children:
            if node.type == "decorators":
                decorators = [self.decorator(d) for d in node.named_children]
                continue
            if node.type.endswith("_declaration"):
                self.declaration(node, dict(decorators))
            decorators = []

    def decorator(self, node):
        call = child(node, "call_expression")
        name = text(call.named_children[0])
        if name not in DECORATORS:
            self.error(node, f"decorator '{name}' is not known")
        return name, call

    def declaration(self, node, decorators):
        parts = named(node)
        name, sort = text(parts[0]), node.type.removesuffix("_declaration")
        more = {}
        if sort in ("parameter", "output"):
            kind = text(child(node, "type", "primitive_type") or parts[1])
            kind = "array" if kind.endswith("[]") else kind
            if kind not in PRIMITIVES | {"array", "object"}:
                self.error(parts[1], f"type '{kind}' is not known")
            value = parts[2] if len(parts) > 2 else None
            allowed = decorators.get("allowed")
            options = None
            if allowed is not None:
                options = [self.plain(v) for v in named(child(child(allowed, "arguments"), "array"))]
            more = {"value": value, "allowed": options}
        else:
            kind = sort
        if sort == "resource":
            full = literal(parts[1]) or ""
            more = {"type": full.partition("@")[0], "version": full.partition("@")[2], "body": body_of(node)}
        if sort == "module":
            more = {"file": literal(parts[1]), "body": body_of(node)}
        if sort == "variable":
            more = {"value": parts[1]}
        target = self.outputs if sort == "output" else self.names
        if name in target:
            self.error(parts[0], f"'{name}' is declared twice")
        target[name] = Declared(sort, node, kind, **more)
        if sort == "parameter":
            self.params[name] = target[name]

    def plain(self, node):
        """A literal as Python has it."""
        if node.type == "number":
            return int(text(node))
        return literal(node)

    # Checks that need every file's declarations.

    def check(self):
        for name, declared in list(self.names.items()) + list(self.outputs.items()):
            getattr(self, declared.sort)(name, declared)
        self.references(self.root, frozenset())
        for name, declared in self.names.items():
            if declared.uses == 0 and declared.sort in ("parameter", "variable"):
                self.error(declared.node, f"{declared.sort} '{name}' is never used")

    def parameter(self, name, declared):
        value = declared.more["value"]
        if value is not None:
            self.fits(value, declared, f"default of '{name}'")

    def output(self, name, declared):
        self.fits(declared.more["value"], declared, f"output '{name}'")

    def variable(self, name, declared):
        pass

    def fits(self, node, declared, what):
        """Holds a value to a parameter's or an output's type."""
        kind = self.kind(node)
        if kind not in (None, declared.kind):
            self.error(node, f"{what}: {kind} given where {declared.kind} is expected")
        options = declared.more.get("allowed")
        if options and node.type in ("string", "number") and self.plain(node) not in options:
            self.error(node, f"{what}: {text(node)} is not one of {options}")

    def module(self, name, declared):
        body, target = declared.more["body"], declared.more["file"]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self.path), target or ""))
        other = self.checker.files.get(path)
        declared.more["target"] = other
        if other is None:
            self.error(declared.node, f"module '{name}': no file {path}")
            return
        given = {}
        for key, value, item in properties(body):
            if key == "params":
                given = {k: (v, i) for k, v, i in properties(value)}
            elif key not in OF_BICEP | {"name"}:
                self.error(item, f"module '{name}': property '{key}' is not known")
        for key, (value, item) in given.items():
            if key not in other.params:
                self.error(item, f"module '{name}': '{key}' is no parameter of {path}")
            else:
                self.fits(value, other.params[key], f"module '{name}', parameter '{key}'")
        for key, param in other.params.items():
            if param.more["value"] is None and key not in given:
                self.error(declared.node, f"module '{name}': parameter '{key}' is missing")

    def resource(self, name, declared):
        kind, version, body = (declared.more[k] for k in ("type", "version", "body"))
        known = self.checker.types.resources.get(kind)
        if known is None:
            self.error(declared.node, f"{kind}: no types are kept of it; run .ci/bicep/vendor.py")
            return
        if version != known["version"]:
            self.error(declared.node, f"{kind}: API version {version}, types are of {known['version']}")
        self.value(body, known["body"], kind, kind)
        parent, above = next((v for k, v, _ in properties(body) if k == "parent"), None), None
        if parent is not None and parent.type == "identifier" and text(parent) in self.names:
            above = self.names[text(parent)].more.get("type")
            if above != kind.rpartition("/")[0]:
                self.error(parent, f"{kind}: its parent is a {above}")
        elif kind.count("/") > 1:
            self.error(declared.node, f"{kind}: it has no parent")

    # Values against Azure's types.

    def value(self, node, kind, resource, path):
        if node.type == "parenthesized_expression":
            return self.value(named(node)[0], kind, resource, path)
        if node.type == "ternary_expression":
            for branch in named(node)[1:]:
                self.value(branch, kind, resource, path)
            return None
        if node.type in ("for_statement", "if_statement"):
            inner = body_of(node)
            return inner and self.value(inner, kind.removesuffix("[]"), resource, path)
        if kind.endswith("[]") and node.type == "array":
            for item in named(node):
                self.value(item, kind.removesuffix("[]"), resource, f"{path}[]")
            return None
        if node.type == "object" and kind not in PRIMITIVES and "|" not in kind:
            return self.object(node, kind, resource, path)
        return self.scalar(node, kind, path)

    def object(self, node, kind, resource, path):
        if kind in ("any", "object"):
            return
        if kind.endswith("[]"):
            self.error(node, f"{path}: object given where {kind} is expected")
            return
        known = self.checker.types.find(resource, kind)
        if known is None:
            self.error(node, f"{path}: type {kind} is not kept; run .ci/bicep/vendor.py")
            return
        if "discriminator" in known:
            tag = known["discriminator"]
            choice = next((literal(v) for k, v, _ in properties(node) if k == tag), None)
            element = known["elements"].get(choice)
            if element is None:
                self.error(node, f"{path}: {tag} {choice!r} is not known")
                return
            fields, rest = {**known["base"], **element}, None
        else:
            fields, rest = known["properties"], known.get("rest")
        seen = set()
        for key, value, item in properties(node):
            seen.add(key)
            at_top = path == resource
            if key is None or (at_top and key in OF_BICEP):
                continue
            if key in fields:
                kind_of_field, flags = fields[key]
                if "o" in flags:
                    self.error(item, f"{path}.{key}: is read-only")
                self.value(value, kind_of_field, resource, f"{path}.{key}")
            elif rest is None:
                self.error(item, f"{path}.{key}: there is no such property")
        for key, (_, flags) in fields.items():
            if "r" in flags and key not in seen:
                self.error(node, f"{path}: required property '{key}' is missing")

    def scalar(self, node, kind, path):
        options = [o.strip() for o in kind.split("|")]
        found, string = self.kind(node), literal(node)
        if string is not None and "string" not in options and not PRIMITIVES & set(options) and kind != "any":
            if string not in options:
                self.error(node, f"{path}: '{string}' is not one of {options}")
            return
        if string is not None and len(options) > 1 and string not in options and not self.open(path, string):
            self.error(node, f"{path}: '{string}' is not one of {[o for o in options if o != 'string']}")
            return
        wanted = self.wanted(options)
        if found is not None and wanted is not None and found != wanted:
            self.error(node, f"{path}: {found} given where {wanted} is expected")

    def open(self, path, string):
        """Values that Azure takes though its types do not list them."""
        return False

    @staticmethod
    def wanted(options):
        if options[0] in ("any", "null"):
            return None
        if len(options) == 1 and options[0].endswith("[]"):
            return "array"
        if len(options) == 1 and options[0] in ("int", "bool", "object"):
            return options[0]
        if len(options) == 1 and options[0] != "string" and options[0][:1].isupper() and options[0].isalnum():
            return None
        return "string" if not {"int", "bool"} & set(options) else None

    # Kinds of expressions.

    def kind(self, node):
        simple = {"string": "string", "number": "int", "boolean": "bool", "array": "array", "object": "object",
                  "for_statement": "array"}
        if node.type in simple:
            return simple[node.type]
        if node.type == "parenthesized_expression":
            return self.kind(named(node)[0])
        if node.type == "ternary_expression":
            kinds = {self.kind(n) for n in named(node)[1:]}
            return kinds.pop() if len(kinds) == 1 else None
        if node.type == "unary_expression":
            return "bool" if text(node).startswith("!") else "int"
        if node.type == "binary_expression":
            operator = next(text(c) for c in node.children if not c.is_named)
            return "bool" if operator in ("==", "!=", "&&", "||", "<", ">", "<=", ">=", "=~", "!~") else None
        if node.type == "call_expression":
            return FUNCTIONS.get(text(node.named_children[0]))
        if node.type == "member_expression":
            found = self.member(node)
            kind = found and self.wanted([o.strip() for o in found[1].split("|")])
            return kind if kind in PRIMITIVES | {"array", "object"} else None
        if node.type == "identifier" and text(node) in self.names:
            declared = self.names[text(node)]
            if declared.sort == "parameter":
                return declared.kind
            if declared.sort == "variable":
                return self.kind(declared.more["value"])
            return "object"
        return None

    def member(self, node):
        """(resource, type) of `resource.a.b` or `module.outputs.x`; None where it cannot be known."""
        base, key = named(node)[0], text(named(node)[-1])
        if base.type == "identifier" and text(base) in self.names:
            declared = self.names[text(base)]
            if declared.sort == "resource" and declared.more["type"] in self.checker.types.resources:
                resource = declared.more["type"]
                return self.field(node, resource, self.checker.types.resources[resource]["body"], key)
            if declared.sort == "module":
                if key not in ("outputs", "name", "id"):
                    self.error(node, f"module has no '{key}'")
                return ("module", text(base)) if key == "outputs" else None
            return None
        above = self.member(base) if base.type == "member_expression" else None
        if above is None:
            return None
        if above[0] == "module":
            target = self.names[above[1]].more.get("target")
            if target is not None and key not in target.outputs:
                self.error(node, f"module '{above[1]}' has no output '{key}'")
                return None
            return target and ("value", target.outputs[key].kind)
        return self.field(node, *above, key) if above[0] != "value" else None

    def field(self, node, resource, kind, key):
        known = self.checker.types.find(resource, kind)
        if known is None or "discriminator" in known:
            return None
        if key in known["properties"]:
            return resource, known["properties"][key][0]
        if known.get("rest") is None:
            self.error(node, f"{resource}: {kind} has no '{key}'")
        return None

    # Uses of names.

    def references(self, node, local):
        if node.type == "lambda_expression" or node.type == "for_statement":
            local = local | self.locals(node)
        if node.type == "identifier":
            self.reference(node, local)
        if node.type == "member_expression":
            before = len(self.checker.errors)
            self.member(node)
            if len(self.checker.errors) > before:
                return
            self.references(named(node)[0], local)
            return
        for each in node.named_children:
            self.references(each, local)

    @staticmethod
    def locals(node):
        first = named(node)[0]
        if first.type == "identifier":
            return {text(first)}
        return {text(n) for n in first.named_children}

    def reference(self, node, local):
        parent, name = node.parent, text(node)
        first = parent.named_children[0].start_byte == node.start_byte
        if parent.type == "object_property" and first:
            return
        if parent.type.endswith("_declaration") and first:
            return
        if parent.type == "call_expression" and first:
            if name not in FUNCTIONS and parent.parent.type != "decorator":
                self.error(node, f"function '{name}' is not known")
            return
        if name in self.names:
            self.names[name].uses += 1
        elif name not in local:
            self.error(node, f"'{name}' is not declared in this file")


class Checker:
    """All files of a folder; `sources` is their text by path."""

    def __init__(self, sources, types):
        self.errors, self.types, self.files = [], types, {}
        for path, source in sorted(sources.items()):
            self.files[path] = File(self, path, source)
        if not self.errors:
            for file in self.files.values():
                file.check()
        self.errors = list(dict.fromkeys(self.errors))
