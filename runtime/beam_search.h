// Beam search: as transformers' generate() with num_beams, length_penalty 1 and early_stopping False.
#pragma once

#include "runtime/beam_choice.h"
#include "runtime/engine.h"
#include "runtime/generate.h"

namespace kvc {

// Error for more samples than beams.
BeamOptions beam_options(const GenerateOptions& options);

// Of every prompt the options.num_samples best texts that were finished by an end token or by
// max_new_tokens; a text's score is the mean logarithm of its tokens' probabilities, the end token's
// included. One prompt after the other; beams share what they have in common. The bytes of a result are
// those of the best beam that was still running. Where options.stopped ends it, texts are the best so far.
GenerateResult search_beams(const Engine& engine, const Engine::Ids& prompts,
                            const GenerateOptions& options);

}  // namespace kvc
