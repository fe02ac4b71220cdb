#include "validate/tasks/longbench_records.h"

#include "core/error.h"
#include "core/json_fields.h"

namespace kvc {
namespace {

std::vector<std::string> texts_of(const Json& list, const std::string& subject) {
  std::vector<std::string> texts;
  for (const Json& value : list) {
    KVC_CHECK(value.is_string(), "{} must be texts, found {}", subject, excerpt(value));
    texts.push_back(value.get<std::string>());
  }
  return texts;
}

LongBenchRecord longbench_record(std::string_view line, const std::string& subject) {
  const Json json = Json::parse(line, nullptr, false);
  KVC_CHECK(json.is_object(), "{}: not a JSON object", subject);
  JsonFields fields(json, subject);
  LongBenchRecord record{.dataset = fields.text("dataset"),
                         .context = fields.text("context"),
                         .input = fields.text("input"),
                         .answers = texts_of(fields.list("answers"), subject + ": \"answers\""),
                         .classes = {}};
  if (record.dataset.ends_with("_e")) {
    record.dataset.resize(record.dataset.size() - 2);
  }
  KVC_CHECK(!record.answers.empty(), "{}: \"answers\" is empty; a score needs one", subject);
  const Json* classes = fields.optional("all_classes");
  if (classes != nullptr && !classes->is_null()) {
    record.classes = texts_of(fields.list("all_classes"), subject + ": \"all_classes\"");
  }
  return record;
}

}  // namespace

std::vector<LongBenchRecord> longbench_records(std::string_view lines, const std::string& file) {
  std::vector<LongBenchRecord> records;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      records.push_back(longbench_record(line, fmt::format("{}:{}", file, number)));
    }
  }
  return records;
}

}  // namespace kvc
