#include "model/tokenizer/bpe.h"

#include <limits>
#include <queue>

#include <fmt/format.h>

#include "core/error.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::size_t kMaxCachedWordBytes = 256;
constexpr std::size_t kMaxCachedWords = 100'000;
constexpr std::int32_t kRemoved = -1;

// One token of the word; a doubly linked list inside a vector.
struct Symbol {
  std::int32_t id = 0;  // kRemoved: merged into its left neighbour
  std::int32_t previous = -1;
  std::int32_t next = -1;
};

// The tokens that single characters become.
class CharacterTokens {
 public:
  CharacterTokens(const BpeModel& model, std::string_view word) : model_(model) {
    const bool spelled_alone = model.prefix.empty() && model.suffix.empty();
    ids_.reserve(word.size());
    for (const Character& character : Characters(word)) {
      if (spelled_alone) {
        add(character.bytes);
      } else {
        add(spelling(character.bytes, character.begin == 0, character.end() == word.size()));
      }
    }
    flush_unknown();
  }

  const std::vector<std::int32_t>& ids() const { return ids_; }

 private:
  std::string spelling(std::string_view character, bool first, bool last) const {
    return fmt::format("{}{}{}", first ? "" : model_.prefix, character, last ? model_.suffix : "");
  }

  void add(std::string_view character) {
    if (const auto id = model_.vocabulary.id(character)) {
      flush_unknown();
      ids_.push_back(*id);
    } else if (!add_bytes(character) && !model_.unknown_token.empty()) {
      KVC_CHECK(model_.unknown, "the vocabulary has neither \"{}\" nor the unknown token \"{}\"",
                character, model_.unknown_token);
      if (!model_.fuse_unknown) flush_unknown();
      unknown_pending_ = true;
    }
  }

  // Leaves a pending unknown token pending, so that it comes after the bytes, as in the library.
  bool add_bytes(std::string_view character) {
    if (!model_.byte_fallback) return false;
    for (const char byte : character) {
      if (model_.byte_tokens[static_cast<unsigned char>(byte)] < 0) return false;
    }
    for (const char byte : character) {
      ids_.push_back(model_.byte_tokens[static_cast<unsigned char>(byte)]);
    }
    return true;
  }

  void flush_unknown() {
    if (unknown_pending_) ids_.push_back(*model_.unknown);
    unknown_pending_ = false;
  }

  const BpeModel& model_;
  std::vector<std::int32_t> ids_;
  bool unknown_pending_ = false;
};

class WordMerger {
 public:
  WordMerger(const MergeTable& merges, const std::vector<std::int32_t>& ids) : merges_(merges) {
    const auto count = static_cast<std::int32_t>(ids.size());
    symbols_.reserve(ids.size());
    for (std::int32_t i = 0; i < count; ++i) {
      symbols_.push_back({ids[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
    }
    std::vector<Candidate> candidates;
    for (std::int32_t i = 0; i + 1 < count; ++i) {
      if (const auto candidate = candidate_at(i)) candidates.push_back(*candidate);
    }
    queue_ = Queue(Later{}, std::move(candidates));
  }

  const std::vector<Symbol>& merge_all() {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      merge(top);
    }
    return symbols_;
  }

 private:
  struct Candidate {
    std::int32_t rank, position, merged;
  };
  struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const {
      return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
    }
  };
  using Queue = std::priority_queue<Candidate, std::vector<Candidate>, Later>;

  Symbol& symbol(std::int32_t position) { return symbols_[static_cast<std::size_t>(position)]; }

  std::optional<Candidate> candidate_at(std::int32_t position) {
    const Symbol& left = symbol(position);
    if (left.next < 0) return std::nullopt;
    const BpeMerge* merge = merges_.find(left.id, symbol(left.next).id);
    if (merge == nullptr) return std::nullopt;
    return Candidate{merge->rank, position, merge->merged};
  }

  void push(std::int32_t position) {
    if (const auto candidate = candidate_at(position)) queue_.push(*candidate);
  }

  void merge(const Candidate& top) {
    Symbol& left = symbol(top.position);
    if (left.id == kRemoved || left.next < 0) return;
    // The symbols may have changed since the candidate was queued; it holds while they still merge
    // into the same token, whatever the rank.
    const auto current = candidate_at(top.position);
    if (!current || current->merged != top.merged) return;
    Symbol& right = symbol(left.next);
    left.id = top.merged;
    left.next = right.next;
    right.id = kRemoved;
    if (left.next >= 0) symbol(left.next).previous = top.position;
    if (left.previous >= 0) push(left.previous);
    push(top.position);
  }

  const MergeTable& merges_;
  std::vector<Symbol> symbols_;
  Queue queue_;
};

}  // namespace

void bpe_encode(const BpeModel& model, std::string_view word, std::vector<std::int64_t>& ids) {
  if (model.ignore_merges) {
    if (const auto id = model.vocabulary.id(word)) {
      ids.push_back(*id);
      return;
    }
  }
  constexpr std::size_t kMaxBytes = std::numeric_limits<std::int32_t>::max();
  KVC_CHECK(word.size() <= kMaxBytes, "a piece of text of {} bytes is too long to tokenize",
            word.size());
  const CharacterTokens characters(model, word);
  WordMerger merger(model.merges, characters.ids());
  for (const Symbol& symbol : merger.merge_all()) {
    if (symbol.id != kRemoved) ids.push_back(symbol.id);
  }
}

void BpeCache::encode(std::string_view word, std::vector<std::int64_t>& ids) {
  if (const auto found = words_.find(word); found != words_.end()) {
    ids.insert(ids.end(), found->second.begin(), found->second.end());
    return;
  }
  const auto begin = static_cast<std::ptrdiff_t>(ids.size());
  bpe_encode(model_, word, ids);
  if (word.size() <= kMaxCachedWordBytes && words_.size() < kMaxCachedWords) {
    words_.emplace(word, std::vector<std::int64_t>(ids.begin() + begin, ids.end()));
  }
}

}  // namespace kvc
