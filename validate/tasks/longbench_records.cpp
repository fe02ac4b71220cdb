#include "validate/tasks/longbench_records.h"

#include "core/error.h"
#include "core/json_fields.h"
#include "validate/tasks/json_lines.h"

namespace kvc {
namespace {

LongBenchRecord longbench_record(const JsonLine& line) {
  const std::string& subject = line.subject;
  JsonFields fields(line.json, subject);
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
  for (const JsonLine& line : json_lines(lines, file)) {
    records.push_back(longbench_record(line));
  }
  return records;
}

}  // namespace kvc
