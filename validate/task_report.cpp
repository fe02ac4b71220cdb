#include "validate/task_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "validate/page.h"
#include "validate/report.h"
#include "validate/verdict.h"

namespace kvc {
namespace {

std::string signed_error(const Estimate& estimate, const char* error_format) {
  const std::string mean = fmt::format("{:+.1f}", estimate.mean);
  return std::isfinite(estimate.standard_error)
             ? mean + fmt::format(fmt::runtime(error_format), estimate.standard_error)
             : mean;
}

bool asks_through_chat(const ValidationReport& report) {
  const Json tasks = report.options.value("tasks", Json());
  return tasks.is_object() && tasks.value("chat", false);
}

}  // namespace

Json tasks_json(const std::vector<TaskScores>& tasks) {
  Json rows = Json::array();
  for (const TaskScores& scores : tasks) {
    rows.push_back({{"task", scores.task},
                    {"length", scores.length},
                    {"num_samples", scores.num_samples},
                    {"reference", to_json(scores.reference)},
                    {"candidate", to_json(scores.candidate)},
                    {"difference", to_json(scores.difference)}});
  }
  return rows.empty() ? Json(nullptr) : rows;
}

std::string tasks_text(const ValidationReport& report) {
  std::string text;
  std::size_t width = 24;
  for (const TaskScores& scores : report.tasks) {
    width = std::max(width, scores.task.size() + 1);
  }
  for (const TaskScores& scores : report.tasks) {
    text += fmt::format("  {:<{}}{:>8}{:>9}{:>10.1f}{:>11.1f}  {}\n", scores.task, width,
                        scores.length, scores.num_samples, scores.reference.mean,
                        scores.candidate.mean, signed_error(scores.difference, " ± {:.1f}"));
  }
  return text.empty()
             ? ""
             : fmt::format("\n  {:<{}}{:>8}{:>9}{:>10}{:>11}  {}\n", "task (0 to 100)", width,
                           "length", "samples", "original", "candidate", "difference") +
                   text +
                   (asks_through_chat(report) ? "  asked through the original's chat template\n"
                                              : "");
}

std::string tasks_html(const ValidationReport& report) {
  std::string rows;
  for (const TaskScores& scores : report.tasks) {
    rows += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.1f}</td><td>{:.1f}</td><td>{}</td></tr>\n",
        escape_html(scores.task), scores.length, scores.num_samples, scores.reference.mean,
        scores.candidate.mean, signed_error(scores.difference, " <small>± {:.1f}</small>"));
  }
  return rows.empty()
             ? ""
             : "<h2>Tasks</h2>\n<table><thead><tr><th></th><th>Tokens</th><th>Samples</th>"
               "<th>Original</th><th>Candidate</th><th>Difference</th></tr></thead>\n<tbody>\n" +
                   rows +
                   "</tbody></table>\n<p class=\"soft\">Scores are 0 to 100. Each prompt is "
                   "prefilled and compressed, and continued greedily. " +
                   (asks_through_chat(report)
                        ? std::string("It goes through the original's chat template. ")
                        : "") +
                   "± is the standard error over samples.</p>\n";
}

std::vector<std::string> undecided_tasks(const TaskOptions& options,
                                         const std::vector<TaskScores>& tasks) {
  std::vector<std::string> undecided;
  for (const TaskScores& scores : tasks) {
    if (options.min_ratio && scores.reference.mean == 0) {
      undecided.push_back(fmt::format(
          "{} at {} tokens: the original scores 0, so --min-task-ratio {:g} says nothing "
          "about it; choose tasks that it can do",
          scores.task, scores.length, *options.min_ratio));
      continue;
    }
    // The error of the paired difference, at ratios near 1 that of the candidate minus the ratio of the original.
    const double margin =
        std::abs(scores.candidate.mean - options.min_ratio.value_or(0) * scores.reference.mean);
    if (options.min_ratio && !(half_interval(scores.difference, scores.num_samples) <= margin)) {
      undecided.push_back(fmt::format(
          "{} at {} tokens: {:.6g} of the original's {:.6g} does not decide --min-task-ratio {:g}: "
          "{}; "
          "ask more with --task-samples",
          scores.task, scores.length, scores.candidate.mean, scores.reference.mean,
          *options.min_ratio,
          scores.num_samples == 1
              ? "one sample has no standard error"
              : fmt::format("it lies in the 95 % interval of {} samples", scores.num_samples)));
    }
  }
  return undecided;
}

std::vector<std::string> missed_tasks(const TaskOptions& options,
                                      const std::vector<TaskScores>& tasks) {
  std::vector<std::string> missed;
  for (const TaskScores& scores : tasks) {
    const double reference = scores.reference.mean, candidate = scores.candidate.mean;
    if (options.min_ratio && !(candidate >= *options.min_ratio * reference)) {
      missed.push_back(fmt::format(
          "{} at {} tokens: {:.6g} of the original's {:.6g} is below --min-task-ratio {:g}",
          scores.task, scores.length, candidate, reference, *options.min_ratio));
    }
  }
  return missed;
}

}  // namespace kvc
