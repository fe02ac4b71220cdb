#include "validate/page.h"

namespace kvc {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6877; --rule: #dfe4ea; --page: #ffffff;
  --tile: #f5f7f9; --accent: #2563a8; --warn: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b4; --rule: #333c48;
  --page: #14181e; --tile: #1d232b; --accent: #6ea8e6; --warn: #ff8a80; } }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 820px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 40px 0 8px; }
p { margin: 6px 0; } .soft { color: var(--soft); font-size: 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 24px 0; }
.tile { background: var(--tile); border-radius: 8px; padding: 14px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.3; font-weight: 600; }
.tile span { color: var(--soft); font-size: 13px; display: block; }
.missed { border-left: 4px solid var(--warn); padding: 8px 14px; background: var(--tile); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 15px; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-weight: 500; font-size: 13px; } td.sub { padding-left: 18px !important; color: var(--soft); }
.wide svg { min-width: 600px; }
.wide code { display: inline-block; min-width: 11em; white-space: normal; overflow-wrap: break-word; }
td small { color: var(--soft); } .inputs td { text-align: left; font-size: 13px; overflow-wrap: anywhere; }
.inputs td:first-child { min-width: 11em; color: var(--soft); }
@media (max-width: 600px) { .inputs td { display: block; padding-left: 0; }
  .inputs td:not(:last-child) { border: 0; padding-bottom: 0; } }
svg { width: 100%; height: auto; display: block; font-family: inherit; }
.axis { fill: var(--soft); font-size: 12px; } .label { fill: var(--ink); font-size: 12px; paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
.grid { stroke: var(--rule); } .base, .tick { stroke: var(--soft); } .bar { fill: var(--accent); }
.line { fill: none; stroke: var(--accent); stroke-width: 2; } .dot { fill: var(--accent); }
.series1 { --accent: #c2571a; } .series2 { --accent: #2e7d4f; } .series3 { --accent: #8e44ad; }
.series4 { --accent: #b8860b; } .series5 { --accent: #5d6877; } .series6 { --accent: #c2185b; } .series7 { --accent: #00838f; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: 13px; color: var(--soft); }
.legend b { color: var(--accent); margin-right: 5px; } .wide { overflow-x: auto; } .wide td, .wide th { white-space: nowrap; }
.pick td { font-weight: 600; } .answers :is(td, th):nth-child(2) { text-align: left; } code { font-size: 13px; overflow-wrap: anywhere; }
@media print { :root { --ink: #000; --soft: #444; --rule: #ccc; --page: #fff; --tile: #f5f7f9; } main { max-width: none; padding: 0; }
  .wide { overflow: visible; } .wide table, .wide code { font-size: 12px; }
  .wide :is(td, th) { padding-inline: 5px; } .wide svg { min-width: 0; }
  svg, tr { break-inside: avoid; } }
.mark { stroke: var(--ink); stroke-dasharray: 3 3; }
)";

}  // namespace

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '&'   ? "&amp;"
               : c == '<' ? "&lt;"
               : c == '>' ? "&gt;"
               : c == '"' ? "&quot;"
                          : std::string(1, c);
  }
  return escaped;
}

std::string html_page(const std::string& title, const std::string& body) {
  const std::string name = escape_html(title);
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         name + "</title>\n<style>" + std::string(kStyle) + "</style></head>\n<body><main>\n<h1>" +
         name + "</h1>\n" + body + "</main></body></html>\n";
}

}  // namespace kvc
