// Continues a text twice, from one reading of it: greedily and sampled.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "runtime/engine.h"
#include "runtime/sampler.h"
#include "runtime/text_stream.h"

namespace {

using Rows = kvc::Engine::Rows;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Prints 40 tokens as they appear. `sequence` holds the prompt, `logits` follow its last token.
void continue_text(const kvc::Engine& engine, const kvc::Tokenizer& tokenizer,
                   const std::vector<std::int64_t>& prompt, kvc::Sequence sequence,
                   at::Tensor logits, kvc::Sampler sampler) {
  kvc::TextStream stream(tokenizer, prompt);
  for (int i = 0; i < 40; ++i) {
    const std::int64_t token = sampler.next(logits);
    print(stream.push(token));
    logits = engine.extend({&sequence}, {{token}}, Rows::kLast).front().select(0, -1);
  }
  print(stream.finish() + "\n");
  const kvc::KvBytes bytes = sequence.cache().bytes();
  std::fprintf(stderr, "%lld KV bytes of %lld tokens, %lld of them merged\n",
               static_cast<long long>(bytes.total()), static_cast<long long>(sequence.num_tokens()),
               static_cast<long long>(bytes.merged));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: continue_text MODEL TEXT\n");
    return 2;
  }
  const kvc::Tokenizer tokenizer = kvc::Tokenizer::load(argv[1]);
  const kvc::Engine engine = kvc::Engine::load(argv[1], {});
  const std::vector<std::int64_t> prompt = tokenizer.encode(argv[2]);
  kvc::Sequence sequence = engine.new_sequence();
  const at::Tensor logits =
      engine.prefill({&sequence}, {prompt}, Rows::kLast).front().select(0, -1);
  continue_text(engine, tokenizer, prompt, sequence.fork(), logits, kvc::Sampler({}, 0));
  kvc::SamplingOptions sampling;
  sampling.temperature = 0.8;
  continue_text(engine, tokenizer, prompt, sequence.fork(), logits, kvc::Sampler(sampling, 1));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "continue_text: %s\n", error.what());
  return 1;
}
