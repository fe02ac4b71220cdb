#include "validate/evaluation_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/token_set.h"
#include "model/text.h"
#include "model/tokenizer/tokenizer.h"
#include "validate/comparison.h"
#include "validate/model_run.h"

namespace kvc {
namespace {

constexpr std::size_t kMinTokens = 4;

std::vector<std::string> calibration_hashes(const Checkpoint& candidate) {
  const Json& config = candidate.config();
  if (!records_calibration(candidate)) {
    return {};
  }
  const Json& hashes = config["kvconvert"]["calibration_hashes"];
  KVC_CHECK(hashes.is_array() && std::all_of(hashes.begin(), hashes.end(),
                                             [](const Json& hash) { return hash.is_string(); }),
            "{}: kvconvert.calibration_hashes is not a list of strings",
            (candidate.directory() / "config.json").string());
  return hashes.get<std::vector<std::string>>();
}

// The first text that is among these, by its hash; nullptr if there is none.
const std::string* find_calibrated(const TokenSet& text,
                                   const std::vector<std::string>& calibrated) {
  const auto found = std::ranges::find_first_of(text.source_hashes, calibrated);
  return found == text.source_hashes.end() ? nullptr : &*found;
}

TokenSet evaluation_rows(const ValidateOptions& options, const Tokenizer& tokenizer,
                         const ModelConfig& config) {
  TextOptions text;
  text.num_sequences = options.num_sequences;
  text.seq_len = options.seq_len;
  text.seed = options.seed;
  TokenSet tokens = load_token_set(options.texts, tokenizer, config.vocab_size, text, "evaluation");
  auto& rows = tokens.sequences;
  rows.erase(std::remove_if(rows.begin(), rows.end(),
                            [](const auto& row) { return row.size() < kMinTokens; }),
             rows.end());
  KVC_CHECK(!rows.empty(),
            "the evaluation text gives no row of at least {} tokens; give a longer one",
            kMinTokens);
  return tokens;
}

// A row as long as a block, or shorter, is read exactly as a whole.
void check_blocks(const TokenSet& tokens, std::int64_t block_tokens) {
  const std::int64_t longest = longest_row(tokens.sequences);
  KVC_CHECK(block_tokens == 0 || block_tokens + 1 < longest,
            "--block {}: rows of {} tokens have none behind such a block, so that nothing would be "
            "read through the cache; use a smaller block, or longer rows (--seq-len, --text)",
            block_tokens, longest);
}

constexpr std::size_t kMostRows = 8;
// docs/quality.md: of texts of one kind it is less, of a novel and children's stories more.
constexpr double kFarRatio = 1.5;

}  // namespace

bool records_calibration(const Checkpoint& candidate) {
  const auto kvconvert = candidate.config().find("kvconvert");
  return kvconvert != candidate.config().end() && kvconvert->is_object() &&
         kvconvert->contains("calibration_hashes");
}

TokenSet load_evaluation_text(const ValidateOptions& options, const Checkpoint& candidate,
                              const ModelConfig& config) {
  const Tokenizer tokenizer = Tokenizer::load(options.reference);
  const Tokenizer other = Tokenizer::load(options.candidate);
  KVC_CHECK(tokenizer.hash() == other.hash(),
            "{} and {} have different tokenizers (tokenizer.json); only models that read the same "
            "tokens can be compared",
            options.reference.string(), options.candidate.string());
  const TokenSet tokens = evaluation_rows(options, tokenizer, config);
  const std::string* calibrated = find_calibrated(tokens, calibration_hashes(candidate));
  KVC_CHECK(calibrated == nullptr,
            "{}: was calibrated on this evaluation text (SHA-256 {}); evaluate on unseen text, "
            "give another --text",
            candidate.directory().string(), *calibrated);
  check_blocks(tokens, options.block_tokens);
  for (const auto& row : tokens.sequences) {
    KVC_CHECK(static_cast<std::int64_t>(row.size()) <= config.max_position_embeddings,
              "the evaluation text has a row of {} tokens, the model's context is {}", row.size(),
              config.max_position_embeddings);
  }
  return tokens;
}

void check_evaluation_text(const ValidateOptions& options, const ModelConfig& config,
                           const std::vector<std::string>& calibrated) {
  ValidateOptions of_validation = options;
  of_validation.seq_len = default_seq_len(config);
  const TokenSet tokens =
      evaluation_rows(of_validation, Tokenizer::load(options.reference), config);
  const std::string* hash = find_calibrated(tokens, calibrated);
  KVC_CHECK(
      hash == nullptr,
      "--validation-text: a text (SHA-256 {}) is calibration text, too; evaluate on unseen text, "
      "or leave validation out with --no-validate",
      *hash);
}

Estimate calibration_nll(Engine& reference, const std::filesystem::path& path) {
  const TokenSet tokens = read_token_set(path, reference.config().vocab_size);
  std::vector<SequenceSum> nll;
  for (const std::size_t place : spread_sequences(tokens, kMostRows)) {
    const std::vector<std::int64_t>& row = tokens.sequences[place];
    if (row.size() < 2) {
      continue;
    }
    const at::Tensor logits = teacher_forced_logits(reference, {row}).front();
    const PositionScores scores =
        score_positions(logits, logits, at::tensor(row, at::kLong).slice(0, 1));
    nll.push_back({std::accumulate(scores.reference_nll.begin(), scores.reference_nll.end(), 0.0),
                   static_cast<std::int64_t>(scores.reference_nll.size())});
  }
  KVC_CHECK(!nll.empty(), "{}: no row of at least 2 tokens", path.string());
  return clustered_mean(nll);
}

double calibration_distance(const ValidationReport& report) {
  if (!report.calibration_nll) {
    return 1;
  }
  const double judged = report.teacher_forced.reference_nll.mean;
  const double calibrated = report.calibration_nll->mean;
  return std::max(judged, calibrated) / std::min(judged, calibrated);
}

std::string calibration_warning(const ValidationReport& report) {
  if (!(calibration_distance(report) > kFarRatio)) {
    return "";
  }
  return fmt::format(
      "the evaluation text is of another kind than the calibration text: the original's NLL is "
      "{:.2f} nats per token on it, {:.2f} on the other; give text of your own kind to both: "
      "--calibration FILE, and kvconvert --validation-text or kvvalidate --text FILE",
      report.teacher_forced.reference_nll.mean, report.calibration_nll->mean);
}

}  // namespace kvc
