// tokenizer.json, natively: byte-level BPE and Metaspace-style BPE with byte fallback. Every
// component that is not supported is refused by its name.
#pragma once

#include <filesystem>
#include <memory>

#include "model/tokenizer/tokenizer_backend.h"

namespace kvc {

// Its hash is the file's SHA-256.
std::unique_ptr<TokenizerBackend> read_json_tokenizer(const std::filesystem::path& file);

}  // namespace kvc
