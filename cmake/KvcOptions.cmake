# Options, language standards and flags that every own target shares.
option(KVC_TESTS "Build the tests and benchmarks" ON)
option(KVC_CUDA "Convert and generate on the GPU (needs a CUDA toolkit to build, no GPU)" OFF)
option(KVC_CUDA_OPS "GPU kernels in the op library for engines, whatever KVC_CUDA is (needs a CUDA toolkit to build, no GPU)" OFF)
option(KVC_SANITIZE "Address and undefined-behaviour sanitizers" OFF)
set(KVC_TORCH_DIR "" CACHE PATH "Directory of the torch package or LibTorch (include/, lib/); empty: .venv, .venv-peers, then python3")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set_property(GLOBAL PROPERTY GLOBAL_DEPENDS_NO_CYCLES ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(KVC_CCACHE ccache)
if(KVC_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${KVC_CCACHE}")
endif()

add_library(kvc_flags INTERFACE)
target_compile_options(kvc_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Werror)
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Vectors whose length the compiler does not know cannot lie in arrays, which kernels keep them in: processors with
  # SVE run NEON.
  target_compile_definitions(kvc_flags INTERFACE
    "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128|HWY_RVV)")
  target_compile_options(kvc_flags INTERFACE -Wno-psabi)
else()
  # Only processors from before 2012 have SSSE3 without SSE4.2 and AES: no fourth copy of each kernel for these.
  target_compile_definitions(kvc_flags INTERFACE "HWY_DISABLED_TARGETS=HWY_SSSE3")
endif()
set(KVC_TIMEOUT_FACTOR 1)  # of the time limits of tests
if(KVC_SANITIZE)  # -O1 -g1 compiles in a third of the time that -O2 -g takes and finds the same kinds of errors
  target_compile_options(kvc_flags INTERFACE -O1 -g1 -fsanitize=address,undefined
                         -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(kvc_flags INTERFACE -fsanitize=address,undefined)
  set(KVC_TIMEOUT_FACTOR 4)
endif()
