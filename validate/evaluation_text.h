// The text that a candidate is judged on, as token rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "core/checkpoint.h"
#include "core/token_set.h"
#include "model/config.h"
#include "runtime/engine.h"
#include "validate/validate.h"

namespace kvc {

// Tokens of a row where none are asked for.
inline std::int64_t default_seq_len(const ModelConfig& config) {
  return std::min<std::int64_t>(2048, config.max_position_embeddings);
}

// Error when the checkpoints' tokenizers differ, when the text gives no row of at least four
// tokens, or when one of its files was a calibration text of the candidate.
TokenSet load_evaluation_text(const ValidateOptions& options, const Checkpoint& candidate,
                              const ModelConfig& config);

// The same before there is a candidate, which will be calibrated on texts of these hashes: Error for what
// load_evaluation_text() would refuse.
void check_evaluation_text(const ValidateOptions& options, const ModelConfig& config,
                           const std::vector<std::string>& calibrated);

// True if the candidate's config.json says which texts it was calibrated on. A folded one does not.
bool records_calibration(const Checkpoint& candidate);

// How far the text that a candidate is judged on is from the text that it was calibrated on, as the original
// reads them: the ratio of the mean NLLs per token. A basis follows its text, so that what was measured says
// little of a text of another kind. Texts of one kind have nearly one NLL, the converse need not hold.
//
// A few rows of a tokens.h5, evenly spread.
Estimate calibration_nll(Engine& reference, const std::filesystem::path& tokens);

// The larger NLL over the smaller one; 1 where the calibration text was not read.
double calibration_distance(const ValidationReport& report);
// One sentence with the numbers and the way out where one is more than one and a half times the other; otherwise empty.
std::string calibration_warning(const ValidationReport& report);

}  // namespace kvc
