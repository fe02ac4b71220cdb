// Sources of a layer's keys and values other than its own store: the parts of a KV plan (core/kv_plan.h).
// In all of them the stacked vector y of a token is, layer by layer, its key [kv_dim] and then its value
// [kv_dim], keys before RoPE.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kvc {

enum class KvSource { kPlain, kLatent, kCoded, kFused, kPaired };

std::string to_string(KvSource);
KvSource parse_kv_source(const std::string&);  // Error lists the known ones; likewise below

// Where the factors of a latent group come from.
//   weights     the projections. y is bias-free; with q/k norm the key is taken before its norm.
//   calibrated  principal directions of y over calibration text, part of the checkpoint (xkv-static, PCA)
//   request     principal directions of a request's own y, found when its prompt ends and kept in its
//               cache (xKV)
// For the last two, y has biases and keys are taken after their norm; every token that leaves the window
// has one latent for the whole group.
enum class LatentBasis { kWeights, kCalibrated, kRequest };

std::string to_string(LatentBasis);
LatentBasis parse_latent_basis(const std::string&);

// Adjacent layers that share one factorisation.
struct LatentGroup {
  int first_layer = 0;
  int num_layers = 0;
  bool split_kv = false;  // separate key and value latents; of weights (Palu) num_layers is then 1
  std::int64_t rank = 0;  // joint latent width; with split_kv key_rank + value_rank
  std::int64_t key_rank = 0;  // split_kv only
  std::int64_t value_rank = 0;
  std::vector<double> merge_weights;  // [num_layers], sum 1; mean, fisher and sensitivity only
  LatentBasis basis = LatentBasis::kWeights;

  // True if latents replace the key and value projections (Palu).
  bool replaces_projections() const { return split_kv && basis == LatentBasis::kWeights; }
  // Numbers of a latent that give keys, or values.
  std::int64_t key_width() const { return split_kv ? key_rank : rank; }
  std::int64_t value_width() const { return split_kv ? value_rank : rank; }
};

inline constexpr int kMaxCodeBits = 8;

// What of a layer's keys and values a coded block holds.
enum class CodedParts { kBoth, kKeys, kValues };

std::string to_string(CodedParts);
CodedParts parse_coded_parts(const std::string&);

// Keys and values that are coded together: of one KV head, one layer or adjacent layers. y has biases, and
// keys after their norm; for a head, head_dim replaces kv_dim. A token is z = E (y - mean), each
// coefficient a code of a fixed number of bits, and is rebuilt as F z + mean. A layer whose keys and values are
// coded apart has blocks of keys, then blocks of values.
struct CodedBlock {
  int first_layer = 0;
  int num_layers = 1;
  int head = -1;  // KV head; -1: all of them
  CodedParts part = CodedParts::kBoth;
  // Keys of one head: they have `bases` bases, of as many neighbouring rotary pairs each, so a coefficient
  // rebuilds head_dim / bases channels.
  int bases = 1;
  // Keys of one head: z = E R (y - mean), where R is RoPE at the token's position and E scales single channels.
  // Then a query meets codes without a rebuilt key. bases is head_dim / 2.
  bool rotated = false;
  // [bits] coefficients with that many bits; those with 0 are not stored. Ordered by falling width.
  std::array<std::int64_t, kMaxCodeBits + 1> coefficients{};
  bool gain = false;  // a byte per token that scales its steps

  std::int64_t num_coefficients() const;
  std::int64_t bits() const;  // of one token's codes, without gain
  bool has_keys() const { return part != CodedParts::kValues; }
  bool has_values() const { return part != CodedParts::kKeys; }
  // Keys and values of its layers: 2 for each layer, or 1.
  int num_parts() const { return part == CodedParts::kBoth ? 2 * num_layers : num_layers; }
};

// How a layer's keys and values follow from those of storage layers.
//   channel  k = sum_s a_s * k_s, channel by channel; both channels of a RoPE pair have one weight
//   complex  a rotation and a scale for every RoPE pair of the keys; values as channel
//   full     k = sum_s W_s k_s
enum class FusionForm { kChannel, kComplex, kFull };

std::string to_string(FusionForm);
FusionForm parse_fusion_form(const std::string&);

// A layer that stores nothing (FusedKV).
struct FusedLayer {
  int layer = 0;
  FusionForm form = FusionForm::kChannel;
  std::vector<int> key_sources, value_sources;  // plain layers below, ascending
  // Forms channel and complex: the source's KV head that each head reads, [sources, num_kv_heads] row by
  // row. Empty: the head of the same number.
  std::vector<int> key_heads{}, value_heads{};
};

// Pairs of adjacent layers that share the directions of a prompt's keys and of its values (MiniCache, arXiv
// 2405.14366). For a token and KV head, with unit vectors e_1 and e_2 of the lower and the upper layer at
// an angle O,
//   e = [sin((1 - t) O) e_1 + sin(t O) e_2] / sin O,   rebuilt as ||x_1|| e and ||x_2|| e
// Tokens whose angle (the mean over KV heads) is near the prompt's largest (or smallest) also keep the vectors
// of both layers; keys and values choose separately. Keys are post-RoPE; the interpolation commutes with RoPE.
struct PairedLayers {
  std::vector<int> first_layers;  // ascending; each is paired with the layer above it
  double position = 0.6;          // t, in [0, 1]
  // gamma, in [0, 1]: tokens with O > O_max - gamma (O_max - O_min) are kept, or with the most similar ones O
  // < O_min + gamma (O_max - O_min); at most this share of the tokens, the farthest first.
  double retained = 0.05;
  bool retains_similar = false;

  std::int64_t most_retained(std::int64_t tokens) const;  // gamma * tokens, rounded up
};

}  // namespace kvc
