#include "validate/tasks/question_files.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/json_fields.h"
#include "validate/tasks/text_words.h"

namespace kvc {
namespace {

// Numbers of documents by their text.
class DocumentIndex {
 public:
  explicit DocumentIndex(std::vector<std::string>& documents) : documents_(documents) {}
  std::size_t add(const std::string& text) {
    const auto [place, is_new] = numbers_.emplace(text, documents_.size());
    if (is_new) {
      documents_.push_back(text);
    }
    return place->second;
  }

 private:
  std::vector<std::string>& documents_;
  std::map<std::string, std::size_t> numbers_;
};

void check_any_question(const DocumentQuestions& set, const std::string& file) {
  KVC_CHECK(!set.questions.empty(), "{}: has no question with an answer", file);
}

bool is_blank(std::string_view text) { return split_words(text).empty(); }

// The number of its document.
std::size_t add_squad_paragraph(const Json& json, const std::string& subject,
                                DocumentIndex& documents,
                                std::vector<DocumentQuestion>& questions) {
  JsonFields paragraph(json, subject);
  const std::size_t document = documents.add(paragraph.text("context"));
  for (const Json& entry : paragraph.list("qas")) {
    JsonFields fields(entry, subject + ": a question");
    DocumentQuestion question{
        .text = fields.text("question"), .answers = {}, .evidence = {document}, .nearby = {}};
    std::set<std::string> seen;
    for (const Json& answer : fields.list("answers")) {
      const std::string text = JsonFields(answer, subject + ": an answer").text("text");
      if (!is_blank(text) && seen.insert(text).second) {
        question.answers.push_back(text);
      }
    }
    if (!question.answers.empty()) {
      questions.push_back(std::move(question));
    }
  }
  return document;
}

// The other paragraphs of an article are near each question, as in RULER.
void add_squad_article(const Json& paragraphs, const std::string& subject, DocumentIndex& documents,
                       std::vector<DocumentQuestion>& questions) {
  const std::size_t first = questions.size();
  std::vector<std::size_t> of_article;
  for (const Json& paragraph : paragraphs) {
    const std::size_t document = add_squad_paragraph(paragraph, subject, documents, questions);
    if (std::find(of_article.begin(), of_article.end(), document) == of_article.end()) {
      of_article.push_back(document);
    }
  }
  for (std::size_t i = first; i < questions.size(); ++i) {
    std::copy_if(of_article.begin(), of_article.end(), std::back_inserter(questions[i].nearby),
                 [&](std::size_t document) { return document != questions[i].evidence.front(); });
  }
}

// "title" from [title, ...]
std::string title_of(const Json& pair, const std::string& subject) {
  KVC_CHECK(pair.is_array() && pair.size() == 2 && pair[0].is_string(),
            "{}: expected a list of a title and what follows, found {}", subject, excerpt(pair));
  return pair[0].get<std::string>();
}

std::string hotpot_document(const Json& pair, const std::string& subject) {
  std::string text = title_of(pair, subject) + "\n";
  KVC_CHECK(pair[1].is_array(), "{}: expected a list of sentences, found {}", subject,
            excerpt(pair[1]));
  for (const Json& sentence : pair[1]) {
    KVC_CHECK(sentence.is_string(), "{}: expected a sentence, found {}", subject,
              excerpt(sentence));
    text += sentence.get<std::string>();
  }
  return text;
}

DocumentQuestion hotpot_question(const Json& json, const std::string& subject,
                                 DocumentIndex& documents) {
  JsonFields fields(json, subject);
  DocumentQuestion question{.text = fields.text("question"),
                            .answers = {fields.text("answer")},
                            .evidence = {},
                            .nearby = {}};
  std::set<std::string> titles;
  for (const Json& fact : fields.list("supporting_facts")) {
    titles.insert(title_of(fact, subject + ": \"supporting_facts\""));
  }
  for (const Json& document : fields.list("context")) {
    const std::string place = subject + ": \"context\"";
    const std::size_t number = documents.add(hotpot_document(document, place));
    auto& kind = titles.contains(title_of(document, place)) ? question.evidence : question.nearby;
    if (std::find(kind.begin(), kind.end(), number) == kind.end()) {
      kind.push_back(number);
    }
  }
  KVC_CHECK(!question.evidence.empty(), "{}: no document of \"context\" is a supporting fact",
            subject);
  return question;
}

}  // namespace

DocumentQuestions squad_questions(const Json& json, const std::string& file) {
  DocumentQuestions set;
  DocumentIndex documents(set.documents);
  JsonFields whole(json, file);
  std::size_t number = 0;
  for (const Json& article : whole.list("data")) {
    const std::string subject = fmt::format("{}: article {}", file, ++number);
    JsonFields fields(article, subject);
    add_squad_article(fields.list("paragraphs"), subject, documents, set.questions);
  }
  check_any_question(set, file);
  return set;
}

DocumentQuestions hotpot_questions(const Json& json, const std::string& file) {
  DocumentQuestions set;
  DocumentIndex documents(set.documents);
  std::size_t number = 0;
  for (const Json& record : json) {
    DocumentQuestion question =
        hotpot_question(record, fmt::format("{}: record {}", file, ++number), documents);
    if (!is_blank(question.answers.front())) {
      set.questions.push_back(std::move(question));
    }
  }
  check_any_question(set, file);
  return set;
}

}  // namespace kvc
