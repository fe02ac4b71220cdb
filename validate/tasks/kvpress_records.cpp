#include "validate/tasks/kvpress_records.h"

#include "core/error.h"
#include "core/json_fields.h"
#include "validate/tasks/json_lines.h"

namespace kvc {
namespace {

constexpr std::int64_t kMostNewTokens = std::int64_t{1} << 30;

KvpressRecord kvpress_record(const JsonLine& line) {
  const std::string& subject = line.subject;
  JsonFields fields(line.json, subject);
  KvpressRecord record{.task = fields.text("task"),
                       .context = fields.text("context"),
                       .question = fields.text("question"),
                       .answer_prefix = fields.text("answer_prefix"),
                       .answers = texts_of(fields.list("answer"), subject + ": \"answer\""),
                       .place = subject};
  fields.read("max_new_tokens", record.max_new_tokens);
  KVC_CHECK(!record.task.empty(), "{}: \"task\" is empty; expected a name such as niah_single_1",
            subject);
  KVC_CHECK(!record.context.empty(), "{}: \"context\" is empty; there is nothing to compress",
            subject);
  KVC_CHECK(!record.answers.empty(), "{}: \"answer\" is empty; a score needs one", subject);
  KVC_CHECK(record.max_new_tokens >= 1 && record.max_new_tokens <= kMostNewTokens,
            "{}: \"max_new_tokens\" must be from 1 to {}, found {}", subject, kMostNewTokens,
            record.max_new_tokens);
  return record;
}

}  // namespace

std::vector<KvpressRecord> kvpress_records(std::string_view lines, const std::string& file) {
  std::vector<KvpressRecord> records;
  for (const JsonLine& line : json_lines(lines, file)) {
    records.push_back(kvpress_record(line));
  }
  return records;
}

}  // namespace kvc
