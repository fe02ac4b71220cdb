#include "validate/tasks/task_inputs.h"

#include <algorithm>

#include "core/enum_names.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/output.h"
#include "model/text.h"

namespace kvc {
namespace {

constexpr std::size_t kMostFileBytes = std::size_t{4} << 30;

constexpr EnumName<TaskFile> kFileKinds[] = {
    {TaskFile::kProse, "prose (.txt, or .jsonl with \"text\")"},
    {TaskFile::kSquad, "questions of SQuAD's layout (.json)"},
    {TaskFile::kHotpot, "questions of HotpotQA's layout (.json)"},
    {TaskFile::kLongBench, "records of LongBench (.jsonl)"},
    {TaskFile::kKvpress, "records of kvpress's RULER (.jsonl)"},
};

// The first line that is not blank.
std::string_view first_record(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  return text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin);
}

TaskFile kind_of_lines(const std::string& text, const std::string& name) {
  Json record;
  std::string reason;
  try {
    record = parse_json(first_record(text), name);
  } catch (const Error& error) {
    reason = fmt::format(" ({})", error.what());
  }
  if (record.is_object() && record.contains("text")) {
    return TaskFile::kProse;
  }
  KVC_CHECK(
      record.is_object() && record.contains("context"),
      "{}: the first line is no JSON object with \"text\" (prose), with \"input\", "
      "\"context\", \"answers\" and \"dataset\" (LongBench) or with \"context\", "
      "\"question\", \"answer_prefix\", \"answer\", \"task\" and \"max_new_tokens\" (kvpress){}",
      name, reason);
  const bool is_kvpress = record.contains("answer_prefix") || record.contains("task") ||
                          record.contains("max_new_tokens");
  return is_kvpress ? TaskFile::kKvpress : TaskFile::kLongBench;
}

TaskFile kind_of_json(const Json& json, const std::string& name) {
  if (json.is_object() && json.contains("data")) {
    return TaskFile::kSquad;
  }
  KVC_CHECK(
      json.is_array(),
      "{}: neither of SQuAD's layout ({{\"data\": [...]}}) nor of HotpotQA's ([{{\"question\", "
      "\"answer\", \"context\", \"supporting_facts\"}}, ...])",
      name);
  return TaskFile::kHotpot;
}

void append(DocumentQuestions& all, DocumentQuestions more) {
  const std::size_t offset = all.documents.size();
  for (DocumentQuestion& question : more.questions) {
    for (auto* numbers : {&question.evidence, &question.nearby}) {
      for (std::size_t& number : *numbers) {
        number += offset;
      }
    }
    all.questions.push_back(std::move(question));
  }
  std::move(more.documents.begin(), more.documents.end(), std::back_inserter(all.documents));
}

class InputReader {
 public:
  void read(const std::filesystem::path& path) {
    const std::string name = path.string(), extension = path.extension().string();
    KVC_CHECK(extension == ".txt" || extension == ".json" || extension == ".jsonl",
              "--task-text {}: expected a .txt, .json or .jsonl file", name);
    const std::string bytes = read_file(path, kMostFileBytes);
    KVC_CHECK(!first_record(bytes).empty(), "--task-text {}: is empty", name);
    const std::string hash = sha256_hex(bytes);
    if (std::find(inputs_.hashes.begin(), inputs_.hashes.end(), hash) != inputs_.hashes.end()) {
      return;  // its records and documents would count twice
    }
    TaskFile kind = TaskFile::kProse;
    if (extension == ".json") {
      kind = read_questions(parse_json(bytes, name), name);
    } else if (extension == ".jsonl") {
      kind = kind_of_lines(bytes, name);
    }
    if (kind == TaskFile::kProse) {
      prose_ += prose_.empty() ? "" : "\n\n";
      prose_ += read_text_source(path).text;
    } else if (kind == TaskFile::kLongBench) {
      const std::vector<LongBenchRecord> records = longbench_records(bytes, name);
      inputs_.records.insert(inputs_.records.end(), records.begin(), records.end());
    } else if (kind == TaskFile::kKvpress) {
      const std::vector<KvpressRecord> records = kvpress_records(bytes, name);
      inputs_.kvpress.insert(inputs_.kvpress.end(), records.begin(), records.end());
    }
    inputs_.hashes.push_back(hash);
    inputs_.files.emplace_back(kind, name);
  }

  TaskInputs finish() {
    inputs_.prose =
        std::make_shared<const Prose>(prose_.empty() ? builtin_evaluation_text() : prose_);
    inputs_.squad = std::make_shared<const DocumentQuestions>(std::move(squad_));
    inputs_.hotpot = std::make_shared<const DocumentQuestions>(std::move(hotpot_));
    return std::move(inputs_);
  }

 private:
  TaskFile read_questions(const Json& json, const std::string& name) {
    const TaskFile kind = kind_of_json(json, name);
    if (kind == TaskFile::kSquad) {
      append(squad_, squad_questions(json, name));
    } else {
      append(hotpot_, hotpot_questions(json, name));
    }
    return kind;
  }

  TaskInputs inputs_;
  std::string prose_;
  DocumentQuestions squad_, hotpot_;
};

}  // namespace

std::string describe(TaskFile kind) { return name_of(kFileKinds, kind); }

TaskInputs read_task_inputs(const std::vector<std::filesystem::path>& files) {
  InputReader reader;
  for (const std::filesystem::path& path : files) {
    reader.read(path);
  }
  return reader.finish();
}

}  // namespace kvc
