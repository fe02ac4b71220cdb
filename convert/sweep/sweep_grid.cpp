#include "convert/sweep/sweep_grid.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <string_view>

#include "convert/conversion_options.h"
#include "convert/methods/methods.h"
#include "core/error.h"
#include "core/kv_plan.h"
#include "core/output.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDefaultLines[] = {
    "plain --kv-dtype {int8,int4}",
    "coded --form {full,blocks:4,rotated} --kept-ratio {0.5,0.25,0.125}",
    "pca --kept-ratio {0.5,0.25}",
    "commonkv --kept-ratio {0.7,0.5}",
    "xkv-static --kept-ratio {0.5,0.25}",
};
constexpr std::size_t kMostLineBytes = 1 << 20;
constexpr std::size_t kMostCandidates = 1000;

// Options that concern the sweep as a whole, or that a candidate cannot have.
constexpr std::string_view kNotInLines[] = {
    "--out", "--work", "--plan", "--validation-text", "--validate", "--export", "--by-part"};

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) {
    words.push_back(word);
  }
  return words;
}

void parse(CLI::App& app, std::vector<std::string> words) {
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

SweepCandidate plain_candidate(const std::string& line, const std::vector<std::string>& words) {
  SweepCandidate candidate{.name = line, .plain = true};
  std::string policy;
  CLI::App app;
  app.add_option("--kv-dtype", candidate.kv_dtype);
  app.add_option("--policy", policy);
  parse(app, words);
  if (!candidate.kv_dtype.empty()) {
    parse_kv_dtype(candidate.kv_dtype);
  }
  if (!policy.empty()) {
    candidate.policy = parse_token_policy(policy);
  }
  KVC_CHECK_USAGE(!candidate.kv_dtype.empty() || !candidate.policy.is_full(),
                  "a plain cache loses nothing; give it --kv-dtype or --policy");
  return candidate;
}

bool names(const std::vector<std::string>& words, const GivenOption& option) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    return word == option.name || word == option.flag || word.starts_with(option.name + "=") ||
           word == "--no-" + option.name.substr(2);
  });
}

// True if a given option holds for conversions: it is not one of the program, of the sweep, or of the line itself.
bool concerns(const CLI::App& app, const GivenOption& option,
              const std::vector<std::string>& words) {
  return app.get_option_no_throw(option.name) != nullptr &&
         std::ranges::find(kNotInLines, option.name) == std::end(kNotInLines) &&
         !names(words, option);
}

SweepCandidate conversion_candidate(const std::string& line, std::vector<std::string> words,
                                    const std::vector<GivenOption>& given,
                                    const std::string& checkpoint, const CommonOptions& common) {
  CLI::App app;
  ConversionOptions options(app);
  std::vector<std::string> all;
  for (const GivenOption& option : given) {
    if (concerns(app, option, words)) {
      all.push_back(option.flag);
      all.insert(all.end(), option.values.begin(), option.values.end());
    }
  }
  all.insert(all.end(), words.begin(), words.end());
  const CLI::Option* last = app.get_option_no_throw(all.back());
  KVC_CHECK_USAGE(last == nullptr || last->get_expected_min() == 0, "{} lacks its value",
                  all.back());
  all.push_back("--");  // lists of files end here
  all.push_back(checkpoint);
  parse(app, all);
  for (const std::string_view name : kNotInLines) {
    const CLI::Option* option = app.get_option_no_throw(std::string(name));
    KVC_CHECK_USAGE(option == nullptr || option->count() == 0,
                    "{} concerns the whole sweep; give it beside --sweep or leave it out", name);
  }
  SweepCandidate candidate{.name = line, .options = options.resolve(common)};
  for (const GivenOption& option : given) {  // what decides results, of the options of all programs
    if (option.name == "--seed" || option.name == "--device" || option.name == "--threads") {
      candidate.options.command += option_text(option);
    }
  }
  return candidate;
}

