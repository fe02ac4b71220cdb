// How kernels are launched: every kernel, or pair of them, has a struct of arguments in a header of this folder.
#pragma once

#include <string>

namespace kvc {

// Empty, or what is wrong and how to put it right.
using LaunchError = std::string;

// Launches what `params`, such a struct, asks for on a stream of the GPU. The instances are in the .cu files.
template <class Params>
LaunchError launch_cuda(const Params& params, void* stream);

}  // namespace kvc
