# LibTorch as hand-written imported targets: find_package(Torch) of the PyPI wheel needs a CUDA
# toolkit even for CPU code and overrides the project's CUDA flags.
#   kvc_fmt    fmt's headers, the copy inside torch, so that one build sees one fmt; its code is in kvc_core
#   kvc_torch  libtorch_cpu and libc10 (and libtorch_cuda, cuSOLVER where KVC_CUDA is on)
# kvc_torch_version(RESULT DIR): the version of the torch package there; empty if it has no headers.
function(kvc_torch_version result directory)
  set(_header "${directory}/include/torch/headeronly/version.h")
  set(_version "")
  if(EXISTS "${_header}")
    file(READ "${_header}" _text)
    foreach(_part MAJOR MINOR PATCH)
      string(REGEX MATCH "define TORCH_VERSION_${_part} ([0-9]+)" _ "${_text}")
      list(APPEND _version "${CMAKE_MATCH_1}")
    endforeach()
    list(JOIN _version "." _version)
  endif()
  set(${result} "${_version}" PARENT_SCOPE)
endfunction()

if(NOT KVC_TORCH_DIR)
  foreach(_python "${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python" "${CMAKE_CURRENT_SOURCE_DIR}/.venv-peers/bin/python"
          python3)
    execute_process(
      COMMAND "${_python}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _failed)
    kvc_torch_version(_found_version "${_torch_dir}")
    if(NOT _failed AND _found_version STREQUAL TORCH_VERSION)
      set(KVC_TORCH_DIR "${_torch_dir}" CACHE PATH "" FORCE)
      break()
    endif()
  endforeach()
endif()
kvc_torch_version(_found_version "${KVC_TORCH_DIR}")
if(NOT _found_version STREQUAL TORCH_VERSION)
  set(_wrong_dir "${KVC_TORCH_DIR}")
  unset(KVC_TORCH_DIR CACHE)  # so that the next run looks again
  if(_found_version)
    message(FATAL_ERROR "${_wrong_dir}: LibTorch ${TORCH_VERSION} expected, ${_found_version} found. Run scripts/setup.sh.")
  endif()
  message(FATAL_ERROR "LibTorch ${TORCH_VERSION} not found (looked in .venv, .venv-peers, python3 and KVC_TORCH_DIR='${_wrong_dir}'). "
          "Run scripts/setup.sh, or pass -DKVC_TORCH_DIR=<directory with include/ and lib/>.")
endif()

add_library(kvc_c10 SHARED IMPORTED)
set_target_properties(kvc_c10 PROPERTIES IMPORTED_LOCATION "${KVC_TORCH_DIR}/lib/libc10.so")
add_library(kvc_torch_cpu SHARED IMPORTED)
set_target_properties(kvc_torch_cpu PROPERTIES
  IMPORTED_LOCATION "${KVC_TORCH_DIR}/lib/libtorch_cpu.so"
  INTERFACE_INCLUDE_DIRECTORIES "${KVC_TORCH_DIR}/include;${KVC_TORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES kvc_c10)

add_library(kvc_fmt INTERFACE)
target_include_directories(kvc_fmt SYSTEM INTERFACE "${KVC_TORCH_DIR}/include")

add_library(kvc_torch INTERFACE)
target_link_libraries(kvc_torch INTERFACE kvc_torch_cpu)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # From 13 on it sees copies out of bounds in std::vector<bool> where LibTorch's headers reserve one.
  target_compile_options(kvc_torch INTERFACE -Wno-array-bounds)
endif()
if(KVC_CUDA)
  find_package(CUDAToolkit REQUIRED)
  file(GLOB _gpu_library "${KVC_TORCH_DIR}/../nvidia/*/lib/libcufile.so*" "${KVC_TORCH_DIR}/lib/libcufile*.so*")
  if(NOT _gpu_library)
    message(WARNING "${KVC_TORCH_DIR}: the GPU libraries that libtorch_cuda.so loads are not beside it. Programs will be "
            "built, but start only where the system has them; scripts/setup.sh --cuda installs them.")
  endif()
  add_library(kvc_c10_cuda SHARED IMPORTED)
  set_target_properties(kvc_c10_cuda PROPERTIES IMPORTED_LOCATION "${KVC_TORCH_DIR}/lib/libc10_cuda.so")
  target_link_libraries(kvc_torch INTERFACE kvc_c10_cuda CUDA::cudart CUDA::cusolver
    # CUDA operators register when the library is loaded; no symbol refers to it.
    "-Wl,--push-state,--no-as-needed" "${KVC_TORCH_DIR}/lib/libtorch_cuda.so" "-Wl,--pop-state"
    "-Wl,--allow-shlib-undefined")
  target_compile_definitions(kvc_torch INTERFACE KVC_CUDA=1)
endif()
