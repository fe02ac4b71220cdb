#include "model/text.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/progress.h"

namespace kvc {

namespace {

using Ids = std::vector<std::int64_t>;

// A text that is read twice would count as more evidence than there is.
void drop_repeated(std::vector<TextSource>& sources) {
  std::set<std::string> seen;
  std::erase_if(sources, [&seen](const TextSource& source) {
    const bool is_new = seen.insert(source.hash).second;
    if (!is_new) {
      log_warning(
          fmt::format("{}: has the bytes of another of the texts, and is left out", source.name));
    }
    return !is_new;
  });
}

std::vector<TextSource> read_text_sources(const std::vector<std::filesystem::path>& files,
                                          bool builtin, const std::string& split) {
  std::vector<TextSource> sources;
  for (const std::filesystem::path& file : files) {
    const std::string extension = file.extension().string();
    if (extension == ".h5") continue;
    const bool is_directory = std::filesystem::is_directory(file);
    KVC_CHECK(!is_directory && (extension == ".txt" || extension == ".jsonl"),
              "{}: {}, expected .txt, .jsonl or .h5 (tokens.h5)", file.string(),
              is_directory ? "is a directory" : fmt::format("the name ends in \"{}\"", extension));
    sources.push_back(read_text_source(file));
  }
  if (files.empty() || builtin) {
    const std::string text(split == "evaluation" ? builtin_evaluation_text()
                                                 : builtin_calibration_text());
    sources.push_back({fmt::format("built-in {} text", split), text, sha256_hex(text)});
  }
  drop_repeated(sources);
  return sources;
}

// Full rows of one source; its only row when it does not fill one.
std::vector<Ids> cut_rows(const TextSource& source, const Tokenizer& tokenizer,
                          std::int64_t seq_len) {
  const Ids ids = tokenizer.encode(source.text, false);
  KVC_CHECK(!ids.empty(), "{}: the tokenizer makes no token of this text", source.name);
  const auto num_special = static_cast<std::int64_t>(tokenizer.with_special_tokens({}).size());
  KVC_CHECK_USAGE(seq_len > num_special,
                  "sequences of {} tokens leave no room beside {} special tokens; use longer ones",
                  seq_len, num_special);
  const auto num_ids = static_cast<std::int64_t>(ids.size());
  const std::int64_t row_ids = std::min(seq_len - num_special, num_ids);
  std::vector<Ids> rows;
  for (std::int64_t begin = 0; begin + row_ids <= num_ids; begin += row_ids) {
    rows.push_back(
        tokenizer.with_special_tokens(Ids(ids.begin() + begin, ids.begin() + begin + row_ids)));
  }
  return rows;
}

// SplitMix64: a well mixed number from a seed.
std::uint64_t mix(std::uint64_t seed) {
  seed += 0x9E3779B97F4A7C15u;
  seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9u;
  seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBu;
  return seed ^ (seed >> 31);
}

// Row floor((i * total + offset) / wanted) for each i, offset in [0, total): distinct and evenly
// spread.
std::vector<Ids> choose_rows(std::vector<Ids> rows, const TextOptions& options) {
  const std::uint64_t total = rows.size();
  const auto wanted = static_cast<std::uint64_t>(options.num_sequences);
  if (wanted == 0 || wanted >= total) return rows;
  const std::uint64_t offset = mix(options.seed) % total;
  std::vector<Ids> chosen;
  for (std::uint64_t i = 0; i < wanted; ++i) {
    chosen.push_back(std::move(rows[(i * total + offset) / wanted]));
  }
  return chosen;
}

void append_token_file(const std::filesystem::path& path, const Tokenizer& tokenizer,
                       std::int64_t vocab_size, TokenSet& tokens) {
  TokenSet file = read_token_set(path, vocab_size);
  KVC_CHECK(file.tokenizer_hash == tokenizer.hash(),
            "{}: made with another tokenizer.json (hash {}, expected {}); tokenize the text again",
            path.string(), file.tokenizer_hash, tokenizer.hash());
  KVC_CHECK(!file.sequences.empty(), "{}: holds no sequence", path.string());
  KVC_CHECK(tokens.split != "calibration" || file.split == tokens.split,
            "{}: of the {} split; statistics come from text that nothing is judged on, so give a "
            "token set of the calibration split",
            path.string(), file.split);
  std::move(file.sequences.begin(), file.sequences.end(), std::back_inserter(tokens.sequences));
  std::move(file.source_hashes.begin(), file.source_hashes.end(),
            std::back_inserter(tokens.source_hashes));
}

void check_vocabulary(const std::vector<Ids>& rows, std::int64_t vocab_size) {
  for (const Ids& row : rows) {
    for (const std::int64_t id : row) {
      KVC_CHECK(id < vocab_size,
                "tokenizer.json gives token id {}, but config.json has vocab_size {}; the two "
                "belong to different models",
                id, vocab_size);
    }
  }
}

}  // namespace

TokenSet load_token_set(const std::vector<std::filesystem::path>& files, const Tokenizer& tokenizer,
                        std::int64_t vocab_size, const TextOptions& options,
                        const std::string& split) {
  KVC_CHECK_USAGE(options.num_sequences >= 0, "the number of sequences is {}, expected 0 or more",
                  options.num_sequences);
  TokenSet tokens;
  tokens.tokenizer_hash = tokenizer.hash();
  tokens.split = split;
  std::vector<Ids> rows;
  for (const TextSource& source : read_text_sources(files, options.builtin, split)) {
    tokens.source_hashes.push_back(source.hash);
    for (Ids& row : cut_rows(source, tokenizer, options.seq_len)) rows.push_back(std::move(row));
  }
  tokens.sequences = choose_rows(std::move(rows), options);
  check_vocabulary(tokens.sequences, vocab_size);
  for (const std::filesystem::path& file : files) {
    if (file.extension() == ".h5") append_token_file(file, tokenizer, vocab_size, tokens);
  }
  return tokens;
}

}  // namespace kvc
