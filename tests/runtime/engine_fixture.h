// Engines of tiny checkpoints, and what tests ask of them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/engine.h"
#include "tests/testing/synthetic_checkpoint.h"

namespace kvc::testing {

constexpr double kRounding = 2e-4;  // logits of order 1 after four layers in float32

using Row = std::vector<std::int64_t>;

// While alive, torch computes on one thread: tiny tensors gain nothing from more, and wait for them on a
// machine that has other work.
class OneThread {
 public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

Row part(const Row& ids, std::size_t first, std::size_t last);

EngineOptions pages_of(std::int64_t tokens);
EngineOptions cache_of(const std::string& dtype);
// 2 sinks, a window of 6, blocks of 5, 0.6 of the bytes.
CompressionSettings small_policy(MergeRule rule);

std::unique_ptr<Engine> load(const SyntheticCheckpoint& model, const KvPlan& plan,
                             const EngineOptions& options = {});
std::unique_ptr<Engine> load_plain(const SyntheticCheckpoint& model,
                                   const EngineOptions& options = {});

// The model without a cache.
class PlainModel {
 public:
  explicit PlainModel(const SyntheticCheckpoint& model);
  at::Tensor logits(const Row& ids) const;  // from one exact pass

 private:
  std::unique_ptr<Decoder> decoder_;
};

at::Tensor plain_logits(const SyntheticCheckpoint& model, const Row& ids);
// The first `prefill` ids as a prompt, the rest as a continuation of `chunk` ids at a time.
at::Tensor cached_logits(const Engine& engine, const Row& ids, std::size_t prefill,
                         std::size_t chunk, Sequence& sequence);
at::Tensor cached_logits(const Engine& engine, const Row& ids, std::size_t prefill,
                         std::size_t chunk);

// The formula's bytes, and what the pool really holds for this only sequence.
void expect_exact_bytes(const Engine& engine, const Sequence& sequence);

}  // namespace kvc::testing
