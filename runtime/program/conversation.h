// A conversation over one KV cache: every turn is rendered with the chat template, and only tokens
// that are not in the cache are read.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "model/chat/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/generate.h"
#include "runtime/turn_sequence.h"

namespace kvc {

struct ConversationOptions {
  std::string system;               // the system message; empty: none
  Json arguments = Json::object();  // further variables of the template
  GenerateOptions generate;
  std::vector<std::string> stop;   // an answer ends before the first of these texts
  std::int64_t max_positions = 0;  // of the model; a longer conversation is warned of
};

class Conversation {
 public:
  // Arguments passed by reference must outlive the conversation.
  Conversation(std::unique_ptr<TurnSequence> sequence, const Tokenizer& tokenizer,
               const ChatTemplate& chat_template, ConversationOptions options);

  struct Answer {
    std::string text;
    std::vector<std::int64_t> tokens;  // without the one that ended it
    std::int64_t num_read = 0;         // prompt tokens that were not in the cache already
    std::int64_t num_prompt = 0;       // prompt tokens in all
    bool interrupted = false;
    double read_seconds = 0, write_seconds = 0;
  };
  // `show` receives the text as it appears. `stopped` is called before every token and while the prompt
  // is read; true ends the answer. A turn that ends without an answer is dropped.
  Answer say(const std::string& text, const std::function<void(std::string_view)>& show,
             const Stopped& stopped);

  const TurnSequence& sequence() const { return *sequence_; }

 private:
  void read(const std::vector<std::int64_t>& ids, const Stopped& stopped, Answer& answer);
  void write(const std::vector<std::int64_t>& prompt,
             const std::function<void(std::string_view)>& show, const Stopped& stopped,
             Answer& answer);

  std::unique_ptr<TurnSequence> sequence_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& chat_template_;
  ConversationOptions options_;
  std::time_t started_;  // templates that print the date print the same one in every turn
  std::vector<ChatMessage> messages_;
  std::uint64_t turns_ = 0;  // read so far
  bool warned_ = false;
};

}  // namespace kvc
