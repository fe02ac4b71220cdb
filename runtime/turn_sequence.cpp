#include "runtime/turn_sequence.h"

#include <optional>

#include "runtime/sampler.h"

namespace kvc {
namespace {

class EngineTurns : public TurnSequence {
 public:
  explicit EngineTurns(const Engine& engine) : engine_(engine), sequence_(engine.new_sequence()) {}

  const std::vector<std::int64_t>& ids() const override { return ids_; }
  KvBytes bytes() const override { return sequence_.cache().bytes(); }

  void clear() override {
    sequence_ = engine_.new_sequence();
    ids_.clear();
  }

  void read(const std::vector<std::int64_t>& added, const GenerateOptions& options) override try {
    logits_ = engine_.prefill({&sequence_}, {added}, Engine::Rows::kLast, options.stopped).front();
    ids_.insert(ids_.end(), added.begin(), added.end());
    sampler_.emplace(options.sampling, options.seed, ids_);
    if (options.prompts_read) {
      options.prompts_read();
    }
  } catch (...) {
    clear();
    throw;
  }

  std::int64_t next() override {
    token_ = sampler_->next(logits_[-1]);
    return token_;
  }

  void append() override {
    logits_ = engine_.extend({&sequence_}, {{token_}}, Engine::Rows::kLast).front();
    ids_.push_back(token_);
  }

 private:
  const Engine& engine_;
  Sequence sequence_;
  std::vector<std::int64_t> ids_;
  std::optional<Sampler> sampler_;
  at::Tensor logits_;  // [n, vocab_size] behind the last of them
  std::int64_t token_ = 0;
};

}  // namespace

std::unique_ptr<TurnSequence> engine_turns(const Engine& engine) {
  return std::make_unique<EngineTurns>(engine);
}

}  // namespace kvc
