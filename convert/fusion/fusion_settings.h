// Settings of a conversion to fused layers.
#pragma once

#include <cstdint>
#include <string>

#include "core/json.h"
#include "core/kv_sources.h"

namespace kvc {

// Which storage layers a fused layer reads.
//   paper   the bottom and the middle one (FusedKV, arXiv 2512.03870)
//   search  the pair that fits best, for keys and values separately
//   all     all of them; form full only
enum class FusionSources { kPaper, kSearch, kAll };
// Which KV head of a source a head reads: its own number, or the one that fits best.
enum class HeadMap { kSame, kSearch };

std::string to_string(FusionSources);
std::string to_string(HeadMap);
FusionSources parse_fusion_sources(
    const std::string&);  // Error lists the known ones; likewise below
HeadMap parse_head_map(const std::string&);
FusionForm parse_pair(const std::string&);    // --pair: "tied" is channel, "complex" complex
FusionForm parse_fusion(const std::string&);  // --fusion: "vectors" is channel, "matrices" full

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
  double min_r2 = 0.8;   // lowest fit of keys and values; below, a layer is refused
  bool mixed = false;    // a layer below stays plain instead
  bool any_fit = false;  // nothing is refused
  DistillSettings distill;
};

Json to_json(const FusionSettings& settings);
// UsageError naming a flag out of range.
void check_ranges(const FusionSettings& settings);

}  // namespace kvc
