"""The page at `/docs`: every route, described, from the OpenAPI schema; it loads nothing, from here or elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse

__all__ = ["add_page"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
pre { overflow-x: auto; padding: 0.6rem; border: 1px solid #8886; border-radius: 4px; white-space: pre-wrap; }
h3 { margin: 1.6rem 0 0.2rem; }
"""
# Whatever a description says, a browser runs nothing of it and asks nobody for anything.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def add_page(app: FastAPI) -> None:
    """Offer the page at `/docs`."""

    @app.get("/docs", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(_page(app.openapi()), headers={"Content-Security-Policy": _POLICY})


def _page(schema: dict[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            group = operation.get("tags", ["other"])[0]
            groups.setdefault(group, []).append(_operation(f"{method.upper()} {path}", operation))
    forms = "".join(
        f"<h3><code>{escape(name)}</code></h3><pre>{_json(form)}</pre>"
        for name, form in schema.get("components", {}).get("schemas", {}).items()
    )
    info = schema["info"]
    routes = "".join(f"<h2>{escape(group)}</h2>{''.join(items)}" for group, items in groups.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(info["title"])}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<pre>{escape(info.get("description", "").strip())}</pre><p>The same for programs: <a href="openapi.json">'
        f"openapi.json</a></p>{routes}<h2>Forms</h2>{forms}</body></html>"
    )


def _operation(title: str, operation: dict[str, Any]) -> str:
    about = operation.get("description", operation.get("summary", ""))
    body = operation.get("requestBody", {}).get("content", {})
    sent = "".join(f"<p>Takes {escape(kind)}:</p><pre>{_json(form['schema'])}</pre>" for kind, form in body.items())
    return f"<h3><code>{escape(title)}</code></h3><p>{escape(about)}</p>{sent}"


def _json(form: object) -> str:
    return escape(json.dumps(form, indent=1, ensure_ascii=False))
