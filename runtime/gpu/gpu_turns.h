// A text on a GPU that grows turn by turn: its cache grows before each turn, whose steps are a separate program.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/gpu/gpu_batch.h"
#include "runtime/gpu/gpu_engine.h"
#include "runtime/turn_sequence.h"

namespace kvc {

// No step is queued ahead of the one whose token is inspected, so the cache's contents are known when a turn
// ends.
class GpuTurns : public TurnSequence {
 public:
  explicit GpuTurns(const GpuEngine& engine) : engine_(engine) {}

  const std::vector<std::int64_t>& ids() const override { return ids_; }
  KvBytes bytes() const override { return cache_ ? cache_->bytes(0) : KvBytes(); }
  void clear() override;
  void read(const std::vector<std::int64_t>& added, const GenerateOptions& options) override;
  std::int64_t next() override;
  void append() override;
  // Peak of the cache since it was last empty.
  std::int64_t peak_bytes() const { return cache_ ? cache_->peak_bytes() : 0; }

 private:
  void make_room();

  const GpuEngine& engine_;
  std::vector<std::int64_t> ids_;
  std::int64_t token_ = 0;
  std::unique_ptr<GpuCache> cache_;  // null: nothing has been read
  GenerateOptions options_;          // of the turn, as are those that follow
  StepSequences sequences_;
  std::optional<GpuBatch> batch_;
};

}  // namespace kvc
