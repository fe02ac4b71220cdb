// What cases of latents and of coded tokens share: key projections as kernels take them, launches, references.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/reference_rows.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"

namespace kvc::testing {

struct RankShape {
  std::vector<int> num_rows{37};
  std::vector<int> first_rows{};
  int num_heads = 4, num_kv_heads = 2, head_dim = 64, num_parts = 2;
  int key_rank = 40, value_rank = 72;
  DeviceElement element = DeviceElement::kBFloat16, store = DeviceElement::kBFloat16;
  bool per_channel = false, norm = false, offset = false, interleaved = false;
  bool positions = false, paged = false;  // positions that are no run; in pages
  int rotated = -1;                       // channels; -1: all
  int num_stored = 0;                     // rotary pairs of each head that the latent holds
  bool own = false;                       // projections of each sequence
  float softcap = 0;
  // Coded tokens.
  int num_blocks = 0;
  bool gain = false;

  int num_pairs() const { return (rotated < 0 ? head_dim : rotated) / 2; }
  int num_sequences() const { return static_cast<int>(num_rows.size()); }
  int longest() const;
};

// Random queries, angles, key projection [num_kv_heads * head_dim, rank]; the launch's params but for the store.
class RankInputs {
 public:
  RankInputs(KernelBackend& backend, const RankShape& shape, int rank, int sums_width);

  // A channel's key is the latent's column `column` itself (of the rank that makes keys).
  void store_channel(int kv_head, int channel, int column);
  // What a sequence's own projections are of the first ones.
  static float own_factor(std::size_t sequence) { return sequence % 2 == 0 ? 1.0f : -0.5f; }
  // Once all channels are known: the projection as kernels take it. first_column: of the latent's row.
  void upload_keys(KernelBackend& backend, const std::vector<std::int32_t>& first_column);

  // A key from what stands for its latent, and gain; then bias, norm and RoPE.
  ReferenceRow key(std::size_t sequence, std::int64_t row, std::int64_t kv_head,
                   const ReferenceRow& latent, double gain) const;
  // Runs the kernels and compares them with the reference: sums of values, and values projected from them.
  using Reader =
      std::function<ReferenceRow(std::size_t sequence, std::int64_t row, std::int64_t kv_head)>;
  std::string check(KernelBackend& backend, const Reader& read_key, const Reader& read_value) const;

  RankAttention device;

 private:
  void upload_pages(KernelBackend& backend);
  // For each sequence, in the place of `rows` [.., stride].
  const void* const* upload_own(KernelBackend& backend, const std::vector<float>& rows) const;
  std::vector<float> own_keys() const;
  std::vector<float> expected_sums(const Reader& read_key, const Reader& read_value) const;
  std::string check_projection(KernelBackend& backend, const std::vector<float>& sums) const;
  bool is_stored(int kv_head, int pair) const;

  RankShape shape_;
  int rank_;
  CaseAngles angles_;
  std::vector<float> query_, projection_, offset_, norm_, scale_;
  std::vector<std::int32_t> positions_;
  std::vector<int> stored_;  // [num_kv_heads, head_dim] column, or -1
};

}  // namespace kvc::testing
