// tokenizer.model: a sentencepiece model, checked before the sentencepiece library sees it. The
// library trusts the lookup table of a normalizer and would read outside of a damaged one.
#pragma once

#include <filesystem>
#include <string>

namespace kvc {

// The file's bytes. Error naming the file unless it is a sentencepiece model whose pieces are
// UTF-8 with finite scores and whose tables stay inside themselves.
std::string read_sentencepiece_file(const std::filesystem::path& file);

// The same model without the space that it puts before every text (normalizer_spec.add_dummy_prefix
// false): of a field that stands twice in a protocol buffer the last one counts.
std::string without_dummy_prefix(std::string model);

}  // namespace kvc
