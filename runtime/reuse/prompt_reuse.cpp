#include "runtime/reuse/prompt_reuse.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/progress.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/reuse/faiss_match.h"
#include "runtime/reuse/reuse_reader.h"
#include "runtime/reuse/token_match.h"

namespace kvc {
namespace {

constexpr std::uint64_t kPlanes = 0;  // seed of hamming30's planes: a similarity is a similarity

std::string tokenizer_hash(const Checkpoint& checkpoint) {
  try {
    return Tokenizer::hash_of(checkpoint.directory());
  } catch (const Error&) {
    return "none";  // ids are given as numbers
  }
}

// RoPE whose angles are those of the position alone; plain layers with a key and a value for every head.
void check_reused_model(const ModelConfig& config, const KvPlan& plan) {
  const char* way_out = "run it without --donors";
  KVC_CHECK(!config.mla,
            "--donors: not supported with MLA, which caches latents instead of keys and values per "
            "head; {}",
            way_out);
  KVC_CHECK(std::any_of(config.layers.begin(), config.layers.end(),
                        [](const LayerSpec& layer) { return layer.rope >= 0; }),
            "--donors: the model has no RoPE, which matching requires; {}", way_out);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    KVC_CHECK(!config.depends_on_length(layer),
              "--donors: RoPE of layer {} depends on the length of the text, so keys of another "
              "text have other angles; {}",
              layer, way_out);
    const KvSource source = plan.layers[static_cast<std::size_t>(layer)];
    KVC_CHECK(
        source == KvSource::kPlain,
        "--donors: layer {} is {}, expected plain; run the checkpoint before its conversion, or {}",
        layer, to_string(source), way_out);
  }
}

void check_reuse_options(const ReuseOptions& options, const TokenPolicy& policy, KvDtype kv_dtype) {
  KVC_CHECK_USAGE(policy.is_full(),
                  "--policy {} cannot be combined with --donors, which drops tokens by --reuse "
                  "retention; leave one of the two out",
                  to_string(policy));
  KVC_CHECK_USAGE(!is_integer(kv_dtype) || options.retention == Retention::kAll,
                  "--kv-dtype {} with --donors: layers that drop tokens require 16-bit numbers; "
                  "add --reuse retention=all",
                  to_string(kv_dtype));
}

}  // namespace

void check_reuse(const ReuseOptions& options, const TokenPolicy& policy, KvDtype kv_dtype,
                 const ModelConfig& config, const KvPlan& plan) {
  if (options.donors.empty()) {
    return;
  }
  check_reused_model(config, plan);
  check_reuse_options(options, policy, kv_dtype);
}

DonorFormat donor_format(const Checkpoint& checkpoint, const ModelConfig& config,
                         at::ScalarType compute, at::ScalarType dtype,
                         const std::string& weight_dtype) {
  const Json binding{{"checkpoint", checkpoint.hash()},
                     {"tokenizer", tokenizer_hash(checkpoint)},
                     {"compute", at::toString(compute)},
                     {"keys", at::toString(dtype)},
                     {"weights", weight_dtype}};
  return {.binding = sha256_hex(binding.dump()),
          .num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .hidden_size = config.hidden_size,
          .vocab_size = config.vocab_size,
          .dtype = dtype};
}

PromptReuse::PromptReuse(ReuseModel model, DonorFormat format, ReuseOptions options)
    : model_(std::move(model)),
      format_(std::move(format)),
      options_(std::move(options)),
      store_(options_.donors, format_, options_.store_bytes) {}

PromptReuse::~PromptReuse() { wait(); }

void PromptReuse::wait() {
  if (writing_.valid()) {
    writing_.get();
  }
}

bool PromptReuse::is_long_enough(const std::vector<std::int64_t>& ids) const {
  return static_cast<std::int64_t>(ids.size()) >= options_.min_tokens;
}

