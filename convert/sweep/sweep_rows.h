// Rows of a sweep as its reports read them.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"

namespace kvc {

struct SweepKld {
  double mean = 0, error = 0;  // the error of a single sequence is unknown, and infinite here
};
SweepKld kld_of_mean(const Json& kld);  // {"mean", "standard_error"}
SweepKld kld_of(const Json& row);
const Json& continuation_of(const Json& row);  // of its validation
double kept_of(const Json& row);
std::string name_of(const Json& row);

// Measured candidates, the smallest cache first; pointers into `candidates`.
std::vector<const Json*> measured_rows(const Json& candidates);
// Those that no other one beats in bytes and divergence.
std::vector<const Json*> frontier(const Json& candidates);
const Json* find_row(const Json& candidates, const Json& name);  // null if there is none

// Their cells.
std::string kld_text(const SweepKld& kld);
std::string kld_text(const Json& row);
std::string perplexity_text(const Json& row);
std::string top_text(const Json& row);
std::string payback_text(const Json& row);
std::string unsure_text(const Json& answer);  // names, joined by commas

}  // namespace kvc
