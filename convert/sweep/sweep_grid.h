// What a sweep tries: lines of options, in which braces stand for several values.
#pragma once

#include <string>
#include <vector>

#include "convert/given_options.h"
#include "convert/pipeline.h"
#include "core/command.h"
#include "core/token_policy.h"

namespace kvc {

struct SweepCandidate {
  std::string name;  // its line, a value for every brace
  // A conversion; of the line "plain ..." the original itself, with another type of cache or a token policy.
  bool plain = false;
  PipelineOptions options{};  // of a conversion
  std::string kv_dtype{};     // of a plain one; empty: its own
  TokenPolicy policy{};       // likewise
};

// True if `word`, a value of --sweep, is a file of lines.
bool is_line_file(const std::string& word);
// The lines of `word`: those of a file, without blank ones and those that start with '#'; "default", the built-in
// ones; otherwise `word` itself. Error if a file cannot be read.
std::vector<std::string> sweep_lines(const std::string& word);

// "coded --kept-ratio {0.5,0.25}" is "coded --kept-ratio 0.5" and "coded --kept-ratio 0.25"; several braces give every
// combination, the last one changing fastest. UsageError for braces that do not match.
std::vector<std::string> expand_braces(const std::string& line);

// The candidates of all lines, each once. A line is a method or "plain", and options; `given` are the command
// line's options; those that conversions know hold for all whose line does not have them. UsageError that names the line.
std::vector<SweepCandidate> sweep_candidates(const std::vector<std::string>& words,
                                             const std::vector<GivenOption>& given,
                                             const std::string& checkpoint,
                                             const CommonOptions& common);

}  // namespace kvc