at::Tensor PromptReuse::embeddings_of(const std::vector<std::int64_t>& ids) const {
  const at::Tensor tokens = at::tensor(ids, at::kLong).to(model_.device());
  return embed(model_.config, model_.weights, tokens, model_.dtype).to(at::kFloat);
}

// Those that were matched, the most similar first.
std::vector<PromptReuse::Matched> PromptReuse::match(const std::vector<std::int64_t>& ids) {
  const bool is_exact = options_.match == TokenSearch::kExact;
  const auto turned = [is_exact](const at::Tensor& embeddings) {
    const at::Tensor rows = turned_embeddings(embeddings);
    return is_exact ? rows : rows.cpu();  // FAISS has no device
  };
  const at::Tensor embeddings = embeddings_of(ids);
  const at::Tensor target = turned(embeddings);
  std::vector<Matched> matched;
  for (const DonorStore::Candidate& candidate :
       store_.nearest(embeddings.mean(0).cpu(), options_.candidates)) {
    const at::Tensor donor = turned(embeddings_of(candidate.head->ids));
    const TokenMatch tokens =
        is_exact ? match_tokens(target, donor) : match_with_faiss(options_.match, target, donor);
    matched.push_back({candidate.name,
                       prompt_similarity(options_.similarity, tokens, target, donor, kPlanes),
                       tokens.index.cpu()});
  }
  std::stable_sort(matched.begin(), matched.end(),
                   [](const Matched& a, const Matched& b) { return a.similarity > b.similarity; });
  return matched;
}

PromptReuse::Found PromptReuse::find(const std::vector<std::int64_t>& ids) {
  Found found;
  if (!is_long_enough(ids)) {
    found.report.whole = "too short";
    return found;
  }
  wait();
  const auto start = std::chrono::steady_clock::now();
  found.report.whole = "no donor";
  for (const Matched& matched : match(ids)) {
    found.report.similarity = std::max(found.report.similarity, matched.similarity);
    if (matched.similarity < options_.min_similarity) {
      found.report.whole = "no donor is similar enough";
      break;
    }
    if (found.donor = store_.open(matched.name); found.donor) {
      const DonorPrompt& prompt = found.donor->prompt();
      found.match = matched.index;
      found.report.whole.clear();
      found.report.donor = matched.name;
      found.report.similarity = matched.similarity;
      found.report.donor_tokens = prompt.num_tokens();
      found.report.donor_bytes = kv_bytes(prompt) + 4 * prompt.num_tokens();
      break;
    }
    found.report.whole = "the donor is damaged or gone";
  }
  found.report.seconds = seconds_since(start);
  return found;
}

at::Tensor PromptReuse::read(const std::vector<std::int64_t>& ids, Found& found,
                             const StoreTokens& store, const Stopped& stopped,
                             PartTimes* times) const {
  return read_reusing(model_, {ids, found.donor->prompt(), found.match}, options_, store,
                      found.report, stopped, times);
}

void PromptReuse::keep(const std::vector<std::int64_t>& ids,
                       const std::function<Rows(int layer)>& rows_of) {
  if (!options_.store || !is_long_enough(ids)) {
    return;
  }
  wait();
  auto prompt = std::make_shared<DonorPrompt>();
  prompt->ids = ids;
  prompt->mean_embedding = embeddings_of(ids).mean(0).cpu();
  for (int layer = 0; layer < format_.num_layers; ++layer) {
    const Rows rows = rows_of(layer);
    prompt->key.push_back(rows.key.to(at::kCPU, format_.dtype).contiguous());
    prompt->value.push_back(rows.value.to(at::kCPU, format_.dtype).contiguous());
  }
  const auto write = [this, prompt] {
    const c10::InferenceMode guard;
    store_.store(*prompt);
  };
  try {
    writing_ = std::async(std::launch::async, write);
  } catch (const std::system_error&) {  // no thread can start
    write();
  }
}

}  // namespace kvc
