#include <memory>

#include "core/command.h"
#include "runtime/program/run.h"

namespace {

void declare_input(CLI::App& app, kvc::RunOptions& options) {
  app.add_option("model", options.model, "HuggingFace directory, converted or not")->required();
  app.add_option("--prompt", options.prompt, "Text to continue")->check(kvc::may_be_empty());
  app.add_option("--prompt-file", options.prompt_file, "Text file to continue");
  app.add_option("--ids", options.ids,
                 "JSON file: token ids, or a list of lists of them (a batch)");
  app.add_option("--tokenize", options.tokenize, "Print the token ids of a text file and stop");
}

void declare_chat(CLI::App& app, kvc::RunOptions& options) {
  app.add_flag("--chat", options.chat,
               "Hold a conversation: the prompt, or each line of standard input, is a turn");
  app.add_option("--system", options.system, "With --chat: the system message")
      ->check(kvc::may_be_empty());
  app.add_option("--chat-template", options.chat_template,
                 "With --chat: a Jinja file in place of the checkpoint's template");
  app.add_option(
      "--chat-arguments", options.chat_arguments,
      "With --chat: variables of the template as JSON, e.g. {\"enable_thinking\": false}");
}

void declare_generation(CLI::App& app, kvc::RunOptions& options) {
  app.add_option("--max-new-tokens", options.generate.max_new_tokens,
                 "Maximum number of tokens to generate");
  app.add_option("--num-samples", options.generate.num_samples,
                 "Continuations that share the prompt's cache; sample i uses seed + i");
  app.add_option("--beams", options.generate.num_beams,
                 "Beam search with this many beams; --num-samples of the best texts are printed");
  app.add_option("--stop", options.stop, "End before this text; may be given several times")
      ->allow_extra_args(false);
  app.add_option(
      "--prefill-tokens", options.generate.prefill_tokens,
      "Prompt tokens read before compression; the rest reads the compressed cache; 0: all");
}

void declare_sampling(CLI::App& app, kvc::SamplingRequest& request) {
  app.add_flag("--sample", request.sample,
               "Sample as generation_config.json sets; the options below override it");
  app.add_option("--temperature", request.temperature, "Sample at this temperature; 0: greedy");
  app.add_option("--top-k", request.top_k, "Sample from the k most probable tokens; 0: all");
  app.add_option("--top-p", request.top_p, "Sample from the fewest tokens that sum to p");
  app.add_option("--min-p", request.min_p,
                 "Sample from tokens with at least p times the largest probability");
  app.add_option("--repetition-penalty", request.repetition_penalty,
                 "Above 1: tokens that already occur become less probable");
}

void declare_engine(CLI::App& app, kvc::RunOptions& options) {
  app.add_option("--dtype", options.engine.dtype,
                 "Compute in float32, bfloat16 or float16 (default: as stored)");
  app.add_option(
         "--weight-dtype", options.engine.weight_dtype,
         "Quantise projections, MLPs, experts and the head to int8 at load (default: as --dtype)")
      ->check(CLI::IsMember({"int8"}));
  app.add_option(
         "--kv-dtype", options.engine.kv_dtype,
         "Store the cache as float32, bfloat16, float16, int8, int4 or int2 (default: as --dtype)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "int8", "int4", "int2"}));
  app.add_option("--page-tokens", options.engine.page_tokens,
                 "Tokens per page of KV memory (default: 16; integers, codes, GPU: 32)");
  app.add_option("--prefill-chunk", options.engine.prefill_chunk,
                 "Prompt tokens read at a time; limits memory, results stay the same; 0: all");
  app.add_option_function<std::string>(
      "--policy",
      [&options](const std::string& text) {
        options.engine.policy = kvc::parse_token_policy(text);
      },
      "Tokens that the cache keeps, NAME[:key=value,...]: full, streamingllm, h2o, zeromerge, "
      "snapkv, pyramidkv or think");
  app.add_option_function<std::string>(
      "--selective",
      [&options](const std::string& text) {
        options.engine.selective = kvc::parse_selective(text);
      },
      "Rebuild only the latents that a step is likely to attend to, e.g. "
      "chunks=256,outliers=48,chunk=8");
  app.add_option("--donors", options.engine.reuse.donors,
                 "Directory of earlier prompts; similar prompts reuse their caches");
  app.add_option("--reuse", options.reuse,
                 "With --donors: settings, e.g. min-similarity=0.9,retention=all");
  app.add_option_function<std::string>(
      "--memory",
      [&options](const std::string& text) {
        options.engine.memory_bytes = kvc::parse_bytes("--memory", text);
      },
      "Limit of KV memory, e.g. 2GiB; spare memory stores rebuilt keys and values for speed");
  app.add_flag("--plan", options.plan, "Print the memory of this run's KV cache, and stop");
}

void declare_output(CLI::App& app, kvc::RunOptions& options) {
  app.add_option("--logits", options.logits, "Write the prompt's logits as safetensors");
  app.add_flag("--ignore-eos", options.ignore_eos, "Continue after an end-of-text token");
  app.add_flag("--warm-up", options.warm_up, "Make a short untimed run first (for benchmarks)");
  app.add_flag("--stats", options.stats, "Print times and memory to standard error");
}

}  // namespace

int main(int argc, char** argv) {
  return kvc::run_command(argc, argv,
                          "Generates text with a HuggingFace checkpoint, converted or not.",
                          [](CLI::App& app, kvc::CommonOptions& common) -> kvc::Action {
                            auto options = std::make_shared<kvc::RunOptions>();
                            declare_input(app, *options);
                            declare_chat(app, *options);
                            declare_generation(app, *options);
                            declare_sampling(app, options->sampling);
                            declare_engine(app, *options);
                            declare_output(app, *options);
                            return [options, &common] {
                              options->generate.seed = common.seed;
                              options->json = common.json;
                              options->force = common.force;
                              options->threads = common.threads;
                              options->device = common.device;
                              kvc::run(*options);
                            };
                          });
}
