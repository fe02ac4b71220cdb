// Tokens of coded layers that are stored together, as a token policy sees them.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/attention/kept_group.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/store/coded_store.h"

namespace kvc {

class KeptCodes : public TokensOfAllHeads {
 public:
  // index: of the layer that attended, among the store's
  KeptCodes(const Decoder& decoder, const KvPlan& plan, const CodedFactors& factors, int index,
            CodedStore& store)
      : decoder_(decoder), plan_(plan), factors_(factors), index_(index), store_(store) {}

  at::Tensor keys(std::int64_t num_tokens) const override;
  at::Tensor scores() const override { return store_.scores().tensor(); }
  void set_scores(const at::Tensor& scores) override {
    const std::int64_t codes = store_.num_codes();
    store_.scores().assign(scores.slice(0, 0, codes), scores.slice(0, codes));
  }

 protected:
  at::Tensor positions() const override { return store_.positions().tensor().to(at::kLong); }
  void remove(const std::vector<std::int64_t>& rows, bool is_step) override;

 private:
  const Decoder& decoder_;
  const KvPlan& plan_;
  const CodedFactors& factors_;
  int index_;
  CodedStore& store_;
};

}  // namespace kvc
