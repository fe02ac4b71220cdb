// How alike the layers of a model are: what the papers on shared caches argue from. Every pair of layers,
// on a sample of tokens.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "core/token_set.h"

namespace kvc {

struct AnalysisOptions {
  std::int64_t num_tokens = 1024;  // at most, evenly spread over the token set
  std::filesystem::path
      conversion;  // conversion.h5 or its directory: also its groups' latents A x; or empty
};

// Writes a directory with similarity.h5 and a heat map of each of its matrices (<name>.svg):
//   /hidden_cosine, key_cosine, value_cosine   [num_layers, num_layers] float64, mean over tokens of the
//                                              cosine of two layers' vectors
//   /hidden_cka, key_cka, value_cka            linear CKA (methods: ||X^T Y||^2 / (||X^T X|| ||Y^T Y||), means
//                                              removed)
//   /latent_cosine, /latent_cka                likewise, not a number between layers of different groups
// hidden: inputs of the projections; keys before RoPE, with bias. Error when the model's cache has no keys
// and values, or the conversion belongs to another checkpoint or has no latents.
void analyze(const Checkpoint& checkpoint, const TokenSet& tokens, const AnalysisOptions& options,
             const std::filesystem::path& out, bool force);

// {"num_layers", "matrices": {name: mean similarity of a layer and the next one}}
Json analysis_summary(const std::filesystem::path& out);

// layers[i]: [num_tokens, width] float32, all of one width; an undefined one has no vectors, and what
// compares it is not a number. Both: [layers, layers] float64, symmetric, 1 on the diagonal.
at::Tensor cosine_matrix(const std::vector<at::Tensor>& layers);  // mean over tokens
at::Tensor cka_matrix(const std::vector<at::Tensor>& layers);     // linear; 0 for constant vectors

// `values` [size, size], row 0 on top; blank where not a number. Colours run from `low` (dark) to `high`.
std::string heat_map(const std::string& title, std::span<const double> values, int size, double low,
                     double high);

}  // namespace kvc
