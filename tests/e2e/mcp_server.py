"""A tiny MCP server on stdio with two tools, `echo` and `fail`. Standard library only."""

from __future__ import annotations

import json
import sys
from typing import Any

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    {"name": "echo", "description": "Returns the text.", "inputSchema": SCHEMA},
    {"name": "fail", "description": "Fails with the text.", "inputSchema": SCHEMA},
]


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Answer one request."""
    if method == "initialize":
        return {
            "protocolVersion": params.get("protocolVersion", "2025-06-18"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "lab", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        words = f"{params['name']}: {params.get('arguments', {}).get('text')}"
        return {"content": [{"type": "text", "text": words}], "isError": params["name"] == "fail"}
    return {}


def main() -> None:
    """Serve until the client closes stdin."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = result_of(message["method"], message.get("params") or {})
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
