#include "core/json.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/output.h"

namespace kvc {
namespace {

constexpr std::size_t kMaxDepth = 64;

using MemberVisitor = std::function<void(std::string&&, Json&&)>;

// Builds values from parser events. With a visitor, the members of the top-level object go there as
// they complete instead of into the result.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const std::string& subject, const MemberVisitor* visit)
      : text_(text), subject_(subject), visit_(visit) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    KVC_CHECK(level.keys.insert(name).second, "{}: key {} appears twice in one object", subject_,
              excerpt(name));
    level.key = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // `position` counts the characters read, the offending one included.
    const std::size_t at = std::min(position == 0 ? 0 : position - 1, text_.size());
    for (std::string_view literal : {"NaN", "Infinity"}) {
      KVC_CHECK(text_.substr(at, literal.size()) != literal,
                "{}: {} at byte {} is not JSON (old versions of transformers wrote it); replace it "
                "with the number that is meant, or remove the key",
                subject_, literal, at);
    }
    // "[json.exception...] parse error at line 1, column 2: reason; last read: 'raw bytes'"
    std::string reason = error.what();
    reason.erase(std::min(reason.find("; last read"), reason.size()));
    if (const std::size_t bracket = reason.find("] "); bracket != std::string::npos) {
      reason.erase(0, bracket + 2);
    }
    fail("{}: not valid JSON: {}", subject_, reason);
  }

 private:
  struct Level {
    Json value;
    std::string key;                       // the member being read
    std::unordered_set<std::string> keys;  // membership only; its order is never used
  };

  bool open(Json&& container) {
    KVC_CHECK(levels_.size() < kMaxDepth, "{}: nested deeper than {} levels", subject_, kMaxDepth);
    levels_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return add(std::move(value));
  }

  bool add(Json&& value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else if (visit_ != nullptr && levels_.size() == 1) {
      (*visit_)(std::move(level.key), std::move(value));
    } else {
      // The key is new (checked above), so the map's linear search is not needed.
      level.value.get_ref<Json::object_t&>().emplace_back(std::move(level.key), std::move(value));
    }
    return true;
  }

  std::string_view text_;
  const std::string& subject_;
  const MemberVisitor* visit_;
  std::vector<Level> levels_;
  Json root_;
};

Json parse(std::string_view text, const std::string& subject, const MemberVisitor* visit) {
  KVC_CHECK(!text.starts_with("\xEF\xBB\xBF"),
            "{}: begins with a byte order mark; save it as UTF-8 without one", subject);
  // The parser would take a NUL for the end of the text.
  const std::size_t nul = text.find('\0');
  KVC_CHECK(nul == std::string_view::npos, "{}: not valid JSON: NUL at byte {}", subject, nul);
  Builder builder(text, subject, visit);
  KVC_CHECK(Json::sax_parse(text.begin(), text.end(), &builder), "{}: not valid JSON", subject);
  return builder.take();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& subject) {
  Json json = parse(text, subject, nullptr);
  KVC_CHECK(json.is_structured(), "{}: expected a JSON object or array, found {}", subject,
            json.type_name());
  return json;
}

void parse_json_members(std::string_view text, const std::string& subject,
                        const MemberVisitor& visit) {
  const Json rest = parse(text, subject, &visit);
  KVC_CHECK(rest.is_object(), "{}: expected a JSON object, found {}", subject, rest.type_name());
}

Json read_json(const std::filesystem::path& path, std::size_t max_bytes) {
  return parse_json(read_file(path, max_bytes), path.string());
}

std::string excerpt(const Json& json) {
  constexpr std::size_t kLength = 80;
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLength) {
    text.resize(kLength);
    text += "...";
  }
  return text;
}

// Names of files may be no UTF-8.
std::string dump_json(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kvc
