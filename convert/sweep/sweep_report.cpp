#include "convert/sweep/sweep_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "convert/sweep/sweep_points.h"
#include "convert/sweep/sweep_rows.h"

namespace kvc {
namespace {

constexpr double kTargets[] = {0.001, 0.003, 0.01, 0.03, 0.1};
constexpr double kSure = 2;  // standard errors between a mean and a target

}  // namespace

Json sweep_answers(const Json& candidates) {
  const std::vector<const Json*> rows = measured_rows(candidates);
  Json answers = Json::array();
  for (const double target : kTargets) {
    Json answer = {{"kl_divergence", target}, {"candidate", nullptr}, {"unsure", Json::array()}};
    for (const Json* row : rows) {
      const SweepKld kld = kld_of(*row);
      if (kld.mean + kSure * kld.error <= target) {
        answer["candidate"] = name_of(*row);
        break;
      }
      if (kld.mean <= target) {
        answer["unsure"].push_back(name_of(*row));
      }
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

std::vector<std::string> sweep_warnings(const Json& sweep) {
  const std::vector<const Json*> rows = measured_rows(sweep["candidates"]);
  std::vector<std::pair<std::string, std::vector<std::string>>> found;  // and who has it
  for (const Json* row : rows) {
    for (const Json& warning : (*row)["validation"].value("warnings", Json::array())) {
      const auto sentence = warning.get<std::string>();
      auto known = std::ranges::find(found, sentence, &decltype(found)::value_type::first);
      if (known == found.end()) {
        known = found.insert(found.end(), {sentence, {}});
      }
      known->second.push_back(name_of(*row));
    }
  }
  std::vector<std::string> sentences;
  for (const auto& [sentence, names] : found) {
    sentences.push_back(names.size() == rows.size()
                            ? sentence
                            : fmt::format("{}: {}", fmt::join(names, "; "), sentence));
  }
  return sentences;
}

std::string sweep_text(const Json& sweep) {
  const std::vector<const Json*> rows = measured_rows(sweep["candidates"]);
  std::size_t width = std::string("candidate").size();
  for (const Json& row : sweep["candidates"]) {
    width = std::max(width, name_of(row).size());
  }
  std::string text = fmt::format("{:<{}}  {:>10}  {:>20}  {:>10}  {:>8}  pays from\n", "candidate",
                                 width, "kept_ratio", "KL divergence", "perplexity", "same top");
  for (const Json* row : rows) {
    // "±" is two bytes and one column; fmt counts columns.
    text += fmt::format("{:<{}}  {:>10.3f}  {:>20}  {:>10}  {:>8}  {}\n", name_of(*row), width,
                        kept_of(*row), kld_text(*row), perplexity_text(*row), top_text(*row),
                        payback_text(*row));
  }
  for (const Json& row : sweep["candidates"]) {
    if (row["status"] != "measured") {
      text += fmt::format("{:<{}}  {}: {}\n", name_of(row), width, row["status"].get<std::string>(),
                          row["reason"].get<std::string>());
    }
  }
  if (!sweep["points"].empty()) {
    text += "\nother caches, and the best candidate that keeps no more\n";
  }
  for (const Json& point : sweep["points"]) {
    const Json* row = best_within(sweep["candidates"], kept_of(point));
    text += fmt::format("  {}: {:.3f}, {}; {}\n", name_of(point), kept_of(point),
                        kld_text(point_kld(point)),
                        row == nullptr ? "none of these" : name_of(*row) + ": " + kld_text(*row));
  }
  text += "\nsmallest cache for a KL divergence of at most\n";
  for (const Json& answer : sweep["answers"]) {
    const std::string unsure = unsure_text(answer);
    text += fmt::format(
        "  {:<6g}  {}{}\n", answer["kl_divergence"].get<double>(),
        answer["candidate"].is_null() ? "none of these" : answer["candidate"].get<std::string>(),
        unsure.empty() ? "" : fmt::format("; perhaps {}", unsure));
  }
  for (const std::string& sentence : sweep_warnings(sweep)) {
    text += sentence + "\n";
  }
  return text;
}

}  // namespace kvc
