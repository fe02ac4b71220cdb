// A token policy's view of a latent group.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/attention/kept_group.h"
#include "runtime/attention/latent_attention.h"

namespace kvc {

class KeptLatents : public TokensOfAllHeads {
 public:
  KeptLatents(const Decoder& decoder, const TokenPolicy& policy, const GroupLayer& layer,
              LatentStore& store)
      : decoder_(decoder), policy_(policy), layer_(layer), store_(store) {}

  at::Tensor keys(std::int64_t num_tokens) const override;
  SlotKeys slots(std::int64_t num_tokens) const override;
  at::Tensor scores() const override { return store_.scores(); }
  void set_scores(const at::Tensor& scores) override { store_.set_scores(scores); }

 protected:
  bool has_merged() const override { return !store_.slots().empty(); }
  at::Tensor positions() const override { return store_.positions(); }
  void remove(const std::vector<std::int64_t>& rows, bool is_step) override;

 private:
  const Decoder& decoder_;
  const TokenPolicy& policy_;
  GroupLayer layer_;
  LatentStore& store_;
};

}  // namespace kvc
