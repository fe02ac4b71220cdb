// A prompt that is read with the keys and values of a similar one (SemShareKV): the first layer computes all
// tokens, every later layer only some of those that the layer before it computed; the others keep what their
// matches in the donor had.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "model/decoder.h"
#include "runtime/prompt_reader.h"
#include "runtime/reuse/donor_file.h"
#include "runtime/reuse/reuse_options.h"
#include "runtime/reuse/reuse_report.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

struct ReusedPrompt {
  const std::vector<std::int64_t>& ids;
  const DonorPrompt& donor;
  at::Tensor match;  // [num_tokens] int64, the donor's token for each
};

// Hidden state of the last token after the last layer, [1, hidden_size]. Stores what each layer retains in the
// empty `cache`, all of whose layers are plain, but leaves its number of tokens as it is. Adds to the
// report what was recomputed and retained. Throws Interrupted.
at::Tensor read_reusing(const Decoder& decoder, const ReusedPrompt& prompt,
                        const ReuseOptions& options, KvCache& cache, ReuseReport& report,
                        const Stopped& stopped, PartTimes* times);

}  // namespace kvc
