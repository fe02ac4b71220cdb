#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "convert/sweep/sweep_charts.h"
#include "convert/sweep/sweep_points.h"
#include "convert/sweep/sweep_report.h"
#include "convert/sweep/sweep_rows.h"
#include "validate/page.h"

namespace kvc {
namespace {

std::string mebibytes(double bytes) {
  const double value = bytes / 1048576;
  return value >= 10240 ? fmt::format("{:.1f} GiB", value / 1024)
         : value >= 100 ? fmt::format("{:.0f} MiB", value)
                        : fmt::format("{:.2f} MiB", value);
}

std::string cell(const std::string& text) { return "<td>" + text + "</td>"; }
std::string code_cell(const std::string& text) {
  return "<td><code>" + escape_html(text) + "</code></td>";
}

std::string row_html(const std::vector<std::string>& cells, bool pick = false) {
  std::string row = pick ? "<tr class=\"pick\">" : "<tr>";
  for (const std::string& text : cells) {
    row += text;
  }
  return row + "</tr>\n";
}

std::string table_html(const std::vector<std::string>& heads, const std::string& rows,
                       const char* classes = "wide") {
  std::string head;
  for (const std::string& text : heads) {
    head += "<th>" + text + "</th>";
  }
  return fmt::format("<div class=\"{}\">", classes) + "<table><thead><tr>" + head +
         "</tr></thead>\n<tbody>\n" + rows + "</tbody></table></div>\n";
}

std::string answers_html(const Json& sweep) {
  std::string rows;
  for (const Json& answer : sweep["answers"]) {
    const std::string target = fmt::format("<td>{:g}</td>", answer["kl_divergence"].get<double>());
    const std::string unsure = unsure_text(answer);
    const std::string note =
        unsure.empty() ? "" : "<br><small>perhaps " + escape_html(unsure) + "</small>";
    const Json* row = find_row(sweep["candidates"], answer["candidate"]);
    rows += row == nullptr
                ? row_html({target, "<td>none of these" + note + "</td>", "<td></td>", "<td></td>",
                            "<td></td>"})
                : row_html({target,
                            "<td><code>" + escape_html(name_of(*row)) + "</code>" + note + "</td>",
                            cell(fmt::format("{:.3f}", kept_of(*row))), cell(kld_text(*row)),
                            cell(payback_text(*row))});
  }
  return table_html({"KL divergence at most", "smallest cache", "kept_ratio", "KL divergence",
                     "pays from"},
                    rows, "wide answers") +
         "<p class=\"soft\">A candidate meets a target if its mean divergence is below it by two "
         "standard errors. "
         "\"Perhaps\" names smaller caches whose mean alone is below: more evaluation text would "
         "tell. \"Pays from\" is "
         "the number of cached tokens of all requests from which the smaller cache outweighs the "
         "factors that the "
         "weights gain.</p>\n";
}

std::string candidates_html(const Json& sweep) {
  const std::vector<const Json*> best = frontier(sweep["candidates"]);
  std::string rows;
  for (const Json* row : measured_rows(sweep["candidates"])) {
    const bool pick = std::ranges::find(best, row) != best.end();
    rows += row_html(
        {code_cell(name_of(*row)), cell(fmt::format("{:.3f}", kept_of(*row))), cell(kld_text(*row)),
         cell(perplexity_text(*row)), cell(top_text(*row)), cell(payback_text(*row))},
        pick);
  }
  return table_html({"candidate", "kept_ratio", "KL divergence", "perplexity ratio",
                     "same top token", "pays from"},
                    rows) +
         "<p class=\"soft\">Bold: no other candidate keeps less and diverges less. A damaged cache "
         "may lower the perplexity; the divergence tells.</p>\n";
}

// Nothing without a chart.
std::string section(const char* heading, const char* note, const std::string& chart) {
  return chart.empty()
             ? ""
             : fmt::format("<h2>{}</h2>\n<p class=\"soft\">{}</p>\n", heading, note) + chart;
}

// Memory of the caches that the answers name, by length and number of requests, factors included.
std::string memory_html(const Json& sweep) {
  constexpr std::int64_t kRequests[] = {1, 8, 64};
  std::string html;
  std::vector<Json> done;
  for (const Json& answer : sweep["answers"]) {
    const Json* row = find_row(sweep["candidates"], answer["candidate"]);
    if (row == nullptr || (*row)["cache"].is_null() ||
        std::ranges::find(done, answer["candidate"]) != done.end()) {
      continue;
    }
    done.push_back(answer["candidate"]);
    const Json& payback = (*row)["payback"];
    const double factors = payback.is_null() ? 0 : payback["factor_bytes"].get<double>();
    std::string rows;
    for (const Json& cache : (*row)["cache"]) {
      std::vector<std::string> cells = {cell(cache["tokens"].dump())};
      for (const std::int64_t requests : kRequests) {
        const auto count = static_cast<double>(requests);
        cells.push_back(cell(mebibytes(count * cache["original_bytes"].get<double>()) + " → " +
                             mebibytes(count * cache["bytes"].get<double>() + factors)));
      }
      rows += row_html(cells);
    }
    html += "<h3><code>" + escape_html(name_of(*row)) + "</code></h3>\n" +
            table_html({"tokens of each request", "1 request", "8 requests", "64 requests"}, rows);
  }
  return html.empty() ? ""
                      : "<h2>Memory, before and after</h2>\n<p class=\"soft\">The original's "
                        "cache, and the converted "
                        "one with the factors that the weights gain.</p>\n" +
                            html;
}

std::string points_html(const Json& sweep) {
  std::string rows;
  for (const Json& point : sweep["points"]) {
    const SweepKld kld = point_kld(point);
    const Json* row = best_within(sweep["candidates"], kept_of(point));
    const double best = row == nullptr ? 0 : kld_of(*row).mean;
    const std::string name = row == nullptr
                                 ? "none of these"
                                 : "<code>" + escape_html(name_of(*row)) + "</code><br><small>" +
                                       kld_text(*row) + "</small>";
    rows += row_html({code_cell(name_of(point)), cell(fmt::format("{:.3f}", kept_of(point))),
                      cell(kld_text(kld)), cell(name),
                      cell(best > 0 ? fmt::format("{:.3g}", kld.mean / best) : "")});
  }
  return rows.empty() ? ""
                      : "<h2>Other caches</h2>\n<p class=\"soft\">Measured elsewhere, and given "
                        "to this report. Divergences compare if the evaluation text, its rows and "
                        "what was scored are the same.</p>\n" +
                            table_html({"cache", "kept_ratio", "KL divergence",
                                        "best candidate that keeps no more", "times less"},
                                       rows);
}

std::string others_html(const Json& sweep) {
  std::string rows;
  for (const Json& row : sweep["candidates"]) {
    if (row["status"] != "measured") {
      rows += row_html({code_cell(name_of(row)), cell(row["status"].get<std::string>()),
                        cell(escape_html(row["reason"].get<std::string>()))});
    }
  }
  return rows.empty() ? ""
                      : "<h2>Not converted</h2>\n<table class=\"inputs\"><tbody>\n" + rows +
                            "</tbody></table>\n";
}

std::string commands_html(const Json& sweep) {
  std::string rows;
  for (const Json* row : measured_rows(sweep["candidates"])) {
    rows += row_html({code_cell(name_of(*row)), code_cell((*row)["command"].get<std::string>())});
  }
  return "<h2>Commands</h2>\n<table class=\"inputs\"><tbody>\n" + rows + "</tbody></table>\n";
}

std::string warnings_html(const Json& sweep) {
  std::string items;
  for (const std::string& sentence : sweep_warnings(sweep)) {
    items += "<p>" + escape_html(sentence) + "</p>\n";
  }
  return items.empty() ? "" : "<div class=\"missed\">\n" + items + "</div>\n";
}

std::string text_note(const Json& sweep) {
  const std::vector<const Json*> rows = measured_rows(sweep["candidates"]);
  if (rows.empty()) {
    return "";
  }
  const Json& report = (*rows.front())["validation"];
  return fmt::format(" on {} sequences, {} tokens", report["num_sequences"].dump(),
                     report["num_tokens"].dump());
}

}  // namespace

std::string sweep_html(const Json& sweep) {
  return html_page(
      "Which conversion to take",
      fmt::format("<p class=\"soft\">{} candidates for {}, compared with the original{}</p>\n",
                  sweep["candidates"].size(), escape_html(sweep["checkpoint"].get<std::string>()),
                  text_note(sweep)) +
          warnings_html(sweep) + "<h2>The smallest cache for a quality</h2>\n" +
          answers_html(sweep) + "<h2>Quality against bytes</h2>\n" + quality_chart(sweep) +
          candidates_html(sweep) + points_html(sweep) + memory_html(sweep) +
          "<h2>Damage by position</h2>\n" + position_chart(sweep) +
          section("Bits by layer",
                  "What each number of the original's cache becomes, outside sinks and window.",
                  layer_chart(sweep)) +
          others_html(sweep) + commands_html(sweep));
}

}  // namespace kvc
