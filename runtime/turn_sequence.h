// A text that goes on turn by turn while its keys and values stay: a sequence of the engine, or one on a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/engine.h"
#include "runtime/generate.h"

namespace kvc {

class TurnSequence {
 public:
  virtual ~TurnSequence() = default;

  // The tokens whose keys and values it holds.
  virtual const std::vector<std::int64_t>& ids() const = 0;
  virtual KvBytes bytes() const = 0;
  // Forgets them.
  virtual void clear() = 0;
  // Appends at least one token as Engine::prefill does, behind which at most options.max_new_tokens are appended one
  // by one; those are sampled as `options` say, as one text with all that it holds. Throws Interrupted where
  // options.stopped says so. Whatever it throws, the sequence holds nothing then.
  virtual void read(const std::vector<std::int64_t>& ids, const GenerateOptions& options) = 0;
  // Samples the token that comes next; once after read() and append() each.
  virtual std::int64_t next() = 0;
  // Appends the token that next() gave, as Engine::extend does.
  virtual void append() = 0;
};

// The engine outlives it.
std::unique_ptr<TurnSequence> engine_turns(const Engine& engine);

}  // namespace kvc
