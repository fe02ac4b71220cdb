// Similarity of sets of vectors, one set per layer, the same tokens in each.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace kvc {

// layers[i]: [num_tokens, width] float32, all of one width; an undefined one has no vectors, and what
// compares it is not a number. Both: [layers, layers] float64, symmetric, 1 on the diagonal.
at::Tensor cosine_matrix(const std::vector<at::Tensor>& layers);  // mean over tokens
at::Tensor cka_matrix(const std::vector<at::Tensor>& layers);     // linear; 0 for constant vectors

}  // namespace kvc
