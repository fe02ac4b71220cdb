// Beam search: as transformers' generate() with num_beams, length_penalty 1 and early_stopping False.
#pragma once

#include "runtime/beam_choice.h"
#include "runtime/engine.h"
#include "runtime/generate.h"

namespace kvc {

// Error for more samples than beams.
BeamOptions beam_options(const GenerateOptions& options);

// The options.num_samples best texts of every prompt, finished by an end token or by max_new_tokens. A
// text's score is the mean log probability of its tokens, including the end token. Prompts are processed
// one after the other; beams share common memory. The bytes of a result are those of the best beam still
// running. If options.stopped ends the search, texts are the best so far.
GenerateResult search_beams(const Engine& engine, const Engine::Ids& prompts,
                            const GenerateOptions& options);

}  // namespace kvc
