// Text sampled from the model itself, for calibration without text of the user's own.
//
// Rows of token ids, sampled at temperature 1 without any filter from the tokens that a text begins with. A
// token that ends a text stays in the row. The tokens that begin a text follow it, and the next text
// continues in the same row with the same cache, as packed texts in training. Nothing is decoded to text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "model/config.h"
#include "runtime/generate.h"

namespace kvc {

// Tokens that begin and end a model's texts.
struct TextBounds {
  // The tokenizer's tokens before a text, else bos_token_id, else an end token; empty if there is none.
  std::vector<std::int64_t> start;
  std::vector<std::int64_t> ends;  // eos_token_id and, if a text has one, its first token
};
TextBounds text_bounds(const std::filesystem::path& model, const ModelConfig& config);

struct SelfTextOptions {
  std::int64_t num_sequences = 64;
  std::int64_t seq_len = 512;  // tokens of each, the first ones included
  std::uint64_t seed = 0;
  std::string device = "cpu";  // the CPU if the GPU runtime does not support the model
};

using Rows = std::vector<std::vector<std::int64_t>>;
// As generate() of an engine.
using GenerateRows =
    std::function<GenerateResult(const Engine::Ids&, const GenerateOptions&, const TokenVisitor&)>;

// Rows first_row, first_row + 1, ... of a text, sampled as a batch. Throws Interrupted. `advance` is
// called for every token.
Rows write_rows(const GenerateRows& generate, const TextBounds& bounds,
                const SelfTextOptions& options, std::int64_t first_row, std::int64_t num_rows,
                const std::function<void()>& advance);

// All inputs of the rows, for provenance. Error if no token begins a text.
Json self_text_settings(const Checkpoint& checkpoint, const ModelConfig& config,
                        const SelfTextOptions& options);
// options.num_sequences rows, as many at a time as their caches allow; `written` are the first of them, from
// an earlier run with the same settings. `keep` receives all rows after each batch, so a killed run can
// resume. Equal options and threads give equal rows.
Rows write_self_text(const Checkpoint& checkpoint, const ModelConfig& config,
                     const SelfTextOptions& options, Rows written,
                     const std::function<void(const Rows&)>& keep);

}  // namespace kvc
