// A latent group of a batch of sequences on a GPU: the segments of LatentStore (runtime/store), in pages.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// A request's principal directions, each sequence's own: a row has the coefficients of one channel of keys, in the
// order of their pairs (RankFactors::to_pairs), or of values. A sequence's rows are contiguous.
struct GpuBasis {
  GpuRows key, value;
};

// One layer's rows; absent if the plan has none. Keys are post-RoPE.
struct GpuGroupLayer {
  std::optional<GpuRows> pending_key, pending_value;    // exact: sinks, window, incomplete block
  std::optional<GpuRows> unmerged_key, unmerged_value;  // decided against merging
  std::optional<GpuRows> unmerged_latent;               // likewise, in latent form
  std::optional<GpuRows> held_latent;                   // of pending tokens in latent form
  std::optional<GpuRows> key_rms;  // of pending tokens, float32 [num_kv_heads]: undoes the norm
  std::vector<GpuBasis>
      bases;  // of merged latents, where they are the request's: the first of all sequences, ...
};

class GpuGroup {
 public:
  GpuGroup(const KvPlan& plan, int group, at::ScalarType dtype, const GpuPages& pages);

  // True if the group decides which tokens merge. Otherwise (Palu) every token is an unmerged latent at once, and pages
  // for all tokens are allocated.
  bool decides() const { return decides_; }
  // Raises the sequence's capacity to that many tokens. Earlier addresses become invalid.
  void allow(std::size_t sequence, std::int64_t tokens);
  // Allocates pages for a prompt's tokens, which become pending after those that already are.
  void begin_prompt(std::size_t sequence, std::int64_t num_tokens);
  // Counts tokens that a step has appended.
  void add_pending(std::size_t sequence, std::int64_t count) { pending_[sequence] += count; }
  // Decides the oldest pending tokens, sinks excluded: `merge` [n] bool on the CPU names those that get `latents`,
  // float32 [merged, rank]; the others become unmerged. Pending tokens then have pages for `capacity` tokens. n
  // may be 0.
  void decide(std::size_t sequence, const at::Tensor& merge, const at::Tensor& latents,
              std::int64_t capacity);
  // Another basis, for the next latents: every layer's rows in their stored form.
  struct BasisRows {
    at::Tensor key, value;
  };
  void add_basis(std::size_t sequence, const std::vector<BasisRows>& layers);
  std::int64_t num_bases(std::size_t sequence) const { return bases_[sequence]; }
  // A basis' rows of merged latents, on the device, int32 [num_sequences]: a half-open range.
  struct BasisRange {
    at::Tensor first_rows, num_rows;
  };
  const std::vector<BasisRange>& basis_ranges() const { return ranges_; }
  // The first of a basis' merged latents; for the basis after the last, their number.
  std::int64_t first_merged(std::size_t sequence, std::size_t basis) const;
  // Copies sequence `from` to `to`.
  void copy(std::size_t from, std::size_t to);

  GroupTokens tokens(std::size_t sequence) const;
  // The same for allocated pages: group_bytes() of these equals bytes().
  GroupTokens reserved(std::size_t sequence) const;
  // Positions of the next n pending tokens, sinks excluded. [n] int64, CPU
  at::Tensor next_positions(std::size_t sequence, std::int64_t count) const;
  // Bytes of the pages: merged, unmerged and pending.
  KvBytes bytes(std::size_t sequence) const;

  // On the device, int32 [num_sequences].
  const at::Tensor& num_merged() const { return num_merged_; }
  const at::Tensor& num_unmerged() const { return num_unmerged_; }

  std::vector<GpuGroupLayer> layers;  // [num_layers]
  std::optional<GpuRows> merged;      // latents [rank], of the whole group
  // int32; absent if they are consecutive from the sinks on. Groups that merge as a whole need not store positions
  // (group_bytes); kernels get them in separate memory.
  std::optional<GpuRows> merged_positions, unmerged_positions;
  // Pending tokens' weighted latent and float32 score, under rules with weights.
  std::optional<GpuRows> held_weighted, held_score;

 private:
  enum class Part { kMerged, kUnmerged, kPending, kBasis, kUncounted };  // of what is stored
  template <class Group, class Visit>
  static void visit_stores(Group& group, const Visit& visit);
  // For a group that decides nothing.
  void reserve_all(std::size_t sequence, std::int64_t tokens);
  void set_counts(std::size_t sequence);
  // Makes room for one more basis of any sequence.
  void allow_basis();

  std::int64_t sink_tokens_;
  bool decides_, stores_positions_;
  std::vector<std::int64_t> merged_rows_, unmerged_rows_, pending_, capacity_;  // [num_sequences]
  std::vector<std::int64_t> bases_;                                             // likewise
  GpuPages basis_pages_;
  std::int64_t key_width_ = 0, value_width_ = 0;  // of the request's directions
  at::ScalarType dtype_;
  std::vector<BasisRange> ranges_;                       // of each basis
  std::vector<std::vector<std::int64_t>> first_merged_;  // [num_sequences], of each of its bases
  at::Tensor num_merged_, num_unmerged_;
};

}  // namespace kvc
