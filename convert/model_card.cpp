#include "convert/model_card.h"

#include <fmt/format.h>

#include <sstream>
#include <string_view>

#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

// Lines "license...: ..." of the metadata between the two "---" that a README.md begins with.
std::string licence_lines(const fs::path& checkpoint) {
  constexpr int kMostLines = 1000;
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  std::istringstream readme;
  try {
    readme.str(read_file(checkpoint / "README.md", kMostBytes));
  } catch (const Error&) {
    return "";  // none, or nothing that could be one
  }
  std::string line, lines;
  if (!std::getline(readme, line) || !line.starts_with("---")) {
    return "";
  }
  for (int i = 0; i < kMostLines && std::getline(readme, line) && !line.starts_with("---"); ++i) {
    lines += line.starts_with("license") ? line + "\n" : "";
  }
  return lines;
}

// Text whose characters mean nothing to Markdown.
std::string markdown_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += std::string_view("<>&`*[]\\").find(c) == std::string_view::npos ? "" : "\\";
    escaped += c;
  }
  return escaped;
}

std::string code_span(const std::string& text) {
  return text.find('`') == std::string::npos ? "`" + text + "`" : "`` " + text + " ``";
}

// How to run the output.
std::string usage(ExportFormat format, const std::string& kv_dtype, bool vllm_serves) {
  std::string text;
  if (format == ExportFormat::kMla) {
    return "This directory is a `deepseek_v2` checkpoint whose cache holds latents. transformers "
           "loads it without "
           "kvconvert, and so does `kvrun`:\n\n```python\nmodel = "
           "AutoModelForCausalLM.from_pretrained(\".\")\n```\n\n"
           "Engines that ignore the bias of `kv_a_proj_with_mqa` (`attention_bias` in config.json) "
           "compute something "
           "else: vLLM does so without a message.\n";
  }
  if (format != ExportFormat::kFactored) {
    text += fmt::format(
        "{} has the original's architecture: every engine loads it, with a cache of the original's "
        "size.\n\n",
        format == ExportFormat::kBoth ? "`folded/`" : "This directory");
  }
  if (format == ExportFormat::kFolded) {
    return text;
  }
  const std::string directory = format == ExportFormat::kBoth ? "factored" : ".";
  text += fmt::format("```\nkvrun {}{} --prompt \"Once upon a time\"\n", directory,
                      kv_dtype.empty() ? "" : " --kv-dtype " + kv_dtype);
  if (vllm_serves) {
    text += fmt::format("vllm serve {}        # with the package kvconvert installed\n", directory);
  }
  text += "```\n";
  return text;
}

}  // namespace

std::string model_card(const ModelCard& card, const KvPlan& plan, const ValidationReport& report) {
  const std::string name = one_line(fs::canonical(card.checkpoint.directory()).filename().string());
  std::string text =
      fmt::format("---\nlibrary_name: kvconvert\n{}---\n\n# {}, converted by `{}`\n\n",
                  licence_lines(card.checkpoint.directory()), markdown_text(name), plan.method);
  text += "kvconvert rewrote this checkpoint for a smaller KV cache.\n\n";
  text += fmt::format("- Source: {}, SHA-256 `{}`\n- Command: {}\n", code_span(name),
                      card.checkpoint.hash(), code_span(card.command));
  text += fmt::format("- Quality: {} (details: `report.html`)\n", summary_line(report));
  text += "- Licence: the source's; its licence files are copied.\n\n## Run it\n\n";
  return text + usage(card.format, card.kv_dtype, card.vllm_serves);
}

}  // namespace kvc
