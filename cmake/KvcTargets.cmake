# kvc_library(NAME SOURCES ... [DEPS ...] [PRIVATE_DEPS ...]): one directory's library, warnings as errors.
# Targets that use torch pass TORCH and share one precompiled header.
function(kvc_library name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>"
                             "$<INSTALL_INTERFACE:include/kvconvert>")
  # Installed, a target of kvconvertConfig.cmake takes the place of one that knows this machine's paths.
  target_link_libraries(${name}
    PUBLIC ${ARG_DEPS} $<BUILD_INTERFACE:kvc_fmt> $<INSTALL_INTERFACE:kvconvert::fmt>
    PRIVATE ${ARG_PRIVATE_DEPS} $<BUILD_INTERFACE:kvc_flags>)
  if(ARG_TORCH)
    target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:kvc_torch> $<INSTALL_INTERFACE:kvconvert::torch>)
    kvc_precompile(${name} kvc_pch)
  endif()
endfunction()

# kvc_program(NAME SOURCES ... DEPS ...): an executable in build/<preset>/bin.
function(kvc_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES} "${PROJECT_SOURCE_DIR}/core/program_end.cpp")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} CLI11::CLI11 kvc_flags)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)  # CLI11's headers hold their code, which is run once
  kvc_precompile(${name} kvc_pch)
  # Found without help also where it lies within the project, whose directories an installed program forgets.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "${KVC_TORCH_DIR}/lib")
  install(TARGETS ${name})
endfunction()

# kvc_test(NAME SOURCES ... DEPS ... [TORCH] [LABELS ...]): a GoogleTest binary whose cases become ctest entries. Builds join
# sources: one that calls things by names of others has a namespace of its own.
function(kvc_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} kvc_fmt kvc_flags GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE KVC_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data"
                             KVC_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)  # compiles in half of the time that -O3 takes
  if(ARG_TORCH)
    kvc_precompile(${name} kvc_test_pch LIBRARIES GTest::gmock HEADERS <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 1200)  # of a busy machine
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${KVC_TIMEOUT_FACTOR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# kvc_bench(NAME SOURCES ... DEPS ... [TORCH]): a benchmark beside the tests, which ctest does not run.
function(kvc_bench name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} kvc_fmt kvc_flags)
  target_compile_definitions(${name} PRIVATE KVC_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  if(ARG_TORCH)
    kvc_precompile(${name} kvc_pch)
  endif()
endfunction()

# kvc_python_test(NAME SCRIPT file | MODULES name ... [PEERS|VLLM] [ARGS ...] [LABELS ...] [TIMEOUT seconds]): a unittest file, or
# the files NAME_test.py of this directory in one process, which imports torch once. The system's python3 runs it, with PEERS an
# interpreter that has transformers (.venv-peers or .venv), with VLLM that of .venv-vllm. Without it the test skips, or fails where the environment says KVC_REQUIRE_PEERS=1. The script finds KVC_BIN_DIR,
# KVC_TEST_DATA and KVC_SOURCE_DIR in its environment.
function(kvc_python_test name)
  cmake_parse_arguments(ARG "PEERS;VLLM" "SCRIPT;TIMEOUT" "MODULES;ARGS;LABELS" ${ARGN})
  if(ARG_MODULES)
    list(TRANSFORM ARG_MODULES APPEND _test)
    set(_script -m unittest -v ${ARG_MODULES})
    set(_where WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
  else()
    set(_where "")
    get_filename_component(_script "${ARG_SCRIPT}" ABSOLUTE)
  endif()
  if(ARG_PEERS)
    set(_interpreter "${PROJECT_SOURCE_DIR}/scripts/with_peers.sh")
  elseif(ARG_VLLM)
    set(_interpreter "${PROJECT_SOURCE_DIR}/scripts/with_vllm.sh")
  else()
    set(_interpreter python3)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)  # of a busy machine
  endif()
  math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * ${KVC_TIMEOUT_FACTOR}")
  add_test(NAME ${name} COMMAND ${_interpreter} ${_script} ${ARG_ARGS} ${_where})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}" SKIP_RETURN_CODE 77
    ENVIRONMENT "KVC_BIN_DIR=${CMAKE_BINARY_DIR}/bin;KVC_TEST_DATA=${PROJECT_SOURCE_DIR}/tests/data;KVC_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
  if(ARG_PEERS)
    # torch's tensors come and go: memory that is kept saves a seventh of the time. Models are so small that a second thread costs
    # more than it saves, and other tests run beside.
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      "MALLOC_TRIM_THRESHOLD_=1073741824;MALLOC_MMAP_THRESHOLD_=33554432;OMP_NUM_THREADS=1")
  endif()
endfunction()

# kvc_start_first(NAME ...): tests of a minute or more, started before the others, so that no core idles at the end. Call it
# where the tests are added.
function(kvc_start_first)
  set_tests_properties(${ARGN} PROPERTIES COST 1)
endfunction()

# kvc_precompile(NAME PCH [LIBRARIES ...] [HEADERS ...]): what nearly every file of the target includes, parsed once for
# all targets that name the same PCH: with these headers those of LibTorch, fmt and JSON.
function(kvc_precompile name pch)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS" ${ARGN})
  if(NOT TARGET ${pch})
    file(GENERATE OUTPUT "${CMAKE_BINARY_DIR}/${pch}.cpp" CONTENT "")
    add_library(${pch} OBJECT "${CMAKE_BINARY_DIR}/${pch}.cpp")
    target_link_libraries(${pch} PRIVATE kvc_torch kvc_fmt kvc_flags ${ARG_LIBRARIES})
    target_precompile_headers(${pch} PRIVATE <ATen/ATen.h> <filesystem> <fmt/format.h> <functional>
                              <nlohmann/json.hpp> ${ARG_HEADERS})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${pch})
endfunction()
