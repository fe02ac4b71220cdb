// Users' files of questions over documents, in the layouts that SQuAD and HotpotQA are published in.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/json.h"

namespace kvc {

struct DocumentQuestion {
  std::string text;
  std::vector<std::string> answers;
  std::vector<std::size_t> evidence;  // documents that answer it
  std::vector<std::size_t> nearby;    // others of its record or article
};

struct DocumentQuestions {
  std::vector<std::string> documents;  // all different
  std::vector<DocumentQuestion> questions;
};

// {"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}]}]}]}]}. Questions without an answer, or
// with blank ones, are left out, here and below. Error naming `file` and the place of what is missing.
DocumentQuestions squad_questions(const Json& json, const std::string& file);
// [{"question", "answer", "context": [[title, [sentence, ...]], ...], "supporting_facts": [[title, number], ...]}]
DocumentQuestions hotpot_questions(const Json& json, const std::string& file);

}  // namespace kvc
