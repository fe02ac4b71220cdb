#include "runtime/program/conversation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "runtime/program/prompts.h"
#include "runtime/text_stream.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kTurnSeeds =
    0x9E3779B97F4A7C15;  // between seeds of turns, far from those of samples

}  // namespace

Conversation::Conversation(std::unique_ptr<TurnSequence> sequence, const Tokenizer& tokenizer,
                           const ChatTemplate& chat_template, ConversationOptions options)
    : sequence_(std::move(sequence)),
      tokenizer_(tokenizer),
      chat_template_(chat_template),
      options_(std::move(options)),
      started_(std::time(nullptr)) {
  if (!options_.system.empty()) messages_.push_back({"system", options_.system});
}

// A cache whose ids are the beginning of `ids` is extended; another one is dropped, e.g. when a template changes what it
// said of earlier turns.
void Conversation::read(const std::vector<std::int64_t>& ids, const Stopped& stopped,
                        Answer& answer) {
  const std::vector<std::int64_t>& held = sequence_->ids();
  if (held.size() >= ids.size() || !std::equal(held.begin(), held.end(), ids.begin())) {
    sequence_->clear();
  }
  const std::vector<std::int64_t> added(ids.begin() + static_cast<std::ptrdiff_t>(held.size()),
                                        ids.end());
  answer.num_read = static_cast<std::int64_t>(added.size());
  answer.num_prompt = static_cast<std::int64_t>(ids.size());
  if (!warned_) {
    warned_ = warn_about_length(answer.num_prompt + options_.generate.max_new_tokens,
                                options_.max_positions);
  }
  GenerateOptions options = options_.generate;
  options.seed += kTurnSeeds * turns_++;
  options.stopped = stopped;
  sequence_->read(added, options);
}

void Conversation::write(const std::vector<std::int64_t>& prompt,
                         const std::function<void(std::string_view)>& show, const Stopped& stopped,
                         Answer& answer) {
  Continuation continuation(tokenizer_, prompt, options_.stop);
  const std::vector<std::int64_t>& stops = options_.generate.stop_ids;
  const auto is_full = [&] {
    return static_cast<std::int64_t>(answer.tokens.size()) >= options_.generate.max_new_tokens;
  };
  while (!is_full()) {
    answer.interrupted = stopped();
    if (answer.interrupted) break;
    const std::int64_t token = sequence_->next();
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    answer.tokens.push_back(token);
    show(continuation.push(token));
    if (continuation.stopped() || is_full()) break;  // a later turn reads the last token
    sequence_->append();
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
    read(prompt, stopped, answer);
    answer.read_seconds = seconds_since(start);
    const auto written = Clock::now();
    write(prompt, show, stopped, answer);
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
