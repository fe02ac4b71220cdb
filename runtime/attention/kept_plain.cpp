#include "runtime/attention/kept_plain.h"

#include <utility>

#include "runtime/attention/kept_attention.h"
#include "runtime/attention/plain_attention.h"

namespace kvc {
namespace {

KeptRows::TurnKeys turn_of(const Decoder& decoder, int layer) {
  return [&decoder, layer](const at::Tensor& key, const at::Tensor& positions) {
    return key_of_codes(decoder, layer, key, positions);
  };
}

}  // namespace

KeptPlain::KeptPlain(const Decoder& decoder, const SharingLayers& sharing, KvCache& cache,
                     Reader reader)
    : reader_(std::move(reader)) {
  for (const int layer : sharing.storage) {
    members_.push_back({&cache.kept_layer(layer).rows, turn_of(decoder, layer)});
  }
}

KeptPlain::Reader KeptPlain::reader_of(const Decoder& decoder, int layer, const KvCache& cache) {
  const KeptRows& rows = cache.kept_layer(layer).rows;
  const double alpha = cache.policy().alpha;
  return {.keys = [&rows, turn = turn_of(decoder, layer)] { return rows.keys(turn); },
          .slots = [&rows, alpha] { return slot_rows(rows, alpha); }};
}

void KeptPlain::choose(const TokenPolicy& policy, bool is_step, KeptGroup& kept) {
  is_step ? finish_token(policy, {kept, members_}) : finish_prompt(policy, {kept, members_});
}

}  // namespace kvc
