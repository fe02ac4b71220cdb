#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/provenance.h"
#include "validate/evaluation_text.h"
#include "validate/part_report.h"
#include "validate/report.h"
#include "validate/task_report.h"
#include "validate/validate.h"

namespace kvc {
namespace {

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const KlHistogram& histogram) {
  return {{"first_decade", KlHistogram::kFirst},
          {"decades_per_bin", KlHistogram::kWidth},
          {"counts", histogram.counts}};
}

Json kl_json(const Comparison& comparison) {
  Json json = to_json(comparison.kl_divergence);
  json["median"] = comparison.kl_median;
  json["p90"] = comparison.kl_p90;
  json["p95"] = comparison.kl_p95;
  json["p99"] = comparison.kl_p99;
  json["p99.9"] = comparison.kl_p999;
  json["max"] = comparison.kl_max;
  json["histogram"] = to_json(comparison.kl_histogram);
  json["by_position"] = Json::array();
  for (const PositionRange& range : comparison.kl_by_position) {
    json["by_position"].push_back(
        {{"begin", range.begin}, {"end", range.end}, {"mean", number(range.kl_divergence)}});
  }
  return json;
}

Json to_json(const Comparison& comparison) {
  return {{"num_positions", comparison.num_positions},
          {"reference_nll", to_json(comparison.reference_nll)},
          {"candidate_nll", to_json(comparison.candidate_nll)},
          {"reference_perplexity", number(comparison.reference_perplexity)},
          {"candidate_perplexity", number(comparison.candidate_perplexity)},
          {"perplexity_ratio", number(comparison.perplexity_ratio)},
          {"log_perplexity_ratio", to_json(comparison.log_perplexity_ratio)},
          {"kl_divergence", kl_json(comparison)},
          {"same_top", to_json(comparison.same_top)},
          {"delta_p", to_json(comparison.delta_p)},
          {"delta_p_rms", to_json(comparison.delta_p_rms)}};
}

// Null where nothing was asked.
Json recall_json(const Recall& recall) {
  if (recall.num_asked == 0) {
    return nullptr;
  }
  const auto asked = static_cast<double>(recall.num_asked);
  return {{"num_asked", recall.num_asked},
          {"reference_accuracy", static_cast<double>(recall.reference_right) / asked},
          {"candidate_accuracy", static_cast<double>(recall.candidate_right) / asked}};
}

// Null where the calibration text was not read.
Json calibration_json(const ValidationReport& report) {
  if (!report.calibration_nll) {
    return nullptr;
  }
  const std::string warning = calibration_warning(report);
  return {{"nll", to_json(*report.calibration_nll)},
          {"distance", number(calibration_distance(report))},
          {"overlap", report.overlap ? to_json(*report.overlap) : Json(nullptr)},
          {"warning", warning.empty() ? Json(nullptr) : Json(warning)}};
}

Estimate plain(double value) { return {.mean = value}; }

// "±" is two bytes and one column; fmt counts it as one.
std::string row(const char* name, const std::string& left, const std::string& right) {
  return fmt::format("  {:<24}{:>24}{:>24}\n", name, left, right);
}

std::string recall_line(const Recall& recall) {
  return fmt::format("  recalled {} of {} numbers, the original {}\n", recall.candidate_right,
                     recall.num_asked, recall.reference_right);
}

// For a cache when it is measured.
std::int64_t tokens_per_sequence(const ValidationReport& report) {
  return report.num_tokens / std::max<std::int64_t>(report.num_sequences, 1);
}

using C = const Comparison&;
constexpr ReportRow kRows[] = {
    {"perplexity, original", "Perplexity, original",
     [](C c) { return plain(c.reference_perplexity); }},
    {"perplexity, candidate", "Perplexity, candidate",
     [](C c) { return plain(c.candidate_perplexity); }},
    {"perplexity ratio", "Perplexity ratio", perplexity_ratio},
    {"ln(perplexity ratio)", nullptr, [](C c) { return c.log_perplexity_ratio; }},
    {"KL divergence, mean", "KL divergence, mean", [](C c) { return c.kl_divergence; }},
    {"  median", "median", [](C c) { return plain(c.kl_median); }, true},
    {"  90 %", "90 %", [](C c) { return plain(c.kl_p90); }, true},
    {"  95 %", "95 %", [](C c) { return plain(c.kl_p95); }, true},
    {"  99 %", "99 %", [](C c) { return plain(c.kl_p99); }, true},
    {"  99.9 %", "99.9 %", [](C c) { return plain(c.kl_p999); }, true},
    {"  max", "largest", [](C c) { return plain(c.kl_max); }, true},
    {"same top", "Same top token", [](C c) { return c.same_top; }, false, true},
    {"delta p, mean", "Δp of the correct token, mean", [](C c) { return c.delta_p; }},
    {"delta p, RMS", "root mean square", [](C c) { return c.delta_p_rms; }, true}};

}  // namespace

