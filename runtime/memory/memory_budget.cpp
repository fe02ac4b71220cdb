#include "runtime/memory/memory_budget.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/error.h"
#include "runtime/compression/expansion.h"
#include "runtime/memory/memory_forecast.h"

namespace kvc {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr Unit kUnits[] = {{"", 1},          {"B", 1},         {"kB", 1e3},    {"KB", 1e3},
                           {"MB", 1e6},      {"GB", 1e9},      {"TB", 1e12},   {"KiB", 1 << 10},
                           {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"K", 1 << 10}, {"M", 1 << 20},
                           {"G", 1 << 30},   {"TiB", 0x1p40}};

}  // namespace

std::int64_t parse_bytes(const std::string& flag, const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  unit.remove_prefix(std::min(unit.find_first_not_of(' '), unit.size()));
  const auto* found = std::find_if(std::begin(kUnits), std::end(kUnits),
                                   [unit](const Unit& row) { return row.name == unit; });
  const bool known = error == std::errc() && found != std::end(kUnits);
  const double bytes = known ? number * found->bytes : 0;
  KVC_CHECK_USAGE(known && bytes >= 1 && bytes < 0x1p62,
                  "{} {}: expected a number of bytes such as 2GiB, 512MiB or 1000000", flag, text);
  return static_cast<std::int64_t>(bytes);
}

MemoryBudget::MemoryBudget(std::int64_t limit, StoreOptions stores, KvDtype dtype)
    : limit_(limit), stores_(std::move(stores)), dtype_(dtype) {}

// Bytes on top of the cache's own, at most, while `count` tokens are added.
std::int64_t MemoryBudget::growth(const KvCache& cache, std::int64_t count, bool is_prompt) const {
  if (cache.holds_positions()) {
    std::int64_t bytes = 0;
    for (int layer = 0; layer < cache.plan().num_layers(); ++layer) {
      const std::int64_t rows = cache.plain_layer(layer).num_exact();
      bytes += retained_layer_bytes(cache.plan(), rows + count, dtype_, page()) -
               retained_layer_bytes(cache.plan(), rows, dtype_, page());
    }
    return bytes;
  }
  CacheForecast forecast(cache, dtype_, page());
  const std::int64_t before = forecast.bytes();
  return (is_prompt ? forecast.read(count) : forecast.extend(count)) - before;
}

// Bytes of blocks that other caches share and that `count` more tokens write into, at most: they are copied first.
// Rows are appended page by page until a block of tokens is compressed or coded; then exact rows and unmerged latents move,
// too.
std::int64_t MemoryBudget::copied_bytes(const KvCache& cache, std::int64_t count,
                                        bool is_prompt) const {
  if (stores_.pool->shared_bytes() == 0) {
    return 0;
  }
  const KvBytes bytes = cache.bytes();
  if (!cache.policy().is_full() || cache.holds_positions()) {
    return bytes.total();
  }
  const bool compresses =
      is_prompt || CacheForecast(cache, dtype_, page()).tokens_until_due() <= count;
  if (!compresses && !cache.shares_tail()) {
    return 0;
  }
  const bool merges = cache.plan().compression.rule != MergeRule::kNone;
  const std::int64_t moved = bytes.pending + (merges && compresses ? bytes.unmerged : 0);
  if (is_integer(dtype_) && compresses) {
    return moved + bytes.plain + bytes.merged + bytes.unmerged;
  }
  if (is_integer(dtype_)) {  // exact rows are larger than codes
    CacheForecast one_page(cache.plan(), KvDtype::kBFloat16, page(), MergeSpread::kNone);
    one_page.extend(page());
    return moved + one_page.bytes();
  }
  const std::int64_t pages = std::max<std::int64_t>(1, cache.num_tokens() / page());
  const std::int64_t appended =
      bytes.plain + bytes.merged + bytes.coded + (merges ? 0 : bytes.unmerged);
  return moved + (appended + pages - 1) / pages;
}

std::int64_t MemoryBudget::own_bytes(const KvCache& cache) const {
  return std::max<std::int64_t>(0, cache.bytes().total() - stores_.pool->shared_bytes());
}

void MemoryBudget::make_room(const std::vector<KvCache*>& caches,
                             const std::vector<std::int64_t>& counts, bool is_prompt,
                             std::int64_t released) const {
  std::int64_t grown = 0, tokens = 0, copied = 0;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    grown += growth(*caches[i], counts[i], is_prompt);
    tokens += counts[i];
    copied += copied_bytes(*caches[i], counts[i], is_prompt);
  }
  // Each time anew: what is given up below, others may share.
  const auto needed = [&] { return grown + std::min(copied, stores_.pool->shared_bytes()); };
  const auto allocated = [&] { return stores_.pool->allocated_bytes() - released; };
  const auto missing = [&] { return allocated() + needed() - limit_; };
  const auto groups = static_cast<int>(caches.front()->plan().groups.size());
  for (int group = groups - 1; group >= 0; --group) {
    for (KvCache* cache : caches) {
      if (missing() > 0) {
        const std::int64_t rows =
            missing() / expansion_row_bytes(cache->plan(), group, dtype_) + page();
        LatentStore& store = cache->group(group);
        shrink_expansion((expanded_rows(store) - rows) / page() * page(), store);
      }
    }
  }
  KVC_CHECK(missing() <= 0,
            "KV memory: the caches take {} bytes and {} more tokens need up to {}{}, the budget is "
            "{}; raise --memory to {} or more (--plan says what the whole run takes), shorten the "
            "text, or store less with --kv-dtype int8 or a "
            "smaller --kept-ratio",
            allocated(), tokens, needed(), is_prompt ? " while they are read" : "", limit_,
            allocated() + needed());
}

void MemoryBudget::use_room(const Decoder& decoder, const LatentFactors& factors,
                            const std::vector<KvCache*>& caches) const {
  if (!caches.front()->policy().is_full() || caches.front()->plan().selective) {
    return;  // tokens come and go, or few are rebuilt
  }
  std::int64_t reserve = 0;
  for (const KvCache* cache : caches) {
    reserve += growth(*cache, cache->plan().compression.block_tokens, false);
  }
  const auto groups = static_cast<int>(caches.front()->plan().groups.size());
  for (int group = 0; group < groups; ++group) {
    for (KvCache* cache : caches) {
      const std::int64_t held = expanded_rows(cache->group(group));
      const std::int64_t all =
          latent_rows_of(cache->plan(), group, cache->tokens()[static_cast<std::size_t>(group)]);
      const std::int64_t row_bytes = expansion_row_bytes(cache->plan(), group, dtype_);
      // Two parts may each begin a page.
      const std::int64_t room = (limit_ - stores_.pool->allocated_bytes() - reserve) / row_bytes;
      const std::int64_t rows =
          room >= all - held + 2 * page() ? all : held + (room - 2 * page()) / page() * page();
      if (rows > held) {
        expand_group(decoder, factors, stores_, group, rows, *cache);
      }
    }
  }
}

void give_up_rebuilt(const std::vector<KvCache*>& caches) {
  for (KvCache* cache : caches) {
    for (std::size_t group = 0; group < cache->plan().groups.size(); ++group) {
      shrink_expansion(0, cache->group(static_cast<int>(group)));
    }
  }
}

}  // namespace kvc
