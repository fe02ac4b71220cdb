#include "runtime/run_report.h"

#include <fmt/format.h>

#include "runtime/text_stream.h"

namespace kvc {
namespace {

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// What the original model's cache would allocate for the same tokens, in the same pages.
std::int64_t original_allocation(const Engine& engine, std::int64_t num_tokens) {
  const std::int64_t page = engine.allocator().page_tokens();
  return original_bytes(engine.plan(), (num_tokens + page - 1) / page * page, engine.kv_dtype());
}

Json kv_json(const Engine& engine, const Generated& sequence) {
  const std::int64_t original = original_allocation(engine, sequence.num_tokens);
  Json json;
  json["bytes"] = sequence.bytes.total();
  json["original_bytes"] = original;
  json["kept_ratio"] = static_cast<double>(sequence.bytes.total()) / static_cast<double>(original);
  json["tokens"] = sequence.num_tokens;
  json["segments"] = {{"plain", sequence.bytes.plain},
                      {"merged", sequence.bytes.merged},
                      {"unmerged", sequence.bytes.unmerged},
                      {"pending", sequence.bytes.pending}};
  return json;
}

Json text_json(const Prompts& prompts, std::size_t index, const Generated& sequence) {
  return prompts.tokenizer
             ? Json(continuation_text(*prompts.tokenizer, prompts.ids[index], sequence.tokens))
             : Json();
}

Json timing_json(const GenerateTiming& timing, double load_seconds) {
  Json json;
  json["load_seconds"] = load_seconds;
  json["prefill_seconds"] = timing.prefill_seconds;
  json["prefill_tokens"] = timing.prefill_tokens;
  json["prefill_tokens_per_second"] = rate(timing.prefill_tokens, timing.prefill_seconds);
  json["decode_seconds"] = timing.decode_seconds;
  json["decode_tokens"] = timing.decode_tokens;
  json["decode_tokens_per_second"] = rate(timing.decode_tokens, timing.decode_seconds);
  return json;
}

}  // namespace

Json run_json(const Engine& engine, const Prompts& prompts, const GenerateResult& result,
              double load_seconds) {
  Json tokens = Json::array(), texts = Json::array(), kv = Json::array();
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    tokens.push_back(result.sequences[i].tokens);
    texts.push_back(text_json(prompts, i, result.sequences[i]));
    kv.push_back(kv_json(engine, result.sequences[i]));
  }
  Json json;
  json["tokens"] = prompts.is_batch ? tokens : tokens.front();
  json["text"] = prompts.is_batch ? texts : texts.front();
  json["kv"] = prompts.is_batch ? kv : kv.front();
  json["timing"] = timing_json(result.timing, load_seconds);
  return json;
}

std::string run_statistics(const Engine& engine, const GenerateResult& result,
                           double load_seconds) {
  const GenerateTiming& timing = result.timing;
  KvBytes bytes;
  std::int64_t original = 0;
  for (const Generated& sequence : result.sequences) {
    bytes.plain += sequence.bytes.plain;
    bytes.merged += sequence.bytes.merged;
    bytes.unmerged += sequence.bytes.unmerged;
    bytes.pending += sequence.bytes.pending;
    original += original_allocation(engine, sequence.num_tokens);
  }
  std::string text = fmt::format("load     {:.3f} s\n", load_seconds);
  text += fmt::format("prefill  {} tokens, first token after {:.3f} s, {:.1f} tokens/s\n",
                      timing.prefill_tokens, timing.prefill_seconds,
                      rate(timing.prefill_tokens, timing.prefill_seconds));
  text += fmt::format("decode   {} tokens in {:.3f} s, {:.1f} tokens/s\n", timing.decode_tokens,
                      timing.decode_seconds, rate(timing.decode_tokens, timing.decode_seconds));
  text += fmt::format("weights  {} bytes\n", engine.weight_bytes());
  text += fmt::format(
      "kv       {} bytes of {} ({:.3f}): plain {}, merged {}, unmerged {}, pending {}; peak {}",
      bytes.total(), original, static_cast<double>(bytes.total()) / static_cast<double>(original),
      bytes.plain, bytes.merged, bytes.unmerged, bytes.pending, engine.allocator().peak_bytes());
  return text;
}

}  // namespace kvc
