"""HTML frame and style of the report and of comparisons, which fill in `{{title}}` and `{{body}}`."""

from __future__ import annotations

# The content security policy forbids the page every outside resource, even one that its content names.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:">
<title>{{title}}</title>
<style>
:root { color-scheme: light dark; --page: #f6f7f9; --panel: #ffffff; --ink: #1c2733; --soft: #5b6b7b; --line: #dfe4ea; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12171d; --panel: #1a2129; --ink: #dde5ec; --soft: #93a3b3; --line: #2c3742; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 28px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
header h1 { margin: 0; font-size: 26px; font-weight: 650; overflow-wrap: anywhere; }
header p { margin: 2px 0 22px; color: var(--soft); overflow-wrap: anywhere; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 16px; }
.card, .panel, details { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; }
.card { flex: 1 1 215px; padding: 12px 16px; }
.what { color: var(--soft); font-size: 13px; }
.value { font-size: 23px; font-weight: 650; font-variant-numeric: tabular-nums; white-space: nowrap; }
.how { color: var(--soft); font-size: 12.5px; line-height: 1.35; }
.grid { display: flex; flex-wrap: wrap; gap: 16px; }
.panel { flex: 1 1 min(100%, 480px); margin: 0; padding: 14px 18px 12px; min-width: 0; }
.panel.wide { flex-basis: 100%; }
.panel h2 { margin: 0; font-size: 16px; font-weight: 650; }
.panel p { margin: 0 0 8px; color: var(--soft); font-size: 13px; }
.panel svg { display: block; width: 100%; height: auto; max-height: 360px; color: var(--ink); }
.panel.wide svg { max-height: none; }
.panel video { display: block; width: 100%; max-height: 360px; border-radius: 6px; background: #000; }
.calm { margin: 18px 2px 0; color: var(--soft); }
details { margin-top: 16px; padding: 10px 18px; }
summary { cursor: pointer; font-weight: 650; }
table { margin: 10px 0 4px; width: 100%; border-collapse: collapse; font-size: 13.5px; }
th, td { padding: 4px 10px 4px 0; border-top: 1px solid var(--line); text-align: left; vertical-align: top; }
th { width: 34%; font-weight: 450; color: var(--soft); }
td { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
svg text { font-family: inherit !important; }
@media print { body { background: none; } details { break-inside: avoid; } .panel { break-inside: avoid; } }
</style>
</head>
<body>
{{body}}
</body>
</html>
"""
