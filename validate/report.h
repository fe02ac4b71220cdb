// The validation report: its rows, and one self-contained page without scripts or anything loaded from elsewhere.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "validate/validate.h"

namespace kvc {

// Why the teacher-forced setting was not run.
inline constexpr const char* kSameModel =
    "not run, because the candidate has the original's weights and reads prompts exactly";

// A number of a comparison that reports print.
struct ReportRow {
  const char *text, *html;  // its names on a terminal and on the page; null: not there
  // Not a number if it has no error.
  Estimate (*value)(const Comparison& comparison);
  bool sub = false, share = false;  // on the page: part of the row above, in percent
};
std::span<const ReportRow> report_rows();

// What a reader should know before the numbers are believed, one sentence each: the imprecise ones, calibration_warning() and
// overlap_warning().
std::vector<std::string> warnings(const ValidationReport& report);

// With the error that its logarithm gives it.
Estimate perplexity_ratio(const Comparison& comparison);
Json to_json(const Estimate& estimate);
std::string with_error(const Estimate& estimate);  // "0.0123 ± 0.0004"
std::string html_report(const ValidationReport& report);

}  // namespace kvc