// Error if an option is given that holds for conversions, where no line is one.
void check_given_apply(const std::vector<SweepCandidate>& candidates,
                       const std::vector<GivenOption>& given) {
  if (!std::ranges::all_of(candidates, &SweepCandidate::plain)) {
    return;
  }
  CLI::App app;
  const ConversionOptions options(app);
  for (const GivenOption& option : given) {
    KVC_CHECK_USAGE(
        !concerns(app, option, {}),
        "{}: concerns conversions, and every line of --sweep is a plain cache; leave it out",
        option.flag);
  }
}

SweepCandidate parse_candidate(const std::string& line, const std::vector<GivenOption>& given,
                               const std::string& checkpoint, const CommonOptions& common) {
  std::vector<std::string> words = words_of(line);
  try {
    KVC_CHECK_USAGE(!words.empty(), "expected a method and its options, found nothing");
    if (words.front() == "plain") {
      words.erase(words.begin());
      return plain_candidate(line, words);
    }
    if (!words.front().starts_with("--")) {
      find_method(words.front());
      words.insert(words.begin(), "--method");
    }
    return conversion_candidate(line, std::move(words), given, checkpoint, common);
  } catch (const Error& error) {
    fail_usage("--sweep '{}': {}", line, error.what());
  }
}

}  // namespace

bool is_line_file(const std::string& word) {
  std::error_code ignored;
  return word != "default" && fs::exists(word, ignored);
}

std::vector<std::string> sweep_lines(const std::string& word) {
  if (word == "default") {
    return {std::begin(kDefaultLines), std::end(kDefaultLines)};
  }
  if (!is_line_file(word)) {
    return {word};
  }
  std::istringstream file(read_file(word, kMostLineBytes));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first != std::string::npos && line[first] != '#') {
      lines.push_back(line.substr(first, line.find_last_not_of(" \t\r") + 1 - first));
    }
  }
  KVC_CHECK(!lines.empty(), "{}: holds no line of options; one is \"coded --kept-ratio 0.25\"",
            word);
  return lines;
}

std::vector<std::string> expand_braces(const std::string& line) {
  constexpr std::ptrdiff_t kMostGroups = 64;
  KVC_CHECK_USAGE(std::ranges::count(line, '{') <= kMostGroups,
                  "--sweep '{}...': more than {} groups of braces", line.substr(0, 40),
                  kMostGroups);
  const std::size_t open = line.find_first_of("{}");
  if (open == std::string::npos) {
    return {line};
  }
  const std::size_t close = line.find_first_of("{}", open + 1);
  KVC_CHECK_USAGE(line[open] == '{' && close != std::string::npos && line[close] == '}',
                  "--sweep '{}': braces do not match; write {{0.5,0.25}}", line);
  const std::vector<std::string> rests = expand_braces(line.substr(close + 1));
  std::vector<std::string> lines;
  for (std::size_t begin = open + 1; begin <= close;) {
    const std::size_t end = std::min(line.find(',', begin), close);
    for (const std::string& rest : rests) {
      lines.push_back(line.substr(0, open) + line.substr(begin, end - begin) + rest);
    }
    KVC_CHECK_USAGE(lines.size() <= kMostCandidates, "--sweep '{}': more than {} candidates", line,
                    kMostCandidates);
    begin = end + 1;
  }
  return lines;
}

std::vector<SweepCandidate> sweep_candidates(const std::vector<std::string>& words,
                                             const std::vector<GivenOption>& given,
                                             const std::string& checkpoint,
                                             const CommonOptions& common) {
  std::vector<SweepCandidate> candidates;
  std::set<std::string> seen;
  for (const std::string& word : words) {
    for (const std::string& line : sweep_lines(word)) {
      for (const std::string& expanded : expand_braces(line)) {
        if (seen.insert(expanded).second) {
          candidates.push_back(parse_candidate(expanded, given, checkpoint, common));
        }
      }
    }
  }
  KVC_CHECK_USAGE(!candidates.empty(),
                  "--sweep: expected \"default\", a file or a line such as 'coded --kept-ratio "
                  "0.25', found nothing");
  KVC_CHECK_USAGE(candidates.size() <= kMostCandidates, "--sweep: {} candidates, at most {}",
                  candidates.size(), kMostCandidates);
  check_given_apply(candidates, given);
  return candidates;
}

}  // namespace kvc
