#include <fmt/format.h>

#include <cmath>

#include "core/provenance.h"
#include "validate/chart.h"
#include "validate/page.h"
#include "validate/part_report.h"
#include "validate/report.h"
#include "validate/task_report.h"

namespace kvc {
namespace {

std::string percent(double share, int digits = 1) {
  return fmt::format("{:.{}f} %", 100 * share, digits);
}

std::string html_with_error(const Estimate& estimate) {
  return std::isfinite(estimate.standard_error)
             ? fmt::format("{:.4g} <small>± {:.2g}</small>", estimate.mean, estimate.standard_error)
             : fmt::format("{:.4g}", estimate.mean);
}

std::string percent_with_error(const Estimate& share) {
  return std::isfinite(share.standard_error)
             ? fmt::format("{:.2f} <small>± {:.2f}</small> %", 100 * share.mean,
                           100 * share.standard_error)
             : percent(share.mean, 2);
}

std::string tile(const std::string& value, const std::string& name, const std::string& note) {
  return fmt::format("<div class=\"tile\"><span>{}</span><b>{}</b><span>{}</span></div>\n", name,
                     value, note);
}

std::string tiles(const ValidationReport& report) {
  const Comparison& c = report.continuation;
  return "<div class=\"tiles\">\n" +
         tile(percent(report.kept_ratio), "KV cache kept",
              fmt::format("{:.2f} of {:.2f} MiB", static_cast<double>(report.kv_bytes) / 1048576.0,
                          static_cast<double>(report.original_kv_bytes) / 1048576.0)) +
         tile(fmt::format("{:.4g}", c.kl_divergence.mean), "KL divergence",
              fmt::format("99 % of positions below {:.3g}", c.kl_p99)) +
         tile(fmt::format("{:.4f}", c.perplexity_ratio), "Perplexity ratio",
              fmt::format("{:.4g} → {:.4g}", c.reference_perplexity, c.candidate_perplexity)) +
         tile(percent(c.same_top.mean), "Same top token",
              fmt::format("{} positions", c.num_positions)) +
         "</div>\n";
}

std::string table_row(const char* name, const std::string& continuation,
                      const std::string& teacher_forced, bool sub = false) {
  return fmt::format("<tr><td{}>{}</td><td>{}</td><td>{}</td></tr>\n", sub ? " class=\"sub\"" : "",
                     name, continuation, teacher_forced);
}

std::string table(const ValidationReport& report) {
  std::string rows =
      table_row("Scored positions", std::to_string(report.continuation.num_positions),
                std::to_string(report.teacher_forced.num_positions));
  for (const ReportRow& row : report_rows()) {
    const auto cell = [&](const Comparison& comparison) {
      return (row.share ? percent_with_error : html_with_error)(row.value(comparison));
    };
    if (row.html != nullptr) {
      rows += table_row(row.html, cell(report.continuation), cell(report.teacher_forced), row.sub);
    }
  }
  return "<table><thead><tr><th></th><th>Continuation</th><th>Teacher-forced</th></tr></thead>\n"
         "<tbody>\n" +
         rows + "</tbody></table>\n";
}

std::string inputs_table(const ValidationReport& report) {
  std::string rows;
  for (const Json* part : {&report.options, &report.inputs}) {
    for (const auto& [key, value] : part->items()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escape_html(key), escape_html(text));
    }
  }
  return "<table class=\"inputs\"><tbody>\n" + rows +
         fmt::format("<tr><td>tool_version</td><td>{}</td></tr>\n", kToolVersion) +
         "</tbody></table>\n";
}

std::string missed_notice(const ValidationReport& report) {
  std::string items;
  for (const std::string& sentence : report.missed) {
    items += fmt::format("<p>{}</p>\n", escape_html(sentence));
  }
  return items.empty() ? ""
                       : "<div class=\"missed\"><b>Thresholds missed</b>\n" + items + "</div>\n";
}

std::string payback_note(const ValidationReport& report) {
  return report.payback ? fmt::format("<p>The conversion {}.</p>\n", to_text(*report.payback)) : "";
}

std::string warnings_notice(const ValidationReport& report) {
  std::string items;
  for (const std::string& sentence : warnings(report)) {
    items += fmt::format("<div class=\"missed\"><p>{}</p></div>\n", escape_html(sentence));
  }
  return items;
}

std::string overlap_note(const ValidationReport& report) {
  return report.overlap ? fmt::format(
                              "<p class=\"soft\">{} of the evaluation text stands in the "
                              "calibration text, too, in passages of {} tokens or more."
                              "</p>\n",
                              percent(report.overlap->share(), 2), kOverlapTokens)
                        : "";
}

std::string layers_html(const std::vector<LayerShare>& layers) {
  return layers.empty() ? ""
                        : "<h2>Bits by layer</h2>\n<p class=\"soft\">What each number of the "
                          "original's cache becomes, outside sinks and window; layers that are "
                          "stored together share alike.</p>\n" +
                              layer_chart(layers);
}

std::string recall_note(const Recall& recall) {
  return recall.num_asked == 0
             ? ""
             : fmt::format(
                   "<p>The recall task asks for {} numbers of the text; the candidate names {}, "
                   "the original {}.</p>\n",
                   recall.num_asked, recall.candidate_right, recall.reference_right);
}

std::string teacher_forced_html(const ValidationReport& report) {
  return report.teacher_forced_ran
             ? "<h2>KL divergence, teacher-forced</h2>\n" + histogram_chart(report.teacher_forced)
             : "";
}

std::string settings_note(const ValidationReport& report) {
  const Json block = report.options.value("block_tokens", Json(0));
  const std::string continuation =
      block == 0
          ? "the first half of each sequence is prefilled and compressed, the second half is "
            "read through the compressed cache and scored"
          : fmt::format(
                "every {} tokens of a sequence are read through the compressed cache "
                "of all before them, which were prefilled at once, and scored",
                block.dump());
  return fmt::format(
      "<p class=\"soft\">Continuation: {}. Teacher-forced: one exact forward over each sequence, "
      "which sees changed weights only{}. ± is the standard error over sequences; logarithms are "
      "natural.</p>\n{}",
      continuation, report.teacher_forced_ran ? "" : fmt::format("; {}", kSameModel),
      recall_note(report.recall));
}

}  // namespace

std::string html_report(const ValidationReport& report) {
  const std::string candidate = escape_html(report.options.value("candidate", "candidate"));
  const std::string reference = escape_html(report.options.value("reference", "reference"));
  return html_page(
      "What the conversion costs",
      fmt::format("<p class=\"soft\">{} compared with {} on {} sequences, {} tokens</p>\n",
                  candidate, reference, report.num_sequences, report.num_tokens) +
          tiles(report) + payback_note(report) + missed_notice(report) + warnings_notice(report) +
          "<h2>Both settings</h2>\n" + table(report) + settings_note(report) + tasks_html(report) +
          "<h2>KL divergence in the continuation</h2>\n" + histogram_chart(report.continuation) +
          "<h2>KL divergence by position in the continuation</h2>\n" +
          position_chart(report.continuation) + layers_html(report.layers) + parts_html(report) +
          teacher_forced_html(report) + "<h2>How it was measured</h2>\n" + overlap_note(report) +
          inputs_table(report));
}

}  // namespace kvc
