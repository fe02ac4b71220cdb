#include "runtime/program/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/json.h"
#include "core/progress.h"
#include "model/tokenizer/utf8.h"
#include "runtime/program/conversation.h"
#include "runtime/program/generation_config.h"
#include "runtime/program/prompts.h"
#include "runtime/program/runner.h"
#include "runtime/text_stream.h"

namespace kvc {
namespace {

constexpr std::size_t kMaxLineBytes = std::size_t{1} << 24;

volatile std::sig_atomic_t answer_stopped = 0;

extern "C" void stop_answer(int) { answer_stopped = 1; }
extern "C" void leave(int) { ::_exit(static_cast<int>(ExitCode::kInterrupted)); }

// While it lives, a signal does something else than to end the run in an orderly way.
class SignalScope {
 public:
  SignalScope(int signal, void (*handler)(int)) : signal_(signal) {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, &before_);
  }
  ~SignalScope() { sigaction(signal_, &before_, nullptr); }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  int signal_;
  struct sigaction before_ = {};
};

// A line of standard input without its end; nullopt where it ends.
std::optional<std::string> next_line(bool is_terminal) {
  // There is nothing to put in order while the program waits.
  const SignalScope interrupt(SIGINT, leave), termination(SIGTERM, leave);
  check_interrupt();  // one that came before, as while the model was loaded
  if (is_terminal) print_now("> ");
  std::string line;
  for (int c = std::getchar(); c != EOF && c != '\n'; c = std::getchar()) {
    line += static_cast<char>(c);
    KVC_CHECK(line.size() <= kMaxLineBytes, "standard input: a line of more than {} bytes",
              kMaxLineBytes);
  }
  KVC_CHECK(std::ferror(stdin) == 0, "standard input: cannot be read: {}", std::strerror(errno));
  if (line.empty() && std::feof(stdin) != 0) return std::nullopt;
  if (line.ends_with('\r')) line.pop_back();
  KVC_CHECK(!first_invalid_utf8(line), "standard input: a line is not UTF-8; convert the text");
  return line;
}

Json answer_json(const Conversation& conversation, const Conversation::Answer& answer) {
  return {{"text", answer.text},
          {"tokens", answer.tokens},
          {"prompt_tokens", answer.num_prompt},
          {"read_tokens", answer.num_read},
          {"interrupted", answer.interrupted},
          {"kv",
           {{"bytes", conversation.sequence().bytes().total()},
            {"tokens", conversation.sequence().ids().size()}}}};
}

// False if Ctrl-C ended the answer. Throws Interrupted behind it if SIGTERM ended the run.
bool turn(Conversation& conversation, const std::string& text, const RunOptions& options) {
  answer_stopped = 0;
  const SignalScope interrupt(SIGINT, stop_answer);
  const auto stopped = [] { return answer_stopped != 0 || is_interrupted(); };
  const auto show = [&](std::string_view piece) {
    if (!options.json) print_now(piece);
  };
  const Conversation::Answer answer = conversation.say(text, show, stopped);
  print_now(options.json ? answer_json(conversation, answer).dump() + "\n" : "\n");
  check_interrupt();
  if (!options.stats) return !answer.interrupted;
  fmt::print(stderr,
             "read {} of {} prompt tokens in {:.3f} s, wrote {} in {:.3f} s; kv {} bytes of {} "
             "tokens\n",
             answer.num_read, answer.num_prompt, answer.read_seconds, answer.tokens.size(),
             answer.write_seconds, conversation.sequence().bytes().total(),
             conversation.sequence().ids().size());
  return !answer.interrupted;
}

Json template_arguments(const RunOptions& options) {
  if (options.chat_arguments.empty()) return Json::object();
  const Json arguments = parse_json(options.chat_arguments, "--chat-arguments");
  KVC_CHECK_USAGE(arguments.is_object(), "--chat-arguments: expected a JSON object, found {}",
                  excerpt(arguments));
  return arguments;
}

}  // namespace

void chat(const RunOptions& options) {
  KVC_CHECK_USAGE(options.generate.num_samples == 1,
                  "--chat cannot be combined with --num-samples");
  KVC_CHECK_USAGE(options.generate.prefill_tokens == 0,
                  "--chat cannot be combined with --prefill-tokens; a turn is read as a whole");
  KVC_CHECK_USAGE(options.ids.empty() && options.logits.empty(),
                  "--chat cannot be combined with --ids or --logits");
  KVC_CHECK_USAGE(options.prompt.empty() || options.prompt_file.empty(),
                  "--prompt and --prompt-file exclude each other");
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  const ChatTemplate chat_template =
      options.chat_template.empty()
          ? ChatTemplate::load(options.model, "Pass one with --chat-template, or leave --chat out")
          : ChatTemplate::read(options.chat_template, options.model);
  ConversationOptions conversation_options{options.system, template_arguments(options),
                                           options.generate, options.stop};
  const Runner runner = load_runner(options);
  conversation_options.max_positions = runner.config.max_position_embeddings;
  if (!options.ignore_eos) {
    conversation_options.generate.stop_ids = stop_ids(options.model, runner.config);
  }
  Conversation conversation(runner.turns(), tokenizer, chat_template,
                            std::move(conversation_options));
  if (!options.prompt.empty() || !options.prompt_file.empty()) {
    const std::string prompt =
        options.prompt_file.empty() ? options.prompt : read_prompt_text(options.prompt_file);
    if (!turn(conversation, prompt, options)) throw Interrupted();
    return;
  }
  const bool is_terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  if (is_terminal) log_info("/exit or Ctrl-D ends the conversation, Ctrl-C an answer");
  while (const auto line = next_line(is_terminal)) {
    if (*line == "/exit") break;
    if (!line->empty()) turn(conversation, *line, options);
  }
  if (is_terminal) print_now("\n");
}

}  // namespace kvc
