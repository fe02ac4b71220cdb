// kvrun: one model, one prompt or a batch of token lists, and options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/generate.h"
#include "runtime/program/generation_config.h"

namespace kvc {

struct RunOptions {
  std::filesystem::path model;        // HuggingFace directory: plain, folded or factored
  std::string prompt;                 // exactly one of prompt, prompt_file, ids, tokenize
  std::filesystem::path prompt_file;  // UTF-8 text
  std::filesystem::path ids;          // JSON: one list of token ids, or a list of lists
  std::filesystem::path tokenize;     // print this text's ids and stop
  bool chat = false;   // conversation: the prompt, or every line of standard input, is a turn
  std::string system;  // --chat: the system message; empty: none
  std::filesystem::path chat_template;  // --chat: instead of the checkpoint's own
  std::string chat_arguments;           // --chat: JSON object of further variables of the template
  std::filesystem::path logits;         // safetensors to write; empty: none
  EngineOptions engine;
  GenerateOptions generate;  // sampling and stop_ids are filled in
  SamplingRequest sampling;
  std::vector<std::string> stop;  // generation ends before the first of these texts
  bool ignore_eos = false;
  bool warm_up = false;  // make a short untimed run first
  bool stats = false;
  bool json = false;
  bool force = false;
  int threads = 0;              // 0: all
  std::string device = "auto";  // of generation: auto, cpu, cuda, cuda:N
  bool plan = false;            // print what the KV caches will take and stop
  std::string reuse;            // settings of engine.reuse, "key=value,..."
};

// After an interruption, prints the text so far and throws Error of ExitCode::kInterrupted.
void run(const RunOptions& options);

}  // namespace kvc
