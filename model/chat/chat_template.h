// A checkpoint's chat template: a conversation as the text that the model was trained on, as
// transformers' apply_chat_template renders it. Needs no torch.
#pragma once

#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "model/chat/jinja_ast.h"

namespace kvc {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

// {"bos_token": "<s>", ...}: the texts of the directory's special tokens, those of its tokenizer's class where its files
// name none.
Json special_tokens(const std::filesystem::path& directory);

class ChatTemplate {
 public:
  // The directory's chat_template.jinja, or else "chat_template" of its tokenizer_config.json; of
  // several named ones the one named "default". Error when there is none, with what to do instead.
  static ChatTemplate load(const std::filesystem::path& directory, const std::string& remedy);
  // Another template, with the directory's special tokens.
  static ChatTemplate read(const std::filesystem::path& file,
                           const std::filesystem::path& directory);
  // `special_tokens`: an object, e.g. {"bos_token": "<s>"}. `subject` names the template in errors.
  ChatTemplate(std::string_view source, const Json& special_tokens, std::string subject);

  // `arguments`: an object of further variables, e.g. {"enable_thinking": false}; `now` is what
  // strftime_now tells. The text ends where the assistant's answer begins.
  std::string render(const std::vector<ChatMessage>& messages, const Json& arguments,
                     std::time_t now) const;
  // The same over variables as they are: messages, tools, add_generation_prompt ...
  std::string render(const Json& variables, std::time_t now) const;
  const std::string& subject() const { return subject_; }
  const std::string& hash() const { return hash_; }  // SHA-256 of the source and the special tokens

 private:
  std::string subject_, hash_;
  std::map<std::string, jinja::Value> special_tokens_;
  std::shared_ptr<const jinja::Block> block_;
};

}  // namespace kvc
