// kvconvert's own stage: turns a checkpoint and its statistics into a KV plan and its tensors.
//
// Writes <out>/conversion.h5 and <out>/conversion.safetensors (core/conversion_file.h), as a
// directory that is complete or absent.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "convert/cache_metric.h"
#include "convert/coded/coded_settings.h"
#include "convert/fusion/fusion_settings.h"
#include "convert/pair_settings.h"
#include "core/checkpoint.h"
#include "core/conversion_file.h"
#include "core/json.h"
#include "core/kv_plan.h"
#include "core/provenance.h"
#include "core/token_set.h"
#include "model/config.h"

namespace kvc {

enum class Factor { kPlain, kWhitened, kJoint };
enum class RankAllocation { kUniform, kFisher, kEnergy };
enum class UnmergedChoice { kAuto, kPlain, kLatent };
// Coordinates of merged latents: those of the factorisation, or key channels kept verbatim
// (convert/latent/pivot_gauge.h).
enum class Gauge { kSvd, kPivot };

std::string to_string(Factor);
std::string to_string(RankAllocation);
std::string to_string(UnmergedChoice);
std::string to_string(Gauge);
Factor parse_factor(const std::string&);  // Error lists the known ones; likewise below
RankAllocation parse_rank_allocation(const std::string&);
UnmergedChoice parse_unmerged_choice(const std::string&);
Gauge parse_gauge(const std::string&);

struct ConvertSettings {
  std::string method = "commonkv";  // a row of convert/methods/
  std::string preset;               // "" or "paper"
  int layers_per_group = 4;
  double rank =
      0.7;  // latent width / hidden_size, in (0, 1]; palu: fraction of each projection's width
  double kept_ratio = 0.5;  // compressed KV bytes / original KV bytes, in (0, 1]
  std::int64_t rank_multiple =
      0;  // ranks are rounded down to it; 0: 32 if hidden_size >= 1024, else 4
  RankAllocation rank_allocation = RankAllocation::kUniform;
  Factor factor = Factor::kWhitened;
  MergeRule merge = MergeRule::kLs;
  bool ls_fisher_weights = true;  // least squares weighted by fisher_diag
  bool refit = true;
  Gauge gauge = Gauge::kSvd;
  Granularity granularity = Granularity::kToken;
  PrefillMode prefill = PrefillMode::kExact;
  UnmergedChoice unmerged = UnmergedChoice::kAuto;
  std::int64_t sink_tokens = 4;
  std::int64_t window_tokens = 128;
  std::int64_t block_tokens = 64;
  std::int64_t heads_per_group = 0;  // palu: KV heads factorised together; 0: all
  // Principal directions (xkv, xkv-static, pca).
  bool joint = false;        // one latent for keys and values, instead of one each
  double value_ratio = 1.5;  // value directions per key direction, if ranks follow from kept_ratio
  std::int64_t key_rank = 0,
               value_rank = 0;              // per layer of a group; 0: from kept_ratio
  LaterTokens later = LaterTokens::kExact;  // xkv: of later turns
  std::int64_t recompress_every = 0;        // xkv: generated tokens, 0: stay exact
  BasisSolver solver = BasisSolver::kEigh;  // xkv
  std::string kv_dtype;                     // planned dtype of the cache; empty: the checkpoint's
  std::int64_t context = 0;  // tokens of the planned cache; 0: min(max_position, 8192)
  // Tokens of all sequences together, where the saving must exceed the factors; 0: the context, at least
  // 8192
  std::int64_t tokens_in_flight = 0;
  FusionSettings fusion;  // fusedkv and its relatives
  PairSettings pairing;   // minicache
  CodedSettings coded;    // method coded
  // coded, xkv-static and pca: metric of bases; unset: the method's own
  std::optional<CacheMetric> cache_metric;
  std::uint64_t seed = 0;
  std::string device = "cpu";  // --device: of statistics, factorisation and fits
};
Json to_json(const ConvertSettings& settings);

// Applies preset `name` ("paper") for settings.method; later settings override it. UsageError for
// an unknown preset or method.
void apply_preset(ConvertSettings& settings, const std::string& name);
// Sets what the method prescribes, then checks ranges: UsageError naming a flag out of range.
void resolve(ConvertSettings& settings);

// From config alone. Unless `force`, throws Error with the numbers and the nearest settings that
// work if the cache would grow or the target cannot be reached.
KvPlan make_plan(const ModelConfig& config, const ConvertSettings& settings, bool force,
                 const std::vector<double>* fisher_scores = nullptr);
// Does this conversion require these inputs?
bool needs_calibration(const ConvertSettings& settings);
bool needs_fisher(const ConvertSettings& settings);
// Inputs of coded caches and calibrated directions: sums over adjacent layers together (calibrate/covariance.h,
// fisher/metric.h).
struct StatisticsNeeds {
  int joint_layers = 0;           // layers taken together; 0: no covariance
  bool attention_metric = false;  // beside the covariance
  bool gradient_metric = false;   // likewise
  std::int64_t least_tokens = 0;  // behind the sinks of all sequences
};
StatisticsNeeds statistics_needs(const ModelConfig& config, const ConvertSettings& settings);

struct ConvertInputs {
  std::filesystem::path checkpoint;
  std::filesystem::path tokens;       // tokens.h5: refit, errors in the report, sensitivity
  std::filesystem::path calibration;  // calibration.h5, or empty
  std::filesystem::path fisher;       // fisher.h5, or empty; likewise the next two
  std::filesystem::path covariance{};
  std::filesystem::path metric{};
  std::filesystem::path out;      // directory
  std::filesystem::path state{};  // file from which an interrupted distillation resumes, or empty
  bool force = false;
};
Provenance conversion_provenance(const Checkpoint& checkpoint, const TokenSet& tokens,
                                 const ConvertSettings& settings);
void convert(const ConvertInputs& inputs, const ConvertSettings& settings);

}  // namespace kvc
