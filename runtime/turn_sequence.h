// A text that grows turn by turn and keeps its cache: a sequence of the engine, or one on a GPU.
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

  // The tokens in its cache.
  virtual const std::vector<std::int64_t>& ids() const = 0;
  virtual KvBytes bytes() const = 0;
  // Drops all tokens.
  virtual void clear() = 0;
  // Appends at least one token as Engine::prefill does. At most options.max_new_tokens may follow one by one,
  // sampled by `options` as one text with the tokens before. Throws Interrupted if options.stopped is true. After
  // any exception the sequence is empty.
  virtual void read(const std::vector<std::int64_t>& ids, const GenerateOptions& options) = 0;
  // Samples the next token; call once after each read() and append().
  virtual std::int64_t next() = 0;
  // Appends the token that next() gave, as Engine::extend does.
  virtual void append() = 0;
};

// The engine must outlive it.
std::unique_ptr<TurnSequence> engine_turns(const Engine& engine);

}  // namespace kvc
