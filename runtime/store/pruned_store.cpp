#include "runtime/store/pruned_store.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kCopiedRows = 1024;  // bounds the copy of keys and values

}  // namespace

PrunedStore::PrunedStore(const KvPlan& plan, const StoreOptions& options,
                         std::int64_t kept_channels)
    : head_dim_(plan.head_dim),
      kept_channels_(kept_channels),
      pruned_{.key = {options.pool,
                      {.shape = {plan.num_kv_heads, kept_channels}, .dtype = options.dtype}},
              .value = exact_store(plan, options).value},
      whole_(exact_store(plan, options)),
      mask_(options.pool, plan.num_kv_heads * ((plan.head_dim + 7) / 8)) {}

void PrunedStore::set_channels(const at::Tensor& channels) {
  KVC_CHECK(!has_channels() && channels.size(1) == kept_channels_,
            "KV cache: {} channels of keys, expected {} and once", channels.size(1),
            kept_channels_);
  mask_.resize(1);
  std::byte* mask = mask_.writable(0);
  std::fill_n(mask, mask_.block_bytes(), std::byte{0});
  const std::int64_t head_bytes = (head_dim_ + 7) / 8;
  const auto chosen = channels.accessor<std::int64_t, 2>();
  for (std::int64_t head = 0; head < chosen.size(0); ++head) {
    for (std::int64_t i = 0; i < kept_channels_; ++i) {
      const std::int64_t channel = chosen[head][i];
      mask[head * head_bytes + channel / 8] |= std::byte{1} << (channel % 8);
    }
  }
}

at::Tensor PrunedStore::channels() const {
  const std::byte* mask = mask_.data(0);
  const std::int64_t head_bytes = (head_dim_ + 7) / 8;
  std::vector<std::int64_t> chosen;
  for (std::int64_t byte = 0; byte < mask_.block_bytes(); ++byte) {
    for (std::int64_t bit = 0; bit < 8; ++bit) {
      if ((mask[byte] & std::byte{1} << bit) != std::byte{0}) {
        chosen.push_back(byte % head_bytes * 8 + bit);
      }
    }
  }
  return at::tensor(chosen, at::kLong).view({-1, kept_channels_});
}

void PrunedStore::prune(std::int64_t count) {
  const at::Tensor index = channels().unsqueeze(0);
  for (std::int64_t first = 0; first < count; first += kCopiedRows) {
    const std::int64_t rows = std::min(kCopiedRows, count - first);
    const at::Tensor key = whole_.key.rows(first, rows, whole_.key.dtype());
    pruned_.append(key.gather(2, index.expand({rows, -1, -1})),
                   whole_.value.rows(first, rows, whole_.value.dtype()));
  }
  whole_.key.erase(0, count);
  whole_.value.erase(0, count);
}

}  // namespace kvc
