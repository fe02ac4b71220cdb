// conversion.h5 and conversion.safetensors: what the conversion stage hands to export. The directory holds
//   conversion.h5          plan, settings, report per group and coded block, provenance
//   conversion.safetensors factors, float32 except codes; for group g (stacked rows: layer by layer, key channels and then
//                          value channels):
//     kvconvert.groups.<g>.latent_proj               [rank, hidden_size]      A
//     kvconvert.groups.<g>.encoder                   [rank, 2*G*kv_dim]       P, rule ls
//     kvconvert.groups.<g>.reconstruct_proj          [2*G*kv_dim, rank]       B
//     kvconvert.groups.<g>.merged_reconstruct_proj   [2*G*kv_dim, rank]       B refitted for merged tokens
//   and for split groups (Palu):
//     kvconvert.groups.<g>.key.latent_proj           [key_rank, hidden_size]
//     kvconvert.groups.<g>.key.reconstruct_proj      [kv_dim, key_rank]
//     kvconvert.groups.<g>.value.latent_proj, .value.reconstruct_proj         likewise
//   and for groups of calibrated principal directions (xkv-static, PCA), whose y is complete:
//     kvconvert.groups.<g>.mean                      [2*G*kv_dim]
//     kvconvert.groups.<g>.encoder                   [rank, 2*G*kv_dim]       E: h = E (y - mean)
//     kvconvert.groups.<g>.reconstruct_proj          [2*G*kv_dim, rank]       F: y ~ F h + mean
//     kvconvert.groups.<g>.key.encoder, .key.reconstruct_proj, .value. likewise   in place of both where split,
//                                                    of the layers' keys, or values, alone
//   for coded block b of n stacked channels and k coefficients (core/kv_sources.h):
//     kvconvert.coded.<b>.encoder                    [k, n]                   E
//     kvconvert.coded.<b>.decoder                    [n, k]                   F
//     kvconvert.coded.<b>.decoder_codes              [n, n] or [n, k], int8   E and F in 8 bits, where that adds at most 0.2 % to the error;
//     kvconvert.coded.<b>.decoder_low, .decoder_scale, .channel_scale, .encoder_codes   as in model/basis_codes.h
//     kvconvert.coded.<b>.basis                      [k]                      number of each coefficient's basis, where keys
//                                                    have several: n / bases channels replace n in E and F
//     kvconvert.coded.<b>.mean                       [n]
//     kvconvert.coded.<b>.steps                      [k]                      of the quantiser
//     kvconvert.coded.<b>.first                      [n]                      y of a text's first token, where it is a code
//   for fused layer l with sources s in the plan's order; keys before RoPE, pairs as HuggingFace halves:
//     kvconvert.fused.<l>.key, .value                [sources, kv_dim]        form channel
//     kvconvert.fused.<l>.key                        [sources, 2, kv_dim / 2] form complex: real, imaginary
//     kvconvert.fused.<l>.key, .value                [kv_dim, sources * kv_dim]   form full
//   and for weights of fused layers that were tuned (--tune-layers):
//     kvconvert.tuned.<tensor>                       as the checkpoint's tensor of that name, which it replaces
//   and beside a matrix of factors that --factor-dtype auto stores in 8 bits:
//     <matrix>.wide                                  int64 [1], the number of its coefficients with 16 bits
// A factored checkpoint holds those that its plan's policy uses, under the same names, and codes in place of E and F
// (--factor-dtype auto). A matrix in 8 bits is int8 there, and has <matrix>.scale and perhaps <matrix>.low beside it
// (model/coefficient_codes.h). Tuned weights have the name of their tensor. Every joint group has all but `encoder` (rule
// ls only) and `merged_reconstruct_proj` (refit only).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/kv_plan.h"
#include "core/provenance.h"

namespace kvc {

inline constexpr const char* kTunedPrefix = "kvconvert.tuned.";

// Report of one group.
struct GroupReport {
  int group = 0, first_layer = 0, num_layers = 0;
  std::int64_t rank = 0;
  double energy_kept = 0;      // sum of kept eigenvalues / sum of all
  double pivot_condition = 0;  // of the pivot gauge's transform; 0: gauge of the factorisation
  double optimum_error = 0;    // bounds |squared error - dropped eigenvalues| / sum of all
  double key_error = 0, value_error = 0;  // relative Frobenius error on calibration data, unmerged
  double merged_key_error = 0, merged_value_error = 0;  // the same for merged tokens
  double bytes_per_token_plain = 0, bytes_per_token_merged = 0;
  std::vector<double> singular_values;  // s_i, descending, kept ones
};

// Report of one fused layer.
struct FusedReport {
  int layer = 0;
  double key_r2 = 0, value_r2 = 0;  // fit of its keys and values on calibration data
  bool stays_plain = false;         // its fit was too bad (kvconvert --mixed)
};

// Report of one coded block. Errors are means per token under the conversion's metric. With the
// gradient's metric, half of their sum over blocks is the expected KL divergence.
struct CodedReport {
  int first_layer = 0, num_layers = 0;
  int head = -1;  // KV head; -1: all
  std::int64_t coefficients = 0;
  std::int64_t bits = 0;  // of a token's codes
  bool gain = false;
  double energy = 0;           // error if a token were dropped
  double predicted_error = 0;  // on the tokens that steps were chosen for
  double measured_error = 0;   // on others
  double bytes_per_token_plain = 0, bytes_per_token = 0;
};

struct Conversion {
  KvPlan plan;
  std::vector<GroupReport> report;  // [num_groups]
  std::vector<FusedReport> fused;   // ascending by layer
  Json distillation;                // steps and KL divergences of a distillation; null: none
  std::vector<CodedReport> coded;   // [num_coded_blocks]
  Json settings;
  std::vector<std::string> calibration_hashes;  // SHA-256 of the calibration texts
  Provenance provenance;
  std::filesystem::path tensors;  // conversion.safetensors
  std::string tensors_checksum;   // as conversion.h5 states it; empty: it states none
};

Json to_json(const GroupReport& report);
Json to_json(const FusedReport& report);
Json to_json(const CodedReport& report);
// Writes <directory>/conversion.h5, with a checksum of conversion.safetensors, which the caller has written there.
void write_conversion(const std::filesystem::path& directory, const Conversion& conversion);
// `path`: the directory or the conversion.h5 in it.
Conversion read_conversion(const std::filesystem::path& path);
// Error if the tensors are not those that conversion.h5 was written for.
void check_conversion_tensors(const Conversion& conversion);
// Can both files be opened, and are the tensors undamaged?
bool is_whole_conversion(const std::filesystem::path& directory);

}  // namespace kvc
