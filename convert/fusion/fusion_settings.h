// What shapes a conversion to fused layers.
#pragma once

#include <cstdint>

#include "convert/convert.h"
#include "core/kv_sources.h"

namespace kvc {

// Which storage layers a fused layer reads.
//   paper   the bottom and the middle one (FusedKV, arXiv 2512.03870)
//   search  the pair that fits best, of keys and of values apart
//   all     all of them; form full only
enum class FusionSources { kPaper, kSearch, kAll };
// Which KV head of a source a head reads: its own number, or the one that fits best.
enum class HeadMap { kSame, kSearch };

struct DistillSettings {
  std::int64_t steps = 0;            // of AdamW; 0: the fit in closed form is kept
  std::int64_t batch_sequences = 1;  // calibration sequences of a step
  double rate = 1e-3;                // highest learning rate of factors
  bool tune_layers = false;          // W_q, W_o and norms of fused layers learn too
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

}  // namespace kvc
