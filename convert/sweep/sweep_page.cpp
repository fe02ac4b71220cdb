#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "convert/sweep/sweep_report.h"
#include "convert/sweep/sweep_rows.h"
#include "validate/chart.h"
#include "validate/page.h"

namespace kvc {
namespace {

constexpr std::size_t kMostCurves = 8;

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

// Candidates that differ in their ratio or type of cache alone are one line of the chart.
std::string series_name(const std::string& name) {
  std::string rest = name;
  for (const char* option : {"--kept-ratio", "--kv-dtype"}) {
    const std::size_t begin = rest.find(option);
    if (begin != std::string::npos) {
      const std::size_t value = rest.find_first_not_of(" =", begin + std::string(option).size());
      const std::size_t end = std::min(rest.find(' ', value), rest.size());
      rest = rest.substr(0, begin) + (end < rest.size() ? rest.substr(end + 1) : "");
    }
  }
  return rest.substr(0, rest.find_last_not_of(' ') + 1);
}

std::string quality_chart(const Json& sweep) {
  std::vector<Series> series;
  std::map<std::string, std::size_t> places;
  double lowest = INFINITY, highest = -INFINITY, widest = 0;
  for (const Json* row : measured_rows(sweep["candidates"])) {
    const SweepKld kld = kld_of(*row);
    if (!(kld.mean > 0)) {
      continue;  // no logarithm
    }
    const auto [place, is_new] = places.try_emplace(series_name(name_of(*row)), series.size());
    if (is_new) {
      series.push_back({place->first, {}});
    }
    const double y = std::log10(kld.mean);
    lowest = std::min(lowest, y);
    highest = std::max(highest, y);
    widest = std::max(widest, kept_of(*row));
    series[place->second].points.push_back(
        {kept_of(*row), y, escape_html(fmt::format("{}: {}", name_of(*row), kld_text(*row)))});
  }
  return series.empty() ? ""
                        : series_chart(axis_from_zero(widest, "kept_ratio"),
                                       axis_of_decades(lowest, highest, "KL divergence"), series);
}

std::string position_chart(const Json& sweep) {
  std::vector<Series> series;
  double lowest = INFINITY, highest = -INFINITY, first = INFINITY, last = 0;
  for (const Json* row : frontier(sweep["candidates"])) {
    if (series.size() == kMostCurves) {
      break;
    }
    Series line{name_of(*row), {}};
    for (const Json& range : continuation_of(*row)["kl_divergence"]["by_position"]) {
      if (!range["mean"].is_number() || !(range["mean"].get<double>() > 0)) {
        continue;
      }
      const double begin = range["begin"].get<double>(), end = range["end"].get<double>();
      const double mean = range["mean"].get<double>(), y = std::log10(mean);
      lowest = std::min(lowest, y);
      highest = std::max(highest, y);
      first = std::min(first, begin);
      last = std::max(last, end);
      line.points.push_back({(begin + end - 1) / 2, y,
                             fmt::format("{:.0f} to {:.0f}: {:.3g}", begin, end - 1, mean)});
    }
    series.push_back(std::move(line));
  }
  return last == 0 ? ""
                   : series_chart(axis_between(first, last, "position in the sequence, tokens"),
                                  axis_of_decades(lowest, highest, "mean KL divergence"), series);
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
  for (const Json* row : measured_rows(sweep["candidates"])) {
    const Json& calibration = (*row)["validation"]["calibration"];
    if (calibration.is_object() && calibration["warning"].is_string()) {
      items += "<p><code>" + escape_html(name_of(*row)) +
               "</code>: " + escape_html(calibration["warning"].get<std::string>()) + "</p>\n";
    }
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
          candidates_html(sweep) + memory_html(sweep) + "<h2>Damage by position</h2>\n" +
          position_chart(sweep) + others_html(sweep) + commands_html(sweep));
}

}  // namespace kvc
