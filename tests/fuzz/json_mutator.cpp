#include "tests/fuzz/json_mutator.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <utility>
#include <vector>

namespace kvc::testing {
namespace {

// Iterates both kinds of containers by index.
Json& item(Json& container, std::size_t index) {
  return container.is_array()
             ? container[index]
             : std::next(container.begin(), static_cast<std::ptrdiff_t>(index)).value();
}

Json nested(std::size_t depth) {
  Json value = 1;
  for (std::size_t i = 0; i < depth; ++i) {
    Json outer = i % 2 == 0 ? Json::array() : Json::object();
    if (i % 2 == 0) {
      outer.push_back(std::move(value));
    } else {
      outer["x"] = std::move(value);
    }
    value = std::move(outer);
  }
  return value;
}

void erase_item(Json& container, std::size_t index) {
  if (container.is_array()) {
    container.erase(index);
  } else {
    container.erase(std::next(container.begin(), static_cast<std::ptrdiff_t>(index)));
  }
}

}  // namespace

// The root, or with equal chances a container in it, and so on.
Json& JsonMutator::any_container(Json& root) {
  Json* container = &root;
  while (below(3) != 0) {
    std::vector<Json*> inner;
    for (Json& value : *container) {
      if (value.is_structured() && !value.empty()) {
        inner.push_back(&value);
      }
    }
    if (inner.empty()) {
      break;
    }
    container = inner[below(inner.size())];
  }
  return *container;
}

// Another type, another sign, or another magnitude.
Json JsonMutator::wrong_value(const Json& value) {
  const bool whole = value.is_number_integer();
  const auto number = whole ? value.get<std::int64_t>() : std::int64_t{3};
  const auto bits = static_cast<std::uint64_t>(number);  // whose arithmetic wraps
  const std::array<Json, 24> values = {nullptr,
                                       true,
                                       false,
                                       0,
                                       1,
                                       -1,
                                       static_cast<std::int64_t>(0 - bits),
                                       static_cast<std::int64_t>(bits + 1),
                                       number / 2,
                                       static_cast<std::int64_t>(bits * 1000003),
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min(),
                                       std::numeric_limits<std::uint64_t>::max(),
                                       std::int64_t{1} << 31,
                                       1e308,
                                       5e-324,
                                       -0.5,
                                       static_cast<double>(number),
                                       "",
                                       std::to_string(number),
                                       std::string(5000, 'x'),
                                       std::string("a\nb\x01\xF0\x9F\x92\xA9"),
                                       Json::array(),
                                       Json::object()};
  const std::size_t choice = below(values.size() + 3);
  if (choice < values.size()) {
    return values[choice];
  }
  if (choice == values.size()) {
    return nested(1 + below(90));
  }
  return choice == values.size() + 1 ? Json::array({value}) : Json(std::vector<int>(20'000, 7));
}

void JsonMutator::mutate(Json& root) {
  Json& container = any_container(root);
  if (container.empty()) {
    return;
  }
  const std::size_t first = below(container.size()), second = below(container.size());
  switch (below(8)) {
    case 0:
      erase_item(container, first);
      break;
    case 1:
      std::swap(item(container, first), item(container, second));
      break;
    case 2: {  // a copy of the container inside itself
      Json copy = container;
      item(container, first) = std::move(copy);
      break;
    }
    case 3:
      if (container.is_object()) {  // the right value under a slightly wrong name
        Json value = item(container, first);
        container[fmt::format(
            "x{}", std::next(container.begin(), static_cast<std::ptrdiff_t>(first)).key())] =
            std::move(value);
        erase_item(container, first);
      } else {
        container.push_back(item(container, first));
      }
      break;
    default:
      item(container, first) = wrong_value(item(container, first));
  }
}

void JsonMutator::damage_text(std::string& text) {
  switch (below(4)) {
    case 0:
      text.resize(below(text.size()));
      break;
    case 1: {  // a key twice
      const std::size_t begin = text.find('"');
      const std::size_t end = text.find(',', begin);
      if (begin != std::string::npos && end != std::string::npos) {
        text.insert(end, fmt::format(",{}", text.substr(begin, end - begin)));
      }
      break;
    }
    case 2:
      text.insert(below(text.size()), 1, "{}[],:\"\\0n\xff"[below(11)]);
      break;
    default:
      text += text;
  }
}

std::string JsonMutator::mutant(const Json& good) {
  Json json = good;
  for (std::size_t i = below(3) + 1; i > 0 && json.is_structured(); --i) {
    mutate(json);
  }
  std::string text = json.dump(1, ' ', false, Json::error_handler_t::replace);
  if (below(10) == 0) {
    damage_text(text);
  }
  return text;
}

}  // namespace kvc::testing
