// tokenizer.json's "post_processor": what is put around the ids of one text.
#pragma once

#include <string>

#include "model/tokenizer/component.h"

namespace kvc {

PostProcessor make_post_processor(const TokenizerJson& json, const std::string& subject);

}  // namespace kvc
