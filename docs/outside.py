"""A preprocessor of mdBook (book.toml): links that leave `docs/` point to the repository, or become plain text.

The forge resolves such links itself. The address of the repository is `git-repository-url` of `[output.html]`:
    MDBOOK_OUTPUT__HTML__GIT_REPOSITORY_URL=https://github.com/YOUR/highwater mdbook build docs
"""

import json
import posixpath
import re
import sys

LINK = re.compile(r"\[([^\[\]]*(?:\[[^\]]*\][^\[\]]*)*)\]\(([^()\s]+)\)")


def changed(text, folder, repository):
    """The text of a page in this folder of `docs`, with its links changed."""

    def change(match):
        words, target = match.groups()
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join("docs", folder, path))
        if "://" in target or target.startswith("#") or path == "docs" or path.startswith("docs/"):
            return match.group(0)
        if repository:
            return f"[{words}]({repository}/blob/main/{path}{'#' + anchor if anchor else ''})"
        return words if path in words else f"{words} (`{path}`)"

    return LINK.sub(change, text)


def visit(items, repository):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            folder = posixpath.dirname(chapter.get("source_path") or "")
            chapter["content"] = changed(chapter["content"], folder, repository)
            visit(chapter["sub_items"], repository)


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    context, book = json.load(sys.stdin)
    html = context["config"].get("output", {}).get("html", {})
    visit(book.get("items") or book.get("sections"), (html.get("git-repository-url") or "").rstrip("/"))
    json.dump(book, sys.stdout)


main()
