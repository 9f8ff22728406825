"""Checks infra/ and azure.yaml offline, and then that the checks would find what they are for.

    .ci/bicep/run            installs what this needs below target/, then runs it
"""

import json
import os
import sys
import tempfile
import time

import bicep

ROOT = os.path.dirname(os.path.dirname(bicep.HERE))
INFRA = os.path.join(ROOT, "infra")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def sources():
    """Texts of the templates by their path below infra/."""
    found = {}
    for folder, _, files in os.walk(INFRA):
        for name in files:
            if name.endswith(".bicep"):
                path = os.path.join(folder, name)
                found[os.path.relpath(path, INFRA).replace(os.sep, "/")] = read(path)
    return found


def beside():
    """Texts that are held to the templates."""
    scripts = []
    for folder, _, files in os.walk(INFRA):
        for name in files:
            path = os.path.join(folder, name)
            if name.endswith(".ps1") or (name.endswith(".sh") and os.access(path, os.X_OK)):
                scripts.append(os.path.relpath(path, ROOT).replace(os.sep, "/"))
    return {
        "main.parameters.json": read(os.path.join(INFRA, "main.parameters.json")),
        "README.md": read(os.path.join(INFRA, "README.md")),
        "azure.yaml": read(os.path.join(ROOT, "azure.yaml")),
        "scripts": scripts,
    }


def problems(files, extra, types):
    checker = bicep.Checker(files, types)
    if checker.errors:
        return checker.errors
    from rules import Rules

    extra = dict(extra, **{"main.parameters.json": json.loads(extra["main.parameters.json"])})
    return Rules(checker, extra).errors


def planted(texts, mistake):
    """The texts with one mistake in them."""
    name, old, new, _ = mistake
    if old not in texts.get(name, ""):
        raise SystemExit(f"mutations.py: {old!r} does not stand in {name}")
    return dict(texts, **{name: texts[name].replace(old, new, 1)})


def self_test(files, extra, types):
    from mutations import MISTAKES

    missed = []
    for mistake in MISTAKES:
        in_template = mistake[0] in files
        changed = planted(files if in_template else extra, mistake)
        found = problems(changed, extra, types) if in_template else problems(files, changed, types)
        if not any(mistake[3] in error for error in found):
            missed.append(f"planted in {mistake[0]}: {mistake[2].strip()!r}: expected {mistake[3]!r}, found {found}")
    return missed, len(MISTAKES)


def lay_out(files, folder):
    for name, source in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)


def policies(files):
    from mutations import VIOLATIONS
    from policies import POLICIES, judge

    with tempfile.TemporaryDirectory() as folder:
        lay_out(files, folder)
        errors, passed = judge(folder)
    # Each in a folder of its own, and all judged at once: the judge takes long to get going.
    with tempfile.TemporaryDirectory() as folder:
        for index, violation in enumerate(VIOLATIONS):
            name = violation[0]
            lay_out({f"{index:02}/{name}": planted(files, violation)[name]}, folder)
        found, _ = judge(folder)
    missed = [
        f"planted in {name}: {new.strip()!r}: expected {said}"
        for index, (name, _, new, said) in enumerate(VIOLATIONS)
        if not any(error.startswith(f"{index:02}/{name}:") and said in error for error in found)
    ]
    untried = set(POLICIES) - {violation[3] for violation in VIOLATIONS}
    missed += [f"mutations.py has no violation of {policy}" for policy in sorted(untried)]
    return errors, passed, missed, len(VIOLATIONS)


def main():
    began = time.monotonic()
    files, extra = sources(), beside()
    types = bicep.Types("types.json", "types-by-hand.json")
    errors = problems(files, extra, types)
    if errors:
        print("\n".join(errors))
        return 1
    resources = sum(d.sort == "resource" for f in bicep.Checker(files, types).files.values() for d in f.names.values())
    print(f"{len(files)} Bicep files, {resources} resources of {len(types.resources)} types: no error")
    missed, planted_count = self_test(files, extra, types)
    print(f"{planted_count - len(missed)} of {planted_count} planted mistakes found")
    errors, passed, missed_policies, violations = policies(files)
    print(f"checkov: {passed} judgements passed, {len(errors)} not; "
          f"{violations - len(missed_policies)} of {violations} planted violations found")
    for line in errors + missed + missed_policies:
        print(line)
    print(f"{time.monotonic() - began:.1f} s")
    return 1 if errors or missed or missed_policies else 0


if __name__ == "__main__":
    sys.exit(main())
