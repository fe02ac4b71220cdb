#include "runtime/program/run_report.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <numeric>
#include <utility>

#include "runtime/program/memory_plan.h"

namespace kvc {
namespace {

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

std::int64_t original_of(const RunModel& model, const Generated& sequence) {
  return original_allocation(model.plan, sequence.num_tokens, model.page_tokens,
                             model.original_kv_dtype);
}

std::int64_t peak_resident_bytes() {
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

Json segments_json(const KvBytes& bytes) {
  Json json;
  for (const KvSegmentBytes& segment : kKvSegments) {
    json[segment.name] = bytes.*segment.bytes;
  }
  return json;
}

Json reuse_json(const ReuseReport& reuse) {
  Json json;
  json["donor"] = reuse.donor.empty() ? Json() : Json(reuse.donor);
  json["whole"] = reuse.whole.empty() ? Json() : Json(reuse.whole);
  json["similarity"] = reuse.similarity;
  json["hot_ratio"] = reuse.hot_ratio;
  json["seconds"] = reuse.seconds;
  json["donor_tokens"] = reuse.donor_tokens;
  json["donor_bytes"] = reuse.donor_bytes;
  json["recomputed"] = reuse.recomputed;
  json["retained"] = reuse.retained;
  return json;
}

Json kv_json(const RunModel& model, const Generated& sequence) {
  const std::int64_t original = original_of(model, sequence);
  Json json;
  json["bytes"] = sequence.bytes.total();
  json["original_bytes"] = original;
  json["kept_ratio"] = share_of_original(sequence.bytes.total(), original);
  json["tokens"] = sequence.num_tokens;
  json["policy"] = to_string(model.policy);
  json["segments"] = segments_json(sequence.bytes);
  if (sequence.reuse) {
    json["reuse"] = reuse_json(*sequence.reuse);
  }
  return json;
}

// One line: which donor, how much of it was computed anew and kept; or why the prompt was read as a whole.
std::string reuse_line(const ReuseReport& reuse) {
  if (reuse.donor.empty()) {
    return fmt::format("reuse    none: {} (similarity {:.3f})\n", reuse.whole, reuse.similarity);
  }
  const auto mean = [](const std::vector<std::int64_t>& tokens) {
    const auto sum = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
    return static_cast<double>(sum) / static_cast<double>(tokens.size());
  };
  return fmt::format(
      "reuse    donor {} of {} tokens, {} bytes, similarity {:.3f}, found in {:.3f} s; tokens per "
      "layer: {:.1f} computed, {:.1f} kept\n",
      reuse.donor, reuse.donor_tokens, reuse.donor_bytes, reuse.similarity, reuse.seconds,
      mean(reuse.recomputed), mean(reuse.retained));
}

Json parts_json(const PartTimes& parts) {
  Json json = Json::object();
  for (std::size_t i = 0; i < kPartNames.size(); ++i) {
    json[kPartNames[i]] = parts.seconds[i];
  }
  return json;
}

Json timing_json(const RunReport& report) {
  const GenerateTiming& timing = report.result.timing;
  Json json;
  json["load_seconds"] = report.load_seconds;
  json["first_token_seconds"] = timing.prefill_seconds;
  json["prefill_seconds"] = timing.prefill_seconds;
  json["prefill_tokens"] = timing.prefill_tokens;
  json["prefill_tokens_per_second"] = rate(timing.prefill_tokens, timing.prefill_seconds);
  json["decode_seconds"] = timing.decode_seconds;
  json["decode_tokens"] = timing.decode_tokens;
  json["decode_tokens_per_second"] = rate(timing.decode_tokens, timing.decode_seconds);
  if (report.model.has_part_times) {
    json["prefill_parts"] = parts_json(timing.prefill_parts);
    json["decode_parts"] = parts_json(timing.decode_parts);
  }
  return json;
}

std::string rebuilt_line(const RebuildCounts& counts) {
  return fmt::format("rebuilt  {} of {} latents' keys ({:.3f})\n", counts.rebuilt, counts.latents,
                     share_of_original(counts.rebuilt, counts.latents));
}

// Shares of the time that was measured, "model 80.0 %, attention 15.0 %, ...".
std::string shares(const PartTimes& parts) {
  const double total = std::accumulate(parts.seconds.begin(), parts.seconds.end(), 0.0);
  std::string text;
  for (std::size_t i = 0; i < kPartNames.size() && total > 0; ++i) {
    text += fmt::format("{}{} {:.1f} %", i == 0 ? "" : ", ", kPartNames[i],
                        100 * parts.seconds[i] / total);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

Json run_json(const RunReport& report) {
  Json tokens = Json::array(), texts = Json::array(), kv = Json::array();
  for (std::size_t i = 0; i < report.result.sequences.size(); ++i) {
    tokens.push_back(report.result.sequences[i].tokens);
    texts.push_back(report.texts.empty() ? Json() : Json(report.texts[i]));
    kv.push_back(kv_json(report.model, report.result.sequences[i]));
  }
  Json json;
  json["tokens"] = report.is_list ? tokens : tokens.front();
  json["text"] = report.is_list ? texts : texts.front();
  json["kv"] = report.is_list ? kv : kv.front();
  json["timing"] = timing_json(report);
  json["memory"] = {{"weight_bytes", report.model.weight_bytes},
                    {"kv_peak_bytes", report.model.kv_peak_bytes},
                    {"peak_resident_bytes", peak_resident_bytes()}};
  if (report.model.plan.selective) {
    const RebuildCounts& counts = report.result.timing.rebuilt;
    json["selective"] = {{"settings", to_string(*report.model.plan.selective)},
                         {"rebuilt", counts.rebuilt},
                         {"latents", counts.latents}};
  }
  json["interrupted"] = report.result.interrupted;
  return json;
}

std::string run_statistics(const RunReport& report) {
  const RunModel& model = report.model;
  const GenerateTiming& timing = report.result.timing;
  KvBytes bytes;
  std::int64_t original = 0;
  for (const Generated& sequence : report.result.sequences) {
    bytes += sequence.bytes;
    original += original_of(model, sequence);
  }
  std::string text = fmt::format("load     {:.3f} s\n", report.load_seconds);
  text += fmt::format("prefill  {} tokens, first token after {:.3f} s, {:.1f} tokens/s\n",
                      timing.prefill_tokens, timing.prefill_seconds,
                      rate(timing.prefill_tokens, timing.prefill_seconds));
  text += fmt::format("decode   {} tokens in {:.3f} s, {:.1f} tokens/s\n", timing.decode_tokens,
                      timing.decode_seconds, rate(timing.decode_tokens, timing.decode_seconds));
  if (model.has_part_times) {
    text += fmt::format("time     prefill: {}\n", shares(timing.prefill_parts));
    text += fmt::format("         decode: {}\n", shares(timing.decode_parts));
  }
  text += fmt::format("weights  {} bytes\n", model.weight_bytes);
  text += fmt::format("kv       {} bytes of {} ({:.3f})", bytes.total(), original,
                      share_of_original(bytes.total(), original));
  char separator = ':';
  for (const KvSegmentBytes& segment : kKvSegments) {
    text +=
        fmt::format("{} {} {}", std::exchange(separator, ','), segment.name, bytes.*segment.bytes);
  }
  text += fmt::format("; peak {}\n", model.kv_peak_bytes);
  text += model.plan.selective ? rebuilt_line(timing.rebuilt) : "";
  for (const Generated& sequence : report.result.sequences) {
    text += sequence.reuse ? reuse_line(*sequence.reuse) : "";
  }
  text += fmt::format("memory   {} bytes resident at the peak", peak_resident_bytes());
  return text;
}

}  // namespace kvc
