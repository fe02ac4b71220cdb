// A token policy's view of plain layers that keep the same tokens: every KV head makes its own choice, unless
// layers that read them mix heads.
#pragma once

#include <functional>

#include "runtime/attention/kept_group.h"

namespace kvc {

class KeptPlain : public SharedTokens {
 public:
  // How the attending layer reads the rows.
  struct Reader {
    std::function<at::Tensor()> keys;  // [rows, num_kv_heads, head_dim]
    std::function<SlotRows()> slots;
  };
  KeptPlain(const Decoder& decoder, const SharingLayers& sharing, KvCache& cache, Reader reader);
  // For one of the plain layers.
  static Reader reader_of(const Decoder& decoder, int layer, const KvCache& cache);

  at::Tensor keys(std::int64_t /*num_tokens*/) const override { return reader_.keys(); }
  SlotRows slots(std::int64_t /*num_tokens*/) const override { return reader_.slots(); }
  std::int64_t num_rows() const override { return first().num_rows(); }
  at::Tensor scores() const override { return first().scores(); }
  void set_scores(const at::Tensor& scores) override { first().set_scores(scores); }
  at::Tensor summed(const at::Tensor& scores) const override {
    return first().per_head() ? scores : scores.sum(1, true);
  }
  bool scores_steps() const override { return first().per_head(); }
  void choose(const TokenPolicy& policy, bool is_step, KeptGroup& kept) override;

 private:
  KeptRows& first() const { return *members_.front().rows; }

  std::vector<KeptMember> members_;
  Reader reader_;
};

}  // namespace kvc
