// What tokenizer_config.json and the files beside it say of a directory that has a tokenizer.model
// and no tokenizer.json, read as transformers reads them for its sentencepiece tokenizers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvc {

// A string that becomes one token wherever it stands in a text.
struct SplitToken {
  std::string content;
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // joins text that touches it instead of splitting it
};

struct SentencepieceSettings {
  enum class Family { kLlama, kGemma };

  Family family = Family::kLlama;
  // Llama: every stretch of text between special tokens gets the model's leading space. Otherwise
  // only the beginning of the whole text does.
  bool legacy = true;
  bool add_prefix_space = true;  // without `legacy`: whether the beginning does
  bool add_bos = true, add_eos = false;
  std::optional<std::string> bos, eos, unknown;
  std::vector<SplitToken> special;      // bos, eos, unknown and the others, in transformers' order
  std::vector<std::string> additional;  // those of them that have no name
  std::map<std::int32_t, SplitToken> added;  // by id; special tokens may be missing
};

// Error for a tokenizer_class that is neither LlamaTokenizer nor GemmaTokenizer and for settings
// that ask for something else than these do.
SentencepieceSettings read_sentencepiece_settings(const std::filesystem::path& directory);

}  // namespace kvc
