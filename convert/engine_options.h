// What the engine of --for makes of the options of a conversion.
#pragma once

#include <functional>

#include "convert/pipeline.h"

namespace kvc {

// Does the engine say how many tokens stay exact, whatever the context?
bool prescribes_tokens(const PipelineOptions& options);
// Was an option such as "--sink" given?
using Given = std::function<bool(const char* flag)>;
// Gives options the method, the prompts and the exact tokens that their engine serves. UsageError where other ones were given.
void suit_engine(const Given& given, PipelineOptions& options);

}  // namespace kvc
