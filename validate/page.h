// Pages of reports: one file without scripts or anything loaded from elsewhere, light or dark as the reader's system.
#pragma once

#include <string>

namespace kvc {

std::string escape_html(const std::string& text);
// A whole page under the heading `title`. `body` is HTML; the style knows the classes soft, tiles, tile, missed, sub,
// inputs, wide (around a table or chart that scrolls sideways), answers (whose second column is text) and pick (a row), and
// those of charts (validate/chart.h).
std::string html_page(const std::string& title, const std::string& body);

}  // namespace kvc