Estimate perplexity_ratio(const Comparison& comparison) {
  return {comparison.perplexity_ratio,
          comparison.perplexity_ratio * comparison.log_perplexity_ratio.standard_error};
}

Json to_json(const Estimate& estimate) {
  return {{"mean", number(estimate.mean)}, {"standard_error", number(estimate.standard_error)}};
}

std::string with_error(const Estimate& estimate) {
  return std::isfinite(estimate.standard_error)
             ? fmt::format("{:.5g} ± {:.2g}", estimate.mean, estimate.standard_error)
             : fmt::format("{:.5g}", estimate.mean);
}

std::span<const ReportRow> report_rows() { return kRows; }

std::vector<std::string> warnings(const ValidationReport& report) {
  std::vector<std::string> all = report.imprecise;
  if (std::string warning = calibration_warning(report); !warning.empty()) {
    all.push_back(std::move(warning));
  }
  if (std::string warning = report.overlap ? overlap_warning(*report.overlap) : "";
      !warning.empty()) {
    all.push_back(std::move(warning));
  }
  return all;
}

Json to_json(const ValidationReport& report) {
  return {{"tool_version", kToolVersion},
          {"options", report.options},
          {"inputs", report.inputs},
          {"num_sequences", report.num_sequences},
          {"num_tokens", report.num_tokens},
          {"tokens_per_sequence", tokens_per_sequence(report)},
          {"kept_ratio", number(report.kept_ratio)},
          {"kv_bytes", report.kv_bytes},
          {"original_kv_bytes", report.original_kv_bytes},
          {"continuation", to_json(report.continuation)},
          {"teacher_forced", to_json(report.teacher_forced)},
          {"teacher_forced_ran", report.teacher_forced_ran},
          {"recall", recall_json(report.recall)},
          {"tasks", tasks_json(report.tasks)},
          {"layers", to_json(report.layers)},
          {"parts", parts_json(report)},
          {"payback", report.payback ? to_json(*report.payback) : Json(nullptr)},
          {"calibration", calibration_json(report)},
          {"warnings", warnings(report)},
          {"missed", report.missed}};
}

std::string summary_line(const ValidationReport& report) {
  const Comparison& measured = report.continuation;
  const std::string gain = report.payback ? "  " + to_text(*report.payback) : "";
  return fmt::format(
      "kept_ratio {:.3f} of {} tokens  KLD {}  perplexity ratio {:.4f}  same top {:.1f} %{}",
      report.kept_ratio, tokens_per_sequence(report), with_error(measured.kl_divergence),
      measured.perplexity_ratio, 100 * measured.same_top.mean, gain);
}

std::string summary_lines(const ValidationReport& report) {
  std::string lines = summary_line(report) + "\n";
  for (const std::string& warning : warnings(report)) {
    lines += warning + "\n";
  }
  return lines;
}

std::string text_report(const ValidationReport& report) {
  std::string text = summary_lines(report) + "\n";
  text += row("", "continuation", "teacher-forced");
  text += row("scored positions", std::to_string(report.continuation.num_positions),
              std::to_string(report.teacher_forced.num_positions));
  for (const ReportRow& number : report_rows()) {
    text += row(number.text, with_error(number.value(report.continuation)),
                with_error(number.value(report.teacher_forced)));
  }
  if (!report.teacher_forced_ran) {
    text += fmt::format("  teacher-forced: {}\n", kSameModel);
  }
  if (report.recall.num_asked > 0) {
    text += recall_line(report.recall);
  }
  return text + tasks_text(report) + parts_text(report);
}

}  // namespace kvc
