#include "runtime/conversation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/elapsed.h"
#include "core/error.h"
#include "runtime/sampler.h"
#include "runtime/text_stream.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

Conversation::Conversation(const Engine& engine, const Tokenizer& tokenizer,
                           const ChatTemplate& chat_template, ConversationOptions options)
    : engine_(engine),
      tokenizer_(tokenizer),
      chat_template_(chat_template),
      options_(std::move(options)),
      started_(std::time(nullptr)) {
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
}

// Logits behind the last of `ids`. A cache whose ids are their beginning is extended; another one is
// dropped, e.g. when a template changes what it said of earlier turns.
at::Tensor Conversation::read(const std::vector<std::int64_t>& ids, const Stopped& stopped,
                              Answer& answer) {
  const bool extends = sequence_ && cached_.size() < ids.size() &&
                       std::equal(cached_.begin(), cached_.end(), ids.begin());
  if (!extends) {
    sequence_.reset();
    sequence_ = engine_.new_sequence();
    cached_.clear();
  }
  const std::vector<std::int64_t> added(ids.begin() + static_cast<std::ptrdiff_t>(cached_.size()),
                                        ids.end());
  answer.num_read = static_cast<std::int64_t>(added.size());
  answer.num_prompt = static_cast<std::int64_t>(ids.size());
  cached_.clear();  // until all of it is read
  const at::Tensor logits =
      engine_.prefill({&*sequence_}, {added}, Engine::Rows::kLast, stopped).front().select(0, -1);
  cached_ = ids;
  return logits;
}

void Conversation::write(const std::vector<std::int64_t>& prompt, at::Tensor logits,
                         const std::function<void(std::string_view)>& show, const Stopped& stopped,
                         Answer& answer) {
  Continuation continuation(tokenizer_, prompt, options_.stop);
  Sampler sampler(options_.generate.sampling, options_.generate.seed, prompt);
  const std::vector<std::int64_t>& stops = options_.generate.stop_ids;
  while (static_cast<std::int64_t>(answer.tokens.size()) < options_.generate.max_new_tokens) {
    answer.interrupted = stopped();
    if (answer.interrupted) break;
    const std::int64_t token = sampler.next(logits);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    answer.tokens.push_back(token);
    show(continuation.push(token));
    if (continuation.stopped()) break;
    logits = engine_.extend({&*sequence_}, {{token}}, Engine::Rows::kLast).front().select(0, -1);
    cached_.push_back(token);
  }
  show(continuation.finish());
  answer.text = continuation.text();
}

Conversation::Answer Conversation::say(const std::string& text,
                                       const std::function<void(std::string_view)>& show,
                                       const Stopped& stopped) {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", text});
  const std::vector<std::int64_t> prompt = tokenizer_.encode(
      chat_template_.render(messages, options_.arguments, started_), /*add_special_tokens=*/false);
  KVC_CHECK(!prompt.empty(), "the chat template makes no text of this conversation");
  Answer answer;
  const auto start = Clock::now();
  try {
    const at::Tensor logits = read(prompt, stopped, answer);
    answer.read_seconds = seconds_since(start);
    const auto written = Clock::now();
    write(prompt, logits, show, stopped, answer);
    answer.write_seconds = seconds_since(written);
  } catch (const Interrupted&) {
    answer.interrupted = true;
  }
  if (!answer.interrupted || !answer.tokens.empty()) {
    messages.push_back({"assistant", answer.text});
    messages_ = std::move(messages);
  }
  return answer;
}

}  // namespace kvc
