#include "model/tokenizer/vocabulary.h"

#include "core/error.h"

namespace kvc {

void Vocabulary::add(const std::string& token, std::int32_t id, const std::string& subject) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens_.size()) tokens_.resize(index + 1, nullptr);
  KVC_CHECK(tokens_[index] == nullptr, "{}: tokens \"{}\" and \"{}\" have one id, {}", subject,
            *tokens_[index], token, id);
  const auto [entry, inserted] = ids_.emplace(token, id);
  KVC_CHECK(inserted, "{}: token \"{}\" has two ids", subject, token);
  tokens_[index] = &entry->first;
}

std::optional<std::int32_t> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::token(std::int64_t id) const {
  return id >= 0 && id < id_bound() ? tokens_[static_cast<std::size_t>(id)] : nullptr;
}

}  // namespace kvc
