#include "model/tokenizer/regex.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include <oniguruma.h>

#include "core/error.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::uint64_t kFirstRetries = 200;
constexpr std::uint64_t kMoreRetries = 32;           // times as many in each further attempt
constexpr unsigned int kMaxStackEntries = 16 << 20;  // about 1 GB

// Oniguruma's strings are pointers to unsigned bytes.
const OnigUChar* onig_bytes(std::string_view text) {
  return reinterpret_cast<const OnigUChar*>(text.data());
}

void initialize_oniguruma() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
}

std::string error_text(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = info == nullptr ? onig_error_code_to_str(text, code)
                                     : onig_error_code_to_str(text, code, info);
  return std::string(reinterpret_cast<const char*>(text), static_cast<std::size_t>(length));
}

// For messages.
std::string beginning(const std::string& pattern) {
  constexpr std::size_t kMost = 200;
  if (pattern.size() <= kMost) return pattern;
  std::size_t end = kMost;
  while (utf8_sequence(pattern, end).length == 1 && !utf8_sequence(pattern, end).valid) --end;
  return pattern.substr(0, end) + "...";
}

struct FreeRegion {
  void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
};
struct FreeParameters {
  void operator()(OnigMatchParam* parameters) const { onig_free_match_param(parameters); }
};

}  // namespace

struct Regex::Compiled {
  struct Free {
    void operator()(regex_t* regex) const { onig_free(regex); }
  };
  std::unique_ptr<regex_t, Free> regex;
  std::string subject;
};

namespace {

// Searches in one text, from left to right.
class Search {
 public:
  Search(regex_t* regex, std::string_view text, SearchBudget& budget, const std::string& subject)
      : regex_(regex), text_(text), budget_(budget), subject_(subject) {
    KVC_CHECK(region_ && parameters_, "{}: out of memory", subject);
    onig_initialize_match_param(parameters_.get());
    onig_set_match_stack_limit_size_of_match_param(parameters_.get(), kMaxStackEntries);
    // Only the limit per search counts. (0, which stands for no limit, would not let it.)
    onig_set_retry_limit_in_match_of_match_param(parameters_.get(),
                                                 std::numeric_limits<unsigned long>::max());
  }

  // The first match at or after `begin`; false: there is none.
  bool find(std::size_t begin, TextSegment& match) {
    for (std::uint64_t retries = kFirstRetries;; retries *= kMoreRetries) {
      // (0, which stands for no limit, would let a search go on for ever.)
      KVC_CHECK(budget_.left() > 0,
                "{}: looking for the pattern in a text of {} bytes takes too long; the pattern "
                "backtracks without bound on it",
                subject_, text_.size());
      const int found = search(begin, std::min(retries, budget_.left()));
      if (retries > kFirstRetries) budget_.charge(retries);
      if (found != ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER &&
          found != ONIGERR_RETRY_LIMIT_IN_MATCH_OVER) {
        return read_match(found, match);
      }
    }
  }

 private:
  int search(std::size_t begin, std::uint64_t retries) {
    onig_set_retry_limit_in_search_of_match_param(parameters_.get(),
                                                  static_cast<unsigned long>(retries));
    const OnigUChar* text = onig_bytes(text_);
    const OnigUChar* end = text + text_.size();
    return onig_search_with_param(regex_, text, end, text + begin, end, region_.get(),
                                  ONIG_OPTION_NONE, parameters_.get());
  }

  bool read_match(int found, TextSegment& match) const {
    if (found == ONIG_MISMATCH) return false;
    KVC_CHECK(found >= 0, "{}: looking for the pattern in a text of {} bytes: {}", subject_,
              text_.size(), error_text(found));
    match = {static_cast<std::size_t>(region_->beg[0]), static_cast<std::size_t>(region_->end[0]),
             true};
    return true;
  }

  regex_t* regex_;
  std::string_view text_;
  SearchBudget& budget_;
  const std::string& subject_;
  std::unique_ptr<OnigRegion, FreeRegion> region_{onig_region_new()};
  std::unique_ptr<OnigMatchParam, FreeParameters> parameters_{onig_new_match_param()};
};

}  // namespace

Regex::Regex(const std::string& pattern, const std::string& subject)
    : compiled_(std::make_unique<Compiled>()) {
  initialize_oniguruma();
  compiled_->subject = subject;
  const std::string expanded = expand_unicode_classes(pattern, subject);
  regex_t* regex = nullptr;
  OnigErrorInfo info{};
  const OnigUChar* bytes = onig_bytes(expanded);
  const int code = onig_new(&regex, bytes, bytes + expanded.size(), ONIG_OPTION_NONE,
                            ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  KVC_CHECK(code == ONIG_NORMAL, "{}: the pattern \"{}\" is not valid: {}", subject,
            beginning(pattern), error_text(code, &info));
  compiled_->regex.reset(regex);
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

void Regex::find_all(std::string_view text, SearchBudget& budget,
                     std::vector<TextSegment>& segments) const {
  Search search(compiled_->regex.get(), text, budget, compiled_->subject);
  std::size_t done = 0;  // segments cover the text up to here
  bool any_match = false;
  TextSegment match;
  for (std::size_t begin = 0; begin <= text.size() && search.find(begin, match);) {
    if (match.begin == match.end && any_match && match.end == done) {
      begin += begin < text.size() ? code_point_at(text, begin).length : 1;
      continue;
    }
    if (done != match.begin) segments.push_back({done, match.begin, false});
    segments.push_back(match);
    begin = done = match.end;
    any_match = true;
  }
  if (done != text.size()) segments.push_back({done, text.size(), false});
}

}  // namespace kvc
