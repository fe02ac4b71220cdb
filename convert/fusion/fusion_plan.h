// Plans with fused layers, from a config and settings, or a refusal with settings that work.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "convert/convert.h"
#include "convert/methods/methods.h"
#include "core/kv_plan.h"
#include "core/kv_sources.h"
#include "model/config.h"

namespace kvc {

// Which storage layers a fused layer reads.
//   paper   the bottom and the middle one (FusedKV, arXiv 2512.03870)
//   search  the pair that fits best, for keys and values separately
//   all     all of them; form full only
enum class FusionSources { kPaper, kSearch, kAll };
// Which KV head of a source a head reads: its own number, or the one that fits best.
enum class HeadMap { kSame, kSearch };

struct DistillSettings {
  std::int64_t steps = 0;            // of AdamW; 0: the fit in closed form is kept
  std::int64_t batch_sequences = 1;  // calibration sequences of a step
  double rate = 1e-3;                // highest learning rate of factors
  bool tune_layers = false;          // also train W_q, W_o and norms of fused layers
  double tune_rate = 1e-5;           // theirs
};

struct FusionSettings {
  int storage_layers = 0;  // bottom layers that store; 0: half of all
  FusionForm form = FusionForm::kChannel;
  FusionSources sources = FusionSources::kPaper;
  HeadMap head_map = HeadMap::kSame;
  double min_r2 = 0.8;  // of a fused layer's keys and of its values; below, it is refused
  bool mixed = false;   // a layer below stays plain instead
  DistillSettings distill;
};

Options fusion_options(ConvertSettings& settings);
// UsageError naming the flags of choices that do not go together.
void check_fusion_settings(const FusionSettings& settings);

// --storage-layers, or half of the layers, rounded up. Error if no layer is left to fuse.
int storage_layers(const ModelConfig& config, const FusionSettings& settings);

// All layers plain but `fused` (ascending). Error naming the layers where one cannot read its sources, or,
// with FusionSettings::mixed, that layer stays plain.
KvPlan fused_plan(const PlanRequest& request, std::vector<FusedLayer> fused);

// The layers above the storage layers, as `layer_of` makes them.
std::vector<FusedLayer> upper_layers(const ModelConfig& config, const FusionSettings& settings,
                                     const std::function<FusedLayer(int layer)>& layer_of);

// The layers among the bottom `num_storage` that a fused layer can read, ascending.
std::vector<int> readable_sources(const ModelConfig& config, int layer, int num_storage);

// As Method::fill_table.
void fill_fusion_table(PlanTable& table, const PlanRequest& request);

// How a method's fused layers get their factors.
enum class FusionWeights {
  kOnes,    // keys and values as they are
  kFitted,  // by FusionSettings
};

// Error listing every layer's R^2 where one is below FusionSettings::min_r2, unless settings.any_fit, `mixed` or a
// distillation allow it.
void check_fits(const std::vector<FusedReport>& fits, const ConvertSettings& settings);

// As Method::convert: the fit of every fused layer goes to job.result.fused. check_fits() of them; where `mixed`, layers
// that fit badly become plain.
void convert_fused_layers(ConversionJob& job, FusionWeights weights);

}  // namespace kvc
