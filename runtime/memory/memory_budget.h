// A limit on what KV caches may take. What the caches themselves leave of it holds rebuilt keys and values,
// group after group; they are the first to go when a cache grows.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "model/decoder.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/store/kv_cache.h"

namespace kvc {

// Bytes of "2GiB", "512 MiB", "1.5GB", "1000000". UsageError naming `flag` for anything else.
std::int64_t parse_bytes(const std::string& flag, const std::string& text);

class MemoryBudget {
 public:
  // `limit`: bytes of all blocks of the stores' pool.
  MemoryBudget(std::int64_t limit, StoreOptions stores, KvDtype dtype);

  // Gives up rebuilt keys and values until counts[i] more tokens of caches[i] fit, as a prompt or one
  // by one, with copies of the blocks that other caches share. `released`: bytes that are freed before. Error with the
  // numbers where they do not fit even then.
  void make_room(const std::vector<KvCache*>& caches, const std::vector<std::int64_t>& counts,
                 bool is_prompt, std::int64_t released = 0) const;
  // Bytes that are freed, at least, if the cache is dropped.
  std::int64_t own_bytes(const KvCache& cache) const;
  // Rebuilds as much as fits, with room left for the next block of every cache; of the last group that
  // fits in part, its first latents.
  void use_room(const Decoder& decoder, const LatentFactors& factors,
                const std::vector<KvCache*>& caches) const;

 private:
  std::int64_t growth(const KvCache& cache, std::int64_t count, bool is_prompt) const;
  std::int64_t copied_bytes(const KvCache& cache, std::int64_t count, bool is_prompt) const;
  std::int64_t page() const { return stores_.pool->page_tokens(); }

  std::int64_t limit_;
  StoreOptions stores_;
  KvDtype dtype_;
};

// All rebuilt keys and values.
void give_up_rebuilt(const std::vector<KvCache*>& caches);

}  // namespace kvc
